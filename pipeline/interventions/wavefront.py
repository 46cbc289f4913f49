"""One teacher-forced pass of a stock model for all interventions at once.

Interventions that agree on the first blocks share them. The pass goes through the blocks once, with
a growing batch: where interventions branch, the rows of a branch are appended a second time::

    block               0       1       2       3
    baseline        ────●───────●───────●───────●────   ● the block as it is
    block-03            │       │       └───────○────   ○ the block edited
    block-02            │       └───────○───────●────
    block-01            └───────○───────●───────●────
    block-00        ────○───────●───────●───────●────

    Each is drawn from where it begins: block-02 has no rows of its own before block 2.

The model computes with its own modules. Hooks on them only append rows before a block, and apply
the edits to the rows that have them. A sweep over L blocks thus takes about L²/2 evaluations of a
block, not L².

Shapes: B rows of tokens, T positions, G branches, D width. Row b of branch g is row g B + b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from pipeline.interventions.edits import ATTENTION, RULES
from pipeline.interventions.hooks import (
    BlockRows,
    Means,
    Selection,
    fast_activations,
    hooked,
)
from pipeline.interventions.interventions import Edit, Intervention
from pipeline.interventions.trie import Trie
from pipeline.models.precision import at_least_single
from pipeline.models.sites import Anatomy, masked_call, states_out

Observer = Callable[[int, Tensor], None]
"""Called after each block with its number b and the states after it, (G, B, T, D).

Intervention v is in branch ``trie.carrier[b + 1][v]``. The states are the pass's own memory and
will be overwritten: read or copy them at once.
"""

CALIBRATION_ROWS, _ROWS_AT_ONCE = 256, 16


def run(
    known: Anatomy,
    tokens: Tensor,
    trie: Trie,
    *,
    cache: DynamicCache | None = None,
    mask: Tensor | None = None,
    observer: Observer | None = None,
    means: Means | None = None,
    last: int | None = None,
) -> Tensor:
    """Read the tokens under all interventions of a trie.

    Args:
        known: of the model.
        tokens: (B, T) int64, on the model's device.
        trie: for the model's number of blocks.
        cache: receives the keys and values of all branches, or holds those of earlier tokens.
        mask: (B, T plus the length of the cache) int64, 0 at padding, which is on the left; None:
            no padding.
        observer: called after each block.
        means: for edits that need them.
        last: the number of final positions that are needed; None: all. The values at other
            positions are undefined.

    Returns:
        (G, B, T, D), the input of the head.
    """
    blocks = rows_of(trie, len(tokens), tokens.device)
    blocks[-1].last = last if last != tokens.shape[1] else None
    call = {} if mask is None else masked_call(mask, tokens.shape[1], known.has_positions)
    with (
        hooked(known, blocks, len(tokens), means),
        fast_activations(known),
        ExitStack() as stack,
    ):
        if observer is not None:
            for number, site in enumerate(known.sites):
                stack.callback(_observing(site.block, number, observer, len(tokens)).remove)
        states = known.body(
            input_ids=tokens, past_key_values=cache, use_cache=cache is not None, **call
        )[0]
    return torch.unflatten(states, 0, (trie.branches, len(tokens)))


def _observing(block: nn.Module, number: int, observer: Observer, batch: int) -> Any:
    def look(_module: nn.Module, _args: Any, returned: Any) -> None:
        observer(number, torch.unflatten(states_out(returned), 0, (-1, batch)))

    return block.register_forward_hook(look)


def rows_of(trie: Trie, batch: int, device: torch.device) -> list[BlockRows]:
    """For each block, the rows that a pass of `batch` rows of tokens appends and edits."""
    row = torch.arange(batch, device=device)
    made = []
    for step in trie.steps:
        parents = [parent * batch + row for parent in step.parents]
        edits: dict[Edit, list[int]] = {}
        for branch, edit in enumerate(step.edits):
            if edit is not None:
                edits.setdefault(edit, []).append(branch)
        made.append(
            BlockRows(
                torch.cat(parents) if parents else None,
                {edit: _selection(branches, batch, row) for edit, branches in edits.items()},
            )
        )
    return made


def _selection(branches: list[int], batch: int, row: Tensor) -> Selection:
    """The rows of some branches; adjacent branches as a slice, which copies nothing."""
    if branches[-1] - branches[0] == len(branches) - 1:
        return slice(branches[0] * batch, (branches[-1] + 1) * batch)
    return torch.cat([branch * batch + row for branch in branches])


class Kept(DynamicCache):
    """Keys and values of all branches, block by block: (rows, K, T, E) each."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep a block's keys and values, copied, since views would keep larger tensors alive."""
        self.blocks[layer_idx] = key_states.contiguous(), value_states.contiguous()
        return self.blocks[layer_idx]


def means_of(known: Anatomy, interventions: Sequence[Intervention], tokens: Tensor | None) -> Means:
    """The means by which the edits ``mean`` and ``mlp-mean`` replace the values at their sites.

    Args:
        known: of the model.
        interventions: those that are to be run; often none needs a mean.
        tokens: (C, T) int64; up to `CALIBRATION_ROWS` of them, evenly spread, are read.

    Returns:
        The mean over rows and positions, in float64; the model computes in float32 at least.

    Raises:
        ValueError: a mean is needed, and there are no tokens.
    """
    needed = {
        (block, RULES[edit].site)
        for each in interventions
        for block, edit in each.edits.items()
        if RULES[edit].needs_mean
    }
    if not needed:
        return {}
    if tokens is None:
        raise ValueError("the edits mean and mlp-mean need calibration tokens; pass some")
    chosen = torch.arange(min(CALIBRATION_ROWS, len(tokens))) * len(tokens)
    rows = tokens[chosen // min(CALIBRATION_ROWS, len(tokens))].to(known.model.device)
    sums: dict[tuple[int, str], Tensor] = {}

    def add(key: tuple[int, str]) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(_module: nn.Module, _args: Any, returned: Tensor) -> None:
            total = returned.flatten(0, -2).double().sum(0)
            sums[key] = sums[key] + total if key in sums else total

        return hook

    with at_least_single(known.model), ExitStack() as stack:
        for block, site in needed:
            where = known.sites[block]
            module = where.attention if site == ATTENTION else where.mlp
            assert module is not None  # noqa: S101  `require_editable` has refused it
            stack.callback(module.register_forward_hook(add((block, site))).remove)
        for part in torch.split(rows, _ROWS_AT_ONCE):
            known.body(input_ids=part, use_cache=False)
    return {key: total / rows.numel() for key, total in sums.items()}
