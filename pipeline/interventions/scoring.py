"""The engine for benchmarks: log-likelihoods of continuations, under all interventions at once.

Requests that share a long context share its computation: the context is read once, its keys and
values are kept, and all continuations are read from there, each in its own row::

    the cat sat ─┬─ on the        of the choices "on the mat", "on the roof", "under it", "up";
                 ├─ under         the last token of each is predicted, never read
                 └─ (nothing)

Rows of a batch are padded on the left, so that their last tokens are aligned; continuations are
padded on the right, where no token attends to the padding.

Shapes: V interventions, R requests, G branches, B rows of a batch, M reads of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from pipeline.interventions.caches import Continued, Kept
from pipeline.interventions.evaluation import (
    Likelihoods,
    Progress,
    Request,
    one_at_a_time,
    require_scorable,
    require_usable,
    silent,
)
from pipeline.interventions.guard import prepare
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal, in_batches
from pipeline.interventions.near_ties import Alone, rounding_error
from pipeline.interventions.overflow import finite
from pipeline.interventions.readout import read
from pipeline.interventions.wavefront import Engine, run
from pipeline.models.context import context_length
from pipeline.workflow.errors import bad_input

_LEAST_SAVED = 0.2  # share of tokens saved, below which continuations are read one by one
_PAD_UP_TO = 1024  # tokens of a batch before branches: larger ones only need more padding


@one_at_a_time
@torch.inference_mode()
def score(
    model: PreTrainedModel,
    requests: Sequence[Request],
    interventions: Sequence[Intervention],
    batch_size: int | None = None,
    progress: Progress = silent,
    max_length: int | None = None,
    *,
    calibration_tokens: Tensor | None = None,
    token_budget: int | None = None,
    journal: Journal | None = None,
    first: int = 0,
) -> Likelihoods:
    """The log-likelihood of each continuation given its context, under each intervention.

    Args:
        model: a stock causal language model in evaluation mode, on any device.
        requests: R pairs of a context and a continuation, token ids.
        interventions: V of them.
        batch_size: largest number of distinct contexts at a time; None: set by the token budget.
        progress: called after each batch.
        max_length: positions that the model may see; its own context length unless given. Longer
            requests lose tokens on the left.
        calibration_tokens: (C, T) int64, for the edits ``mean`` and ``mlp-mean``.
        token_budget: tokens at a time, counted once per branch; None: computed from the free
            memory.
        journal: records halved batches, near ties and requests that overflowed.
        first: the number of the first of `requests` in errors.

    Returns:
        On the CPU, in the order of `interventions` and `requests`.

    Raises:
        InputError: an unsupported model, a block beyond the last, a request with an empty side or
            with a continuation longer than `max_length` or with what is no token id, or NaN or
            infinity in float32.
        ValueError: the model is in training mode, or an edit lacks its calibration tokens.
    """
    require_usable(model)
    max_length = max_length or context_length(model.config)
    require_scorable(model, requests, max_length)
    longest = max((len(context) + len(rest) for context, rest in requests), default=1) - 1
    engine = prepare(
        model, interventions, calibration_tokens, journal, token_budget, min(longest, max_length)
    )
    if any(source.tokens is not None for source in engine.places):
        raise bad_input(
            "interventions of score",
            "a patch from another sample",
            "a patch from the baseline or another model: requests have positions of their own",
            "use complete",
        )
    # as in lm-eval, tokens on the left are lost; the last one of a request is predicted alone
    kept = [(context[-(max_length + 1 - len(rest)) :], rest) for context, rest in requests]

    def scored(engine: Engine, numbers: Sequence[int], progress: Progress) -> Likelihoods:
        return _scored(engine, [kept[n] for n in numbers], batch_size, progress)

    def row(_results: Likelihoods, _v: int, n: int) -> Tensor:
        return _tokens(kept[n])[:-1]

    made = finite(engine, len(requests), scored, row, lambda n: f"request {first + n}", progress)
    return replace(made, interventions=[each.name for each in interventions])


def _tokens(request: Request) -> Tensor:
    """(T,) int64: context and continuation."""
    return torch.tensor([*request[0], *request[1]])


def _scored(
    engine: Engine, requests: Sequence[Request], batch_size: int | None, progress: Progress
) -> Likelihoods:
    """As `score`; NaN where logits are not finite."""
    # a patch's source has no keys and values of contexts that are read once
    rows = _rows(requests, shared=not engine.places)
    branches = engine.trie.branches
    if not rows:
        empty = torch.zeros(len(engine.interventions), 0)
        return Likelihoods(empty.double(), empty.bool())
    tolerance = rounding_error(engine, torch.tensor([rows[0].tokens]))
    passes: list[_Scored] = []
    done = 0
    for shared in (True, False):
        group = [row for row in rows if bool(row.tails) is shared]

        def work(numbers: range, group: list[Row] = group, done: int = done) -> list[_Scored]:
            scored = list(_batch(engine, group[numbers.start : numbers.stop]))
            progress(done + numbers.stop, len(rows))
            return scored

        budget = engine.token_budget or min(
            engine.budget(_longest(group), caching=shared), _PAD_UP_TO * branches
        )
        costs = [branches * row.cost for row in group]
        passes += chain(*in_batches(costs, budget, batch_size, work, engine.journal))
        done += len(group)

    # Summed here alone: a batch is repeated where memory runs out in one of its passes.
    request, log_prob, right, gap = (torch.cat(parts, -1) for parts in zip(*passes, strict=True))
    close = gap <= tolerance
    shape = branches, len(requests)

    def count(reads: Tensor) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64).index_add_(1, request, reads.long())

    is_greedy = count(~right) == 0
    unsure = (count(~right & ~close) == 0) & (count(close) > 0)
    for branch, number in unsure.nonzero().tolist():
        tokens, length = _tokens(requests[number]).to(engine.device), len(requests[number][1])
        argmax = Alone(engine, branch, tokens, length).argmax()
        again = bool((argmax == tokens[-length:]).all())
        engine.journal.near_ties += 1
        engine.journal.decided_again += again != bool(is_greedy[branch, number])
        is_greedy[branch, number] = again
    sums = torch.zeros(shape, dtype=torch.float64).index_add_(1, request, log_prob)
    return Likelihoods(log_prob=sums[engine.ends], is_greedy=is_greedy[engine.ends])


class Read(NamedTuple):
    """One prediction of a request: of the token `target`, at `position` of its row.

    Positions count from the end where rows are padded on the left: -1 is the last token.
    """

    request: int
    position: int
    target: int


@dataclass(frozen=True)
class Row:
    """Tokens that are read together, their predictions, and the rows that follow them.

    Args:
        tokens: T of them.
        reads: the requested predictions.
        tails: rows that continue from the last token of this one.
        suffix: its last tokens that belong to a continuation.
    """

    tokens: Sequence[int]
    reads: list[Read]
    tails: list[Row] = field(default_factory=list)
    suffix: int = 0

    @property
    def cost(self) -> int:
        """Tokens to be read."""
        return len(self.tokens) + sum(len(tail.tokens) for tail in self.tails)


def _rows(requests: Sequence[Request], *, shared: bool) -> list[Row]:
    """Rows for all requests: those with the longest tails first, then the longest.

    If `shared`, requests that share a context share a row where that saves much.
    """
    sharing: dict[tuple[int, ...], dict[tuple[int, ...], list[int]]] = {}
    for number, (context, continuation) in enumerate(requests):
        tails = sharing.setdefault(tuple(context), {})
        tails.setdefault(tuple(continuation[:-1]), []).append(number)

    def reads(numbers: Sequence[int], first: int, tokens: slice) -> list[Read]:
        """The predictions of some tokens of requests; that of the first token is at `first`."""
        return [
            Read(n, first + i, requests[n][1][i])
            for n in numbers
            for i in range(len(requests[n][1]))[tokens]
        ]

    rows: list[Row] = []
    for context, tails in sharing.items():
        alone = sum(len(context) + len(tail) for tail in tails)
        if not shared or len(context) * (len(tails) - 1) < _LEAST_SAVED * alone:
            rows += (
                Row(context + tail, reads(of, -1 - len(tail), slice(None)), suffix=len(tail))
                for tail, of in tails.items()
            )
        else:
            first = [read for of in tails.values() for read in reads(of, -1, slice(1))]
            later = [Row(tail, reads(of, -1, slice(1, None))) for tail, of in tails.items() if tail]
            rows.append(Row(context, first, later))
    # neighbours have similar lengths, so there is little padding
    return sorted(rows, key=lambda row: (-_longest(row.tails), -len(row.tokens)))


def _longest(rows: Sequence[Row]) -> int:
    return max((len(row.tokens) for row in rows), default=0)


class _Scored(NamedTuple):
    """M reads of a pass, by branch, on the CPU.

    Args:
        request: (M,) int64.
        log_prob: (G, M) float64, nats, of the target; NaN where logits are not finite.
        right: (G, M) bool, whether the target is the argmax.
        gap: (G, M) float32, from the target's logit to the largest other.
    """

    request: Tensor
    log_prob: Tensor
    right: Tensor
    gap: Tensor


def _batch(engine: Engine, batch: Sequence[Row]) -> Iterator[_Scored]:
    """The reads of a batch: of its rows, then of their tails."""
    tails = [(b, tail) for b, row in enumerate(batch) for tail in row.tails]
    together = _longest(batch) + _longest([tail for _, tail in tails])
    if together > context_length(engine.known.model.config) and len(batch) > 1:
        # they would be longer than the model's table of positions
        yield from _batch(engine, batch[: len(batch) // 2])
        yield from _batch(engine, batch[len(batch) // 2 :])
        return
    cache = Kept() if tails else None
    tokens, mask = _padded([row.tokens for row in batch], engine.device, "left")
    last = max(-read.position for row in batch for read in row.reads)
    suffix = torch.tensor([row.suffix for row in batch], device=engine.device)
    start = tokens.shape[1] - suffix
    states = run(engine, tokens, cache=cache, mask=mask, last=last, start=start)
    yield _look(engine, states, batch)
    del states
    if cache is None:
        return
    of = torch.tensor([b for b, _ in tails], device=engine.device)
    read_on, real = _padded([tail.tokens for _, tail in tails], engine.device, "right")
    continued, mask = Continued(cache, engine.trie, of), torch.cat([mask[of], real], 1)
    states = run(engine, read_on, cache=continued, mask=mask)
    yield _look(engine, states, [tail for _, tail in tails])


def _look(engine: Engine, states: Tensor, rows: Sequence[Row]) -> _Scored:
    """Score the reads of rows from their states (G, B, T, D)."""
    reads = [(b, *read) for b, row in enumerate(rows) for read in row.reads]
    row, request, position, target = torch.tensor(reads).to(engine.device).unbind(1)
    chosen = states[:, row, position].flatten(0, 1)
    targets = target.repeat(len(states))
    readout = read(engine.known, chosen, targets, engine.never, ranked=False)
    readout = readout.view(len(states), -1)
    right = readout.token == target
    return _Scored(
        request.cpu(),
        readout.log_prob.masked_fill(readout.entropy.isnan(), torch.nan).double().cpu(),
        right.cpu(),
        torch.where(right, readout.margin, readout.behind).cpu(),
    )


def _padded(
    rows: Sequence[Sequence[int]], device: torch.device, side: str
) -> tuple[Tensor, Tensor]:
    """The rows (B, T), padded on one side, and their mask."""
    tokens = [torch.tensor(row) for row in rows]
    mask = [torch.ones_like(row) for row in tokens]
    padded = (pad_sequence(each, True, padding_side=side).to(device) for each in (tokens, mask))
    return next(padded), next(padded)
