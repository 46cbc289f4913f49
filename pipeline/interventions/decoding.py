"""Exact greedy continuations of all samples under all interventions, without `generate`.

While a model's choices agree with the true suffix, reading the suffix and generating it are the
same thing: up to and including its first wrong choice, the greedy continuation is what the
teacher-forced pass chose. A row (a sample under an intervention) that chooses right throughout is
done, and so is one that goes wrong at the last token. Only the others decode, those of all
interventions together, each from where it went wrong, on the keys and values of that pass::

    position      P    P+1  P+2  P+3  P+4  P+5
    the suffix    s    s    s    s    s    s
    row 0         s    s    s    s    s    s      right throughout: an exact match, done
    row 1         s    x ─▶ ● ─▶ ● ─▶ ● ─▶ ●      goes wrong, and reads what it wrote
    row 2         s    s    s    y ─▶ ● ─▶ ●      joins when row 1 has come as far

All rows at work are at the same position, so a step needs no mask. They are the first of all
rows, sorted by when they join, so caches are never moved.

What was tried and did not pay on a memorizing model: to share steps between interventions whose
continuations agree so far (99 in 100 histories are distinct), to draft from the suffix, from the
teacher-forced choices or from other interventions (1 or 2 drafts in 100 are right), and to attend
once a sample to the prefix that interventions share (narrow heads: as slow, and two softmaxes).

Shapes: n rows at work, P prefix and S suffix positions, T = P + S - 1, H heads, E = D/H.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.interventions import attention
from pipeline.interventions.operations import IN_PLACE_OF_ATTENTION
from pipeline.interventions.plan import Plan, Stop
from pipeline.interventions.readout import Choice, choose
from pipeline.interventions.wavefront import KeysValues
from pipeline.models.decoder import Block, Decoder, Turn


@dataclass(frozen=True)
class Start:
    """Where rows begin to decode, sorted by `mismatch`.

    Args:
        branch: (n,) int64, the branch each row ends in.
        sample: (n,) int64, its sample within the batch.
        mismatch: (n,) int64, index into the suffix of its first wrong choice, ascending, below S-1.
        token: (n,) int64, that choice.
    """

    branch: Tensor
    sample: Tensor
    mismatch: Tensor
    token: Tensor


def decode(
    decoder: Decoder,
    plan: Plan,
    cache: list[KeysValues],
    start: Start,
    prefix_length: int,
    suffix_length: int,
    forbidden: Tensor,
) -> Choice:
    """Generate greedily from where the rows went wrong to the end of the suffix.

    Args:
        decoder: the model.
        plan: that of the teacher-forced pass.
        cache: the keys and values of that pass, over the P + S - 1 positions that it read. It is
            emptied: a block's are given up once the rows have theirs.
        start: n rows, at least one.
        prefix_length: P.
        suffix_length: S.
        forbidden: (E,) int64, ids that are never generated.

    Returns:
        The choices (n, S), from index mismatch + 1 on; before it, token 0 and margin infinity.
    """
    rows = len(start.token)
    tokens = start.token.new_zeros((rows, suffix_length))
    margins = torch.full((rows, suffix_length), torch.inf, device=tokens.device)
    tokens[torch.arange(rows, device=tokens.device), start.mismatch] = start.token
    joins = start.mismatch.tolist()
    paths = [plan.path(branch) for branch in range(plan.branches)]
    layers = [
        _Layer([path[number] for path in paths], cache.pop(0), start)
        for number in range(len(plan.steps))
    ]
    for index in range(joins[0], suffix_length - 1):
        position = prefix_length + index
        active = bisect_left(joins, index + 1)
        where = torch.tensor([position], device=tokens.device)
        states = decoder.embed(tokens[:active, index], where)
        turn = None if decoder.rotary is None else decoder.rotary.at(where, decoder.dtype)
        for number, layer in enumerate(layers):
            states = layer.step(decoder.block(number), decoder, turn, states, position)
        choice = choose(decoder, states, forbidden)
        tokens[:active, index + 1] = choice.token
        margins[:active, index + 1] = choice.margin
    return Choice(tokens, margins)


class _Layer:
    """One block while decoding: which rows attend, what the others do, and what attention reads."""

    def __init__(self, stops: list[Stop], kept: KeysValues, start: Start) -> None:
        operations = [stops[branch].operation for branch in start.branch.tolist()]
        device = kept.keys.device
        self.attending = _Group([r for r, each in enumerate(operations) if each is None], device)
        self.replaced = {
            name: _Group([r for r, each in enumerate(operations) if each == name], device)
            for name in dict.fromkeys(operations)
            if name is not None
        }
        slots = [kept.slot.get(stop.branch, 0) for stop in stops]
        slot = torch.tensor(slots, device=device)[start.branch[self.attending.rows]]
        row = slot * kept.keys.shape[1] + start.sample[self.attending.rows]
        self.keys = kept.keys.flatten(0, 1)[row].flatten(0, 1)
        self.values = attention.laid_out(kept.values.flatten(0, 1)[row].flatten(0, 1))

    def step(
        self, block: Block, decoder: Decoder, turn: Turn | None, states: Tensor, position: int
    ) -> Tensor:
        """One position of all rows at work: states (n, D) before the block to those after it."""
        n = len(states)
        normed = block.attention_norm(states)
        rows = self.attending.active(n)
        if len(rows) == n:
            return block.finish(states, self._attend(block, decoder, turn, normed, position))
        context = torch.empty_like(states)
        if len(rows):
            context[rows] = self._attend(block, decoder, turn, normed[rows], position)
        for operation, group in self.replaced.items():
            rows = group.active(n)
            values = block.projections.values(normed[rows])
            context[rows] = IN_PLACE_OF_ATTENTION[operation](values).flatten(1)
        return block.finish(states, context)

    def _attend(
        self, block: Block, decoder: Decoder, turn: Turn | None, normed: Tensor, position: int
    ) -> Tensor:
        """Attention (n, D) of the rows `normed` (n, D), which are the first of this layer's."""
        queries, keys, values = (
            x.reshape(-1, 1, x.shape[-1]) for x in block.projections.all(normed)
        )
        if turn is not None:
            turn.apply_(queries)
            turn.apply_(keys)
        count = len(queries)  # n x H
        self.keys[:count, position : position + 1] = keys
        self.values[:count, position : position + 1] = values
        first = 0 if block.window is None else max(0, position - block.window + 1)
        seen = slice(first, position + 1)
        mixed = attention.single(
            queries, self.keys[:count, seen], self.values[:count, seen], decoder.attention_scale
        )
        return mixed.view(len(normed), -1)


class _Group:
    """Rows of one kind; those at work are the first of them, as the rows are sorted by joining."""

    def __init__(self, rows: list[int], device: torch.device) -> None:
        self.list = rows
        self.rows = torch.tensor(rows, dtype=torch.int64, device=device)

    def active(self, n: int) -> Tensor:
        """Those among the first n rows."""
        return self.rows[: bisect_left(self.list, n)]
