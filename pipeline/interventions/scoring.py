"""The engine for benchmarks: log-likelihoods of continuations, under all interventions at once.

It gives what `reference.score` gives. Shapes: V interventions, R requests, G branches, B rows of a
batch, K wanted positions, M reads of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions import precision
from pipeline.interventions.evaluation import (
    Likelihoods,
    Progress,
    Request,
    require_scorable,
    silent,
)
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal, default_budget, in_batches
from pipeline.interventions.plan import plan
from pipeline.interventions.readout import Readout, read
from pipeline.interventions.trees import sheet, trees
from pipeline.interventions.wavefront import Sheet, run
from pipeline.models.decoder import Decoder
from pipeline.models.families import adapt

_PAD_UP_TO = 2048  # tokens of a batch before branches: longer ones are padded more, for no gain
_CALIBRATION_TOKENS = 128


@torch.inference_mode()
def score(
    model: PreTrainedModel,
    requests: Sequence[Request],
    interventions: Sequence[Intervention],
    batch_size: int | None = None,
    progress: Progress = silent,
    max_length: int | None = None,
    *,
    token_budget: int | None = None,
    journal: Journal | None = None,
    calibration: precision.Calibration | None = None,
    first: int = 0,
) -> Likelihoods:
    """The log-likelihood of each continuation given its context, under each intervention.

    Args:
        model: in evaluation mode, of a family in `pipeline.models.families`.
        requests: R pairs of a context and a continuation, token ids.
        interventions: V of them.
        batch_size: distinct contexts at a time, at most; None: what the token budget allows.
        progress: told after each batch.
        max_length: positions that the model may see; its own context length unless given. Longer
            requests lose tokens on the left.
        token_budget: tokens at a time, counted once a branch; None: from the memory that is free.
        journal: is told of batches halved and of choices made again.
        calibration: what `calibrate` gave for all requests, where these are some of them.
        first: what the first of `requests` is called in errors.

    Returns:
        On the CPU, in the order of `interventions` and `requests`.

    Raises:
        InputError: an unsupported model, a block beyond the last, a request with an empty side or
            with a continuation longer than `max_length`, or NaN or infinity.
        ValueError: the model is in training mode.
    """
    decoder = adapt(model)
    max_length = max_length or decoder.context_length
    require_scorable(model, requests, max_length)
    calibration = calibration or calibrate(model, requests, interventions, max_length)
    task = _Task(max_length, batch_size, token_budget, journal or Journal(), calibration)
    names = range(first, first + len(requests))
    return _score(decoder, requests, names, interventions, task, progress)


def calibrate(
    model: PreTrainedModel,
    requests: Sequence[Request],
    interventions: Sequence[Intervention],
    max_length: int | None = None,
) -> precision.Calibration:
    """What the calls of `score` for parts of the requests share, so that it is measured once.

    Args:
        model: as for `score`, and so are the others.
        requests: all of them.
        interventions: likewise.
        max_length: likewise.
    """
    decoder = adapt(model)
    longest = max(requests, key=lambda request: len(request[0]) + len(request[1]), default=([], []))
    read = [*longest[0], *longest[1]][:-1][-(max_length or decoder.context_length) :]
    few = torch.tensor([read[:_CALIBRATION_TOKENS]], device=decoder.device)
    trie = plan(interventions, len(decoder.blocks))
    return precision.Calibration(Sheet.plain(few, few.shape[1]), trie)


@dataclass(frozen=True)
class _Task:
    """What stays the same when some requests are scored again; as in `score`."""

    max_length: int
    batch_size: int | None
    token_budget: int | None
    journal: Journal
    calibration: precision.Calibration


def _score(
    decoder: Decoder,
    requests: Sequence[Request],
    names: Sequence[int],
    interventions: Sequence[Intervention],
    task: _Task,
    progress: Progress,
) -> Likelihoods:
    """`score` for a decoder; request r is called request ``names[r]`` in errors."""
    trie = plan(interventions, len(decoder.blocks))
    rows = trees(requests, task.max_length, decoder.width)
    judge = precision.better(decoder)
    tolerance = 0.0
    if judge is not None and rows:
        tolerance = task.calibration.tolerance(decoder, judge)
        task.journal.tolerance = max(task.journal.tolerance, tolerance)
    tally = _Tally(trie.branches, len(requests), tolerance)

    def work(numbers: range) -> None:
        batch = rows[numbers.start : numbers.stop]
        made, (row, index) = sheet(batch, decoder.device)
        states = run(decoder, made, trie).states[:, row, index]  # (G, M, D)
        reads = [each for tree in batch for each in tree.reads]
        target = torch.tensor([each.target for each in reads], device=decoder.device)
        nothing = target[:0]
        said = read(decoder, states.flatten(0, 1), target.repeat(trie.branches), nothing)
        bad = (said.entropy + said.any.margin).isnan().nonzero()
        if len(bad):
            branch, number = divmod(int(bad[0]), len(reads))
            raise precision.not_finite(
                decoder,
                interventions[trie.carrier[-1].index(branch)],
                sheet([batch[int(row[number])]], decoder.device)[0],
                f"request {names[reads[number].request]}",
            )
        tally.add([each.request for each in reads], target, said)
        progress(numbers.stop, len(rows))

    budget = task.token_budget or min(
        default_budget(decoder, trie, decoding=False), _PAD_UP_TO * trie.branches
    )
    start = 0
    for branching in (True, False):
        same = sum(tree.branching == branching for tree in rows)
        costs = [trie.branches * len(tree.tokens) for tree in rows[start : start + same]]

        def work_from(numbers: range, start: int = start) -> None:
            work(range(numbers.start + start, numbers.stop + start))

        in_batches(costs, budget, task.batch_size, work_from, task.journal)
        start += same
    ends = torch.tensor(trie.carrier[-1])
    log_prob, is_greedy, unsure = tally.log_prob[ends], tally.is_greedy[ends], tally.unsure[ends]
    if judge is not None:
        for v, intervention in enumerate(interventions):
            again = (unsure[v] & is_greedy[v]).nonzero()[:, 0].tolist()
            if again:
                task.journal.recomputed += len(again)
                some = [requests[r] for r in again]
                settled = _score(
                    judge, some, [names[r] for r in again], [intervention], task, silent
                )
                is_greedy[v, again] = settled.is_greedy[0]
    return Likelihoods(log_prob=log_prob, is_greedy=is_greedy)


class _Tally:
    """Sums over the reads of each request.

    Args:
        branches: G.
        requests: R.
        tolerance: logits; closer choices are not to be trusted.
    """

    def __init__(self, branches: int, requests: int, tolerance: float) -> None:
        self.tolerance = tolerance
        self.log_prob = torch.zeros(branches, requests, dtype=torch.float64)
        self.is_greedy = torch.ones(branches, requests, dtype=torch.bool)
        """Whether every token is the largest choice, or not surely another."""
        self.unsure = torch.zeros(branches, requests, dtype=torch.bool)

    def add(self, requests: list[int], target: Tensor, said: Readout) -> None:
        """The reads (G x M) of a batch; `requests` and `target` are of M reads."""
        shape = (len(self.log_prob), len(target))
        right = said.any.token.view(shape) == target
        behind = (said.best_log_prob - said.log_prob).view(shape)
        gap = torch.where(right, said.any.margin.view(shape), behind)
        close = (
            (gap <= self.tolerance).cpu()
            if self.tolerance
            else torch.zeros(shape, dtype=torch.bool)
        )
        request = torch.tensor(requests)
        self.log_prob.index_add_(1, request, said.log_prob.view(shape).double().cpu())
        wrong = torch.zeros_like(self.log_prob).index_add_(
            1, request, (~right.cpu() & ~close).double()
        )
        doubtful = torch.zeros_like(self.log_prob).index_add_(1, request, close.double())
        self.is_greedy &= wrong == 0
        self.unsure |= doubtful > 0
