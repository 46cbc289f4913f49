"""Measures a few samples token by token, and how far each edit moves the stream.

One teacher-forced pass for all interventions, without decoding. The results for tokens come from
the states after the last block. The displacement of the stream is measured in the same pass, right
after the last block that an intervention edits. A second pass, of the unmodified model alone,
measures the change that attention makes to the stream in each block.

Position 0 is kept apart from the others: on real models it is an attention sink, whose state is
many times as long as any other.

Shapes: V interventions, N samples, B of a batch, T = P + S - 1 positions read, S suffix tokens,
G branches, L blocks, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.interventions.evaluation import Results, one_at_a_time, require_completable
from pipeline.interventions.guard import prepare
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal, in_batches, joined
from pipeline.interventions.wavefront import Engine, teacher_forced
from pipeline.models.modules import attached, states_in
from pipeline.models.precision import at_least_single
from pipeline.models.sites import Anatomy


@dataclass(frozen=True)
class Tokenwise(Results):
    """The results for N samples, computed at least in float32.

    Args:
        moved: (V, N, 2) float64, ``||edited - unedited|| / ||unedited||`` of the stream right after
            the last edited block: at position 0, and the mean over the others (NaN if there is no
            other); 0 for an intervention without edits.
        attention_change: (L, N, 2) float64, ``1 - cos(x, x + attention(x))`` of the unmodified
            model, x the block's input, likewise; NaN where a block adds more than attention and MLP
            return, or normalizes or scales it.
        greedy: (V, N, S) int64, argmax given the true suffix up to there, as for all fields below.
        log_prob: (V, N, S) float32, nats, of the true token.
        rank: (V, N, S) int32, of the true token, from 1.
        entropy: (V, N, S) float32, nats.
        margin: (V, N, S) float32, logits, from the largest to the second largest.
    """

    moved: Tensor
    attention_change: Tensor
    greedy: Tensor
    log_prob: Tensor
    rank: Tensor
    entropy: Tensor
    margin: Tensor


@one_at_a_time
@torch.inference_mode()
def look(
    model: PreTrainedModel,
    tokens: Tensor,
    suffix_length: int,
    interventions: Sequence[Intervention],
    calibration_tokens: Tensor | None = None,
    token_budget: int | None = None,
    journal: Journal | None = None,
) -> Tokenwise:
    """Measure samples token by token, under every intervention, the baseline among them.

    The arguments are as for `completion.complete`; the token budget affects rounding only. Results
    are on the CPU, in the order of `interventions` and `tokens`.

    Raises:
        InputError: an unsupported model, or a block beyond the last.
        ValueError: the model is in training mode, P or S would be 0, or there is no baseline.
    """
    require_completable(model, tokens, suffix_length)
    baseline = next((v for v, one in enumerate(interventions) if not one.edits), None)
    if baseline is None:
        raise ValueError("no intervention without edits: displacement is measured from it")
    calibration = tokens if calibration_tokens is None else calibration_tokens
    engine = prepare(model, interventions, calibration, journal, token_budget, tokens.shape[1] - 1)
    engine = replace(engine, in_single=engine.in_half)

    def work(numbers: range) -> Tokenwise:
        batch = tokens[numbers.start : numbers.stop].to(model.device)
        moved = torch.zeros(len(interventions), len(batch), 2, dtype=torch.float64)
        see = partial(_see_moved, engine, baseline, moved)
        with at_least_single(*engine.models):
            readout = teacher_forced(engine, batch, suffix_length, observer=see)
            changes = _attention_changes(engine.known, batch[:, :-1])
        names = ("log_prob", "rank", "entropy", "margin")
        return Tokenwise(
            moved=moved,
            attention_change=changes,
            greedy=readout.token.cpu()[engine.ends],
            **{name: getattr(readout, name).cpu()[engine.ends] for name in names},
        )

    length = tokens.shape[1] - 1
    costs = [engine.trie.branches * length] * len(tokens)
    budget = engine.budget(length, caching=False)
    return joined(in_batches(costs, budget, None, work, engine.journal))


def _see_moved(engine: Engine, baseline: int, moved: Tensor, number: int, states: Tensor) -> None:
    """Write `Tokenwise.moved` of interventions that end in a block; see `wavefront.Observer`."""
    after = engine.trie.carrier[number + 1]
    unedited = states[after[baseline]].double()
    size = unedited.norm(dim=-1).clamp_min(torch.finfo(torch.float64).tiny)
    for v, one in enumerate(engine.interventions):
        if number == max(one.blocks, default=-1):
            change = (states[after[v]].double() - unedited).norm(dim=-1)
            moved[v] = _first_and_others(change / size).cpu()


def _attention_changes(known: Anatomy, tokens: Tensor) -> Tensor:
    """(L, B, 2), as `Tokenwise.attention_change`, of tokens (B, T)."""
    changes = torch.full((len(known.sites), len(tokens), 2), torch.nan, dtype=torch.float64)
    if not known.plain:
        return changes
    entered: dict[int, Tensor] = {}

    def enter(number: int, _module: nn.Module, args: Any, kwargs: Any) -> None:
        entered[number] = states_in(args, kwargs).double()

    def leave(number: int, _module: nn.Module, _args: Any, returned: Tensor) -> None:
        x = entered.pop(number)
        cosine = torch.cosine_similarity(x, x + returned.view_as(x), dim=-1)
        changes[number] = _first_and_others(1 - cosine).cpu()

    hooks = (
        hook
        for number, site in enumerate(known.sites)
        for hook in (
            site.block.register_forward_pre_hook(partial(enter, number), with_kwargs=True),
            site.attention.register_forward_hook(partial(leave, number)),
        )
    )
    with attached(hooks):
        known.body(input_ids=tokens, use_cache=False)
    return changes


def _first_and_others(values: Tensor) -> Tensor:
    """(B, 2) of (B, T): position 0, and the mean over the others."""
    return torch.stack([values[:, 0], values[:, 1:].mean(-1)], -1)
