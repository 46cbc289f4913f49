"""Exact greedy continuations of all samples under all interventions, without `generate`.

While a model's choices agree with the true suffix, reading the suffix and generating it are the
same: up to and including its first wrong choice, the greedy continuation equals the choices of the
teacher-forced pass. A row (a sample under an intervention) without a wrong choice is done, and so
is one whose first wrong choice is the last token. Only the other rows decode, those of all
interventions together, each from its first wrong choice, on the keys and values of that pass::

    position      P    P+1  P+2  P+3  P+4  P+5
    the suffix    s    s    s    s    s    s
    row 0         s    s    s    s    s    s      right throughout: an exact match, done
    row 1         s    x ─▶ ● ─▶ ● ─▶ ● ─▶ ●      goes wrong, and reads what it wrote
    row 2         s    s    s    y ─▶ ● ─▶ ●      joins when row 1 has come as far

All active rows are at the same position, so a step needs no mask. They are the first of all rows,
sorted by when they join, so caches are never moved.

Shapes: n active rows, P prefix and S suffix positions, B samples, G branches.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from pipeline.interventions.hooks import BlockRows, Means, fast_activations, hooked
from pipeline.interventions.interventions import Edit
from pipeline.interventions.readout import Choice, choose
from pipeline.interventions.trie import Trie
from pipeline.interventions.wavefront import Kept
from pipeline.models.sites import Anatomy


@dataclass(frozen=True)
class Start:
    """The points where rows begin to decode, sorted by `mismatch`.

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


class _Rows(DynamicCache):
    """Keys and values of rows that decode side by side, the first `active` of them, in step."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[tuple[Tensor, Tensor]] = []
        self.position = self.active = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions that the rows have read."""
        return self.position

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """The number of keys that a step reads, and the position of the first."""
        return self.position + query_length, 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add one position."""
        end = self.position + 1
        both = [buffer[: self.active, :, :end] for buffer in self.buffers[layer_idx]]
        for buffer, new in zip(both, (key_states, value_states), strict=True):
            buffer[:, :, self.position :] = new
        return both[0], both[1]


def decode(
    known: Anatomy,
    trie: Trie,
    cache: Kept,
    start: Start,
    prefix_length: int,
    suffix_length: int,
    forbidden: Tensor,
    means: Means | None = None,
) -> Choice:
    """Generate greedily from where the rows went wrong to the end of the suffix.

    Args:
        known: of the model.
        trie: that of the teacher-forced pass.
        cache: the keys and values of that pass, over the P + S - 1 positions that it read. It is
            emptied: a block's entries are freed once they are copied to the rows.
        start: n rows, at least one.
        prefix_length: P.
        suffix_length: S.
        forbidden: (E,) int64, ids that are never generated.
        means: for edits that need them.

    Returns:
        The choices (n, S), from index mismatch + 1 on; before it, token 0 and margin infinity.
    """
    rows, device = len(start.token), start.token.device
    tokens = start.token.new_zeros((rows, suffix_length))
    margins = torch.full((rows, suffix_length), torch.inf, device=device)
    tokens[torch.arange(rows, device=device), start.mismatch] = start.token
    joins = start.mismatch.tolist()
    paths = torch.tensor([trie.path(g) for g in range(trie.branches)], device=device)[start.branch]
    side_by_side, blocks, members = _Rows(), [], []
    for number, step in enumerate(trie.steps):
        branch = paths[:, number]
        keys, values = cache.blocks.pop(number)
        source = branch * (len(keys) // len(step.edits)) + start.sample
        # no room for the position after the last one that the pass read: it is only predicted
        side_by_side.buffers.append((keys[source], values[source]))
        of: dict[Edit, list[int]] = {}
        for row, each in enumerate(branch.tolist()):
            if (edit := step.edits[each]) is not None:
                of.setdefault(edit, []).append(row)
        members.append(
            {edit: (each, torch.tensor(each, device=device)) for edit, each in of.items()}
        )
        blocks.append(BlockRows(edits={edit: each for edit, (_, each) in members[-1].items()}))
    with hooked(known, blocks, means=means), fast_activations(known):
        for index in range(joins[0], suffix_length - 1):
            active = bisect_left(joins, index + 1)
            side_by_side.active, side_by_side.position = active, prefix_length + index
            for block, every in zip(blocks, members, strict=True):
                for edit, (listed, tensor) in every.items():
                    block.edits[edit] = tensor[: bisect_left(listed, active)]
            states = known.body(
                input_ids=tokens[:active, index, None], past_key_values=side_by_side, use_cache=True
            )[0]
            choice = choose(known, states[:, 0], forbidden)
            tokens[:active, index + 1] = choice.token
            margins[:active, index + 1] = choice.margin
    return Choice(tokens, margins)
