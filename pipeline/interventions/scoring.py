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

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from pipeline.interventions.evaluation import (
    Likelihoods,
    Progress,
    Request,
    require_scorable,
    silent,
)
from pipeline.interventions.guard import proven
from pipeline.interventions.hooks import Means, require_editable
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal, in_batches
from pipeline.interventions.memory import token_budget as default_budget
from pipeline.interventions.near_ties import Alone, rounding_error
from pipeline.interventions.overflow import again_in_single, not_finite
from pipeline.interventions.readout import Readout, read
from pipeline.interventions.trie import Trie, build_trie
from pipeline.interventions.wavefront import Kept, means_of, run
from pipeline.models.context import context_length
from pipeline.models.sites import Anatomy

_LEAST_SAVED = 0.2  # share of tokens saved, below which continuations are read one by one
_PAD_UP_TO = 1024  # tokens of a batch before branches: larger ones only need more padding


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
            with a continuation longer than `max_length`, or NaN or infinity in float32.
        ValueError: the model is in training mode, or an edit lacks its calibration tokens.
    """
    max_length = max_length or context_length(model.config)
    require_scorable(model, requests, max_length)
    known = proven(model)
    build_trie(interventions, len(known.sites))  # raises if a block does not exist
    require_editable(known, interventions)
    journal = journal or Journal()
    means = means_of(known, interventions, calibration_tokens)

    def some(listed: Sequence[int], numbers: Sequence[int], in_single: bool) -> Likelihoods:
        budget = token_budget and max(1, token_budget >> in_single)
        return _scored(
            known, [requests[n] for n in numbers], [interventions[v] for v in listed], batch_size,
            silent if in_single else progress, max_length, means, budget, journal, in_single,
        )  # fmt: skip

    found = some(range(len(interventions)), range(len(requests)), False)
    again_in_single(model, found, lambda v, n: some(v, n, True), journal)
    if found.bad.any():
        v, n = found.bad.nonzero()[0].tolist()
        row = torch.tensor([*requests[n][0], *requests[n][1]][-(max_length + 1) : -1])
        raise not_finite(known, interventions[v], row, f"request {first + n}", means)
    return found


def _scored(
    known: Anatomy, requests: Sequence[Request], interventions: Sequence[Intervention],
    batch_size: int | None, progress: Progress, max_length: int, means: Means,
    token_budget: int | None, journal: Journal, in_single: bool,
) -> Likelihoods:  # fmt: skip
    """As `score`; NaN where logits are not finite."""
    trie = build_trie(interventions, len(known.sites))
    positions = context_length(known.model.config)
    rows = _rows(requests, max_length)
    one = torch.tensor([row.tokens for row in rows[:1]])
    tally = _Tally(trie.branches, len(requests), rounding_error(known, one, trie, means, journal))
    device = known.model.device
    nothing = torch.tensor([], dtype=torch.int64, device=device)

    def look(states: Tensor, reads: Sequence[tuple[int, Read]]) -> _Scored:
        """Score the reads; each with its row in the states (G, B, T, D)."""
        row, index = (torch.tensor(x, device=device) for x in zip(
            *((b, each.index) for b, each in reads), strict=True))  # fmt: skip
        target = torch.tensor([each.target for _, each in reads], device=device)
        said = read(
            known, states[:, row, index].flatten(0, 1), target.repeat(trie.branches), nothing
        )
        return tally.scored([each.request for _, each in reads], target, said)

    def work(batch: Sequence[Row]) -> list[_Scored]:
        """Score a batch; nothing is tallied here, since memory may run out in any pass."""
        tails = [(b, tail) for b, row in enumerate(batch) for tail in row.tails]
        longest = [
            max((len(x.tokens) for x in xs), default=0) for xs in (batch, (t for _, t in tails))
        ]
        if sum(longest) > positions and len(batch) > 1:
            # together they would be longer than the model's tables of positions
            return [*work(batch[: len(batch) // 2]), *work(batch[len(batch) // 2 :])]
        cache = Kept() if tails else None
        tokens, mask = _padded([row.tokens for row in batch], device)
        last = max(-each.index for row in batch for each in row.reads)
        states = run(known, tokens, trie, cache=cache, mask=mask, means=means, last=last)
        scored = [look(states, [(b, each) for b, row in enumerate(batch) for each in row.reads])]
        del states
        if cache is None:
            return scored
        of = torch.tensor([b for b, _ in tails], device=device)
        read_on = nn.utils.rnn.pad_sequence([torch.tensor(t.tokens) for _, t in tails], True).to(
            device
        )
        real = torch.arange(read_on.shape[1]) < torch.tensor([[len(t.tokens)] for _, t in tails])
        if mask is not None or not real.all():
            mask = torch.ones_like(tokens) if mask is None else mask
            mask = torch.cat([mask[of], real.to(mask)], 1)
        states = run(
            known, read_on, trie, cache=_Continued(cache, trie, of), mask=mask, means=means
        )
        reads = [(r, each) for r, (_, tail) in enumerate(tails) for each in tail.reads]
        return [*scored, look(states, reads)]

    done = 0
    for shared in (True, False):
        some = [row for row in rows if bool(row.tails) is shared]

        def work_on(numbers: range, some: list[Row] = some, done: int = done) -> None:
            for scored in work(some[numbers.start : numbers.stop]):
                tally.add(scored)
            progress(done + numbers.stop, len(rows))

        longest = max((len(row.tokens) for row in some), default=0)
        budget = token_budget or min(
            default_budget(known, trie, longest, caching=shared, in_single=in_single),
            _PAD_UP_TO * trie.branches,
        )
        in_batches([trie.branches * row.cost for row in some], budget, batch_size, work_on, journal)
        done += len(some)
    for branch, number in tally.unsure.nonzero().tolist():
        intervention = interventions[trie.ending_in(branch)]
        tokens = torch.tensor([*requests[number][0], *requests[number][1]], device=device)
        length = len(requests[number][1])
        row = Alone(known, tokens[-(max_length + 1) :], length, intervention, nothing, means)
        again = bool((row.said().any.token == tokens[-length:]).all())
        journal.near_ties += 1
        journal.decided_again += again != bool(tally.is_greedy[branch, number])
        tally.is_greedy[branch, number] = again
    ends = torch.tensor(trie.carrier[-1])
    return Likelihoods(log_prob=tally.log_prob[ends], is_greedy=tally.is_greedy[ends])


@dataclass(frozen=True)
class Read:
    """One prediction of a request: of the token `target`, at `index` of its row.

    Indices count from the end where rows are padded on the left: -1 is the last token.
    """

    request: int
    index: int
    target: int


@dataclass(frozen=True)
class Row:
    """Tokens that are read together, their predictions, and the rows that follow them.

    Args:
        tokens: T of them.
        reads: the requested predictions.
        tails: rows that continue from the last token of this one.
    """

    tokens: Sequence[int]
    reads: list[Read] = field(default_factory=list)
    tails: list[Row] = field(default_factory=list)

    @property
    def cost(self) -> int:
        """Tokens to be read."""
        return len(self.tokens) + sum(len(tail.tokens) for tail in self.tails)


def _rows(requests: Sequence[Request], max_length: int) -> list[Row]:
    """Rows for all requests: those with the longest tails first, then the longest.

    Requests that share a context share a row where that saves much. Rows longer than `max_length`
    lose tokens on the left, as in lm-eval.
    """
    sharing: dict[tuple[int, ...], list[int]] = {}
    for number, (context, continuation) in enumerate(requests):
        lost = max(0, len(context) + len(continuation) - (max_length + 1))
        sharing.setdefault(tuple(context[lost:]), []).append(number)
    rows: list[Row] = []
    for context, numbers in sharing.items():
        tails: dict[tuple[int, ...], list[int]] = {}
        for number in numbers:
            tails.setdefault(tuple(requests[number][1][:-1]), []).append(number)
        alone = sum(len(context) + len(tail) for tail in tails)
        if len(context) * (len(tails) - 1) < _LEAST_SAVED * alone:
            rows += (_whole(context, tail, of, requests) for tail, of in tails.items())
            continue
        row = Row(context)
        for tail, of in tails.items():
            row.reads.extend(Read(n, -1, requests[n][1][0]) for n in of)
            if tail:
                reads = [
                    Read(n, index, token)
                    for n in of
                    for index, token in enumerate(requests[n][1][1:])
                ]
                row.tails.append(Row(tail, reads))
        rows.append(row)
    # neighbours have similar lengths, so there is little padding
    longest_tail = [max((len(tail.tokens) for tail in row.tails), default=0) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (-longest_tail[i], -len(rows[i].tokens)))
    return [rows[i] for i in order]


def _whole(
    context: tuple[int, ...], tail: tuple[int, ...], of: list[int], requests: Sequence[Request]
) -> Row:
    """A context joined with its only tail."""
    row = Row(context + tail)
    for n in of:
        continuation = requests[n][1]
        row.reads.extend(
            Read(n, index - len(continuation), token) for index, token in enumerate(continuation)
        )
    return row


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The rows (B, T), padded on the left, and their mask; None where none is padded."""
    tensors = [torch.tensor(row) for row in rows]
    tokens = nn.utils.rnn.pad_sequence(tensors, True, padding_side="left").to(device)
    if all(len(row) == tokens.shape[1] for row in rows):
        return tokens, None
    lengths = torch.tensor([len(row) for row in rows], device=device)
    positions = torch.arange(tokens.shape[1], device=device)
    return tokens, (positions >= tokens.shape[1] - lengths[:, None]).long()


class _Continued(DynamicCache):
    """The keys and values of contexts, for rows that continue them, several per context.

    Args:
        contexts: of G branches of B contexts, block by block.
        trie: of the pass.
        of: (R,) int64, the context of each row.
    """

    def __init__(self, contexts: Kept, trie: Trie, of: Tensor) -> None:
        super().__init__()
        self.contexts, self.trie, self.of = contexts, trie, of
        self.length = contexts.blocks[0][0].shape[-2]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of a context, its padding included."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """The number of keys that the rows read, and the position of the first."""
        return self.length + query_length, 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """The contexts' keys and values before those of the rows."""
        both = self.contexts.blocks.pop(layer_idx)
        branches = len(self.trie.steps[layer_idx].edits)
        contexts = len(both[0]) // branches
        first = contexts * torch.arange(branches, device=self.of.device)
        rows = (first[:, None] + self.of).flatten()
        before, after = (
            torch.cat([kept[rows], new], -2)
            for kept, new in zip(both, (key_states, value_states), strict=True)
        )
        return before, after


@dataclass(frozen=True)
class _Scored:
    """M reads of a pass, by branch, on the CPU.

    Args:
        request: (M,) int64.
        log_prob: (G, M) float64, nats, of the target.
        right: (G, M) bool, whether the target is the argmax.
        close: (G, M) bool, whether that is a near tie.
    """

    request: Tensor
    log_prob: Tensor
    right: Tensor
    close: Tensor


class _Tally:
    """Sums over the reads of each request, by branch."""

    def __init__(self, branches: int, requests: int, tolerance: float) -> None:
        self.tolerance = tolerance
        self.log_prob = torch.zeros(branches, requests, dtype=torch.float64)
        self.is_greedy = torch.ones(branches, requests, dtype=torch.bool)
        self.wrong = torch.zeros(branches, requests, dtype=torch.int64)  # by more than rounding
        self.close = torch.zeros(branches, requests, dtype=torch.int64)

    @property
    def unsure(self) -> Tensor:
        """(G, R), whether `is_greedy` depends on near ties."""
        return (self.wrong == 0) & (self.close > 0)

    def scored(self, requests: list[int], target: Tensor, said: Readout) -> _Scored:
        """The reads (G x M) of a pass; `requests` and `target` are of M reads."""
        shape = (len(self.log_prob), len(target))
        log_prob = said.log_prob.masked_fill(said.entropy.isnan(), torch.nan)
        right = said.any.token.view(shape) == target
        gap = torch.where(right, said.any.margin.view(shape), said.behind.view(shape))
        return _Scored(
            torch.tensor(requests),
            log_prob.view(shape).double().cpu(),
            right.cpu(),
            (gap <= self.tolerance).cpu(),
        )

    def add(self, reads: _Scored) -> None:
        """Count the reads, once all passes of their batch are done."""
        self.log_prob.index_add_(1, reads.request, reads.log_prob)
        self.wrong.index_add_(1, reads.request, (~reads.right & ~reads.close).long())
        self.close.index_add_(1, reads.request, reads.close.long())
        wrong = torch.zeros_like(self.wrong).index_add_(1, reads.request, (~reads.right).long())
        self.is_greedy &= wrong == 0
