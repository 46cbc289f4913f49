"""The engine for memorization: completes suffixes under all interventions at once.

Shapes: V interventions, N samples, P prefix and S suffix tokens, G branches, B samples in a batch.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions import decoding
from pipeline.interventions.caches import Kept
from pipeline.interventions.evaluation import (
    Completions,
    Progress,
    forbidden_tokens,
    one_at_a_time,
    require_completable,
    silent,
)
from pipeline.interventions.guard import prepare
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal, in_batches, joined
from pipeline.interventions.near_ties import Alone, rounding_error
from pipeline.interventions.overflow import finite
from pipeline.interventions.wavefront import Engine, teacher_forced
from pipeline.models.precision import at_least_single


@one_at_a_time
@torch.inference_mode()
def complete(
    model: PreTrainedModel,
    tokens: Tensor,
    suffix_length: int,
    interventions: Sequence[Intervention],
    batch_size: int | None = None,
    progress: Progress = silent,
    *,
    decode: bool | Sequence[bool] = True,
    calibration_tokens: Tensor | None = None,
    token_budget: int | None = None,
    journal: Journal | None = None,
    first: int = 0,
) -> Completions:
    """Read and continue each sample under each intervention.

    A continuation always has S tokens: the end-of-text tokens of `model.generation_config` are
    never generated. In all teacher-forced results they stay in the vocabulary.

    Args:
        model: a stock causal language model in evaluation mode, on any device.
        tokens: (N, P+S) int64; P and S at least 1.
        suffix_length: S.
        interventions: V of them.
        batch_size: largest number of samples at a time; None: set by the token budget.
        progress: called after each batch.
        decode: whether to generate beyond the first wrong token, for all samples or each of them.
            It affects only the rest of the continuation after that token.
        calibration_tokens: (C, T) int64, over which the edits ``mean`` and ``mlp-mean`` take their
            means; None: `tokens`.
        token_budget: tokens at a time, counted once per branch; None: computed from the free
            memory.
        journal: records halved batches, near ties and rows that overflowed.
        first: the number of the first of `tokens` in errors.

    Returns:
        On the CPU, in the order of `interventions` and `tokens`.

    Raises:
        InputError: an unsupported model, a block beyond the last, tokens that are not those of the
            model, or NaN or infinity in float32.
        ValueError: the model is in training mode, P or S would be 0, or `decode` is not of N.
    """
    require_completable(model, tokens, suffix_length)
    each = [decode] * len(tokens) if isinstance(decode, bool) else list(decode)
    decoded = torch.tensor(each, dtype=torch.bool)
    if len(decoded) != len(tokens):
        raise ValueError(f"decode of {len(decoded)} samples; expected {len(tokens)}")
    calibration = tokens if calibration_tokens is None else calibration_tokens
    engine = prepare(model, interventions, calibration, journal, token_budget, tokens.shape[1] - 1)
    engine = replace(engine, never=forbidden_tokens(model))

    def completed(engine: Engine, numbers: Sequence[int], progress: Progress) -> Completions:
        some, of = tokens[numbers], decoded[numbers]
        return _completed(engine, some, suffix_length, of, batch_size, progress)

    def row(results: Completions, v: int, n: int) -> Tensor:
        if results.completion_entropy[v, n].isnan():
            return tokens[n, :-1]
        prefix = tokens[n, :-suffix_length]  # the overflow comes from its continuation
        return torch.cat([prefix, results.continuation[v, n, :-1]])

    made = finite(engine, len(tokens), completed, row, lambda n: f"sample {first + n}", progress)
    return replace(
        made,
        exact_match=(made.continuation == tokens[:, -suffix_length:].cpu()).all(-1),
        interventions=[each.name for each in interventions],
    )


def _completed(
    engine: Engine, tokens: Tensor, length: int, decoded: Tensor,
    batch_size: int | None = None, progress: Progress = silent,
) -> Completions:  # fmt: skip
    """Complete samples (N, P+S) in batches."""
    tolerance = rounding_error(engine, tokens[:1])

    def work(part: range) -> Completions:
        rows = slice(part.start, part.stop)
        made = _batch(engine, tokens[rows], length, decoded[rows], tolerance)
        progress(part.stop, len(tokens))
        return made

    budget = engine.budget(tokens.shape[1], caching=bool(decoded.any()))
    costs = [engine.trie.branches * (tokens.shape[1] - 1)] * len(tokens)
    return joined(in_batches(costs, budget, batch_size, work, engine.journal))


def _batch(
    engine: Engine, batch: Tensor, length: int, decoded: Tensor, tolerance: float
) -> Completions:
    """Complete samples (B, P+S): teacher-forced pass, and decoding of rows with a wrong choice."""
    batch, decoded = batch.to(engine.device), decoded.to(engine.device)
    suffix = batch[:, -length:]
    cache = Kept() if decoded.any() else None
    readout = teacher_forced(engine, batch, length, cache=cache)
    token, margin = readout.allowed_token, readout.allowed_margin

    # Up to and including its first wrong choice a row's greedy path is the teacher-forced one.
    mismatch = (token == suffix).long().cumprod(-1).sum(-1)  # S without a mismatch
    beyond = torch.arange(length, device=engine.device) > mismatch[..., None]
    token, margin = token.masked_fill(beyond, -1), margin.masked_fill(beyond, torch.inf)
    branch, sample = ((mismatch < length - 1) & decoded).nonzero().unbind(1)
    if len(branch) and cache is not None:
        first, order = mismatch[branch, sample].sort(stable=True)
        rows = branch[order], sample[order]
        start = decoding.Start(*rows, first, token[rows])
        later = decoding.decode(engine, cache, start, batch.shape[1] - length)
        token[rows], margin[rows] = later.token, margin[rows].minimum(later.margin)

    # near ties are decided again in place
    forced, before = readout.token, token.clone()
    close, forced_close = margin <= tolerance, readout.margin <= tolerance
    unsure = (close | forced_close).any(-1)
    if engine.in_half and unsure.any():
        cache = None  # frees its memory for float32
        branches, samples = (unsure.any(along).nonzero()[:, 0] for along in (1, 0))
        exact = _in_single(engine, branches, batch[samples], length, decoded[samples])
        at = branches[:, None], samples
        for tokens, again, these in (
            (token, exact.continuation, close),
            (forced, exact.teacher_forced, forced_close),
        ):
            near = these[at].any(-1, keepdim=True)
            tokens[at] = again.to(engine.device).where(near, tokens[at])
    else:
        for g, i in unsure.nonzero().tolist():
            row = Alone(engine, g, batch[i], length)
            if forced_close[g, i].any():
                forced[g, i] = row.argmax()
            if close[g, i].any():
                token[g, i] = row.continuation(token[g, i]) if decoded[i] else row.path()
    made = {
        "continuation": token,
        "min_margin": margin.amin(-1),
        "teacher_forced": forced,
        "entropy": readout.entropy,
        "log_prob": readout.log_prob,
        "log_prob_top_40": readout.log_prob_top_40,
        "rank": readout.rank,
        "spread": readout.spread,
    }
    ordered: dict[str, Any] = {name: x.cpu()[engine.ends] for name, x in made.items()}
    completions = Completions(**ordered)
    # last, since a batch is repeated where memory runs out
    engine.journal.near_ties += int(close.sum())
    engine.journal.decided_again += int((token != before).any(-1).sum())
    return completions


def _in_single(
    engine: Engine, branches: Tensor, batch: Tensor, length: int, decoded: Tensor
) -> Completions:
    """Completions of samples (B, P+S) in float32, in some branches.

    In half precision most rows of an edited model nearly tie somewhere, too many to decide each of
    them alone. In float32 few do, and these are.
    """
    single = engine.single(map(engine.trie.ending_in, branches.tolist()))
    single = replace(single, journal=Journal(halvings=engine.journal.halvings))
    with at_least_single(*engine.models):
        return _completed(single, batch, length, decoded)
