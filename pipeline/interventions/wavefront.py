"""One teacher-forced pass of a model for all interventions at once.

Interventions that agree on the first blocks share them. The pass goes through the blocks once, and
carries a growing front of branches; where interventions part, a branch forks from its parent::

    block               0       1       2       3
    baseline        ────●───────●───────●───────●────   ● the block as it is
    block-03            │       │       └───────○────   ○ the block bypassed
    block-02            │       └───────○───────●────
    block-01            └───────○───────●───────●────
    block-00        ────○───────●───────●───────●────

    Drawn where they begin: block-02 has no state of its own before block 2.

A sweep over L blocks so costs L (L+1) / 2 evaluations of a block, not L (L+1), and every branch of
every sample goes through a block in the same few large products. A fork takes the values that its
parent computed for its own attention (with a parallel residual the MLP's output too), so a bypass
computes no queries, keys or scores. The last block computes only the positions whose predictions
are wanted. All of this rearranges the same sums: results are exact, up to rounding.

Shapes: B rows of a sheet, T positions, G branches, K wanted positions, D width, H heads, E = D/H.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.interventions import attention
from pipeline.interventions.operations import IN_PLACE_OF_ATTENTION
from pipeline.interventions.plan import Plan, Step
from pipeline.models.decoder import Block, Decoder

Observer = Callable[[int, Tensor], None]
"""Told after each block: its number b, and the states after it (G, B, T, D) of all branches so far.

Intervention v is in branch ``plan.carrier[b + 1][v]``. After the last block there are only the K
wanted positions. The states are the pass's own memory: read them, or copy them, then and there.
"""

CHUNK_TOKENS = {"cpu": 1024, "cuda": 65536}
"""Tokens that go through a block together; on a CPU what they need then stays in its cache."""


@dataclass(frozen=True)
class Sheet:
    """Rows of tokens, and which of their positions are wanted.

    Args:
        tokens: (B, T) int64.
        positions: (T,) or (B, T) int64, what the position embedding sees.
        wanted: (B, K) int64, indices into T; None: the last `last`.
        last: K, where `wanted` is None.
        visible: (B, T, T) bool, which tokens (last axis) each token attends to; None: all up to
            itself. Windows of local attention come on top of it.
    """

    tokens: Tensor
    positions: Tensor
    wanted: Tensor | None
    last: int
    visible: Tensor | None

    @staticmethod
    def plain(tokens: Tensor, last: int) -> Sheet:
        """Rows (B, T) of full length; wanted are their last `last` positions."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return Sheet(tokens, positions, None, last, None)

    @property
    def n_wanted(self) -> int:
        """K."""
        return self.last if self.wanted is None else self.wanted.shape[1]

    def pick(self, states: Tensor) -> Tensor:
        """The wanted positions (n, B, K, …) of states (n, B, T, …)."""
        if self.wanted is None:
            return states[:, :, states.shape[2] - self.last :]
        rows = torch.arange(self.wanted.shape[0], device=self.wanted.device)[:, None]
        return states[:, rows, self.wanted]


@dataclass(frozen=True)
class KeysValues:
    """What a block's attention reads, kept for decoding.

    Args:
        slot: branch -> its index in `keys`; branches that bypass the block have none.
        keys: (slots, B, H, T, E), rotated.
        values: (slots, B, H, T, E).
    """

    slot: dict[int, int]
    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class Front:
    """What a pass leaves.

    Args:
        states: (G, B, K, D), after the last block, at the wanted positions.
        cache: one a block, if it was asked for.
    """

    states: Tensor
    cache: list[KeysValues]


def run(
    decoder: Decoder,
    sheet: Sheet,
    plan: Plan,
    *,
    keep_cache: bool = False,
    observer: Observer | None = None,
) -> Front:
    """Read the sheet under all interventions of the plan.

    Args:
        decoder: the model.
        sheet: on the decoder's device.
        plan: for as many blocks as the decoder has.
        keep_cache: keep keys and values, (slots x B x T x 2D) a block.
        observer: told after each block.
    """
    passing = _Pass(decoder, sheet)
    states = decoder.embed(sheet.tokens, sheet.positions)[None]
    cache = []
    for number, step in enumerate(plan.steps):
        kept = passing.new_cache(step) if keep_cache else None
        wanted_only = number == len(plan.steps) - 1
        states = passing.through(decoder.block(number), states, step, wanted_only, kept)
        if kept is not None:
            cache.append(kept)
        if observer is not None:
            observer(number, states)
    return Front(states, cache)


class _Pass:
    """The parts of a pass that are the same in every block."""

    def __init__(self, decoder: Decoder, sheet: Sheet) -> None:
        self.decoder = decoder
        self.sheet = sheet
        self.batch, self.length = sheet.tokens.shape
        budget = CHUNK_TOKENS.get(decoder.device.type, max(CHUNK_TOKENS.values()))
        self.chunk_branches = max(1, budget // sheet.tokens.numel())
        rotary = decoder.rotary
        positions = sheet.positions if sheet.positions.ndim == 1 else sheet.positions[:, None]
        self.turn = None if rotary is None else rotary.at(positions, decoder.dtype)
        self.bias: dict[int | None, Tensor] = {}

    def new_cache(self, step: Step) -> KeysValues:
        attending = [b for b, operation in enumerate(step.operations) if operation is None]
        heads, size = self.decoder.heads, self.decoder.width // self.decoder.heads
        keys, values = (
            torch.empty(
                (len(attending), self.batch, heads, self.length, size),
                dtype=self.decoder.dtype,
                device=self.decoder.device,
            )
            for _ in range(2)
        )
        return KeysValues({branch: slot for slot, branch in enumerate(attending)}, keys, values)

    def through(
        self, block: Block, states: Tensor, step: Step, wanted_only: bool, kept: KeysValues | None
    ) -> Tensor:
        """The states (G', B, T or K, D) after a block, of the branches before it and its forks."""
        shape = (
            len(step.operations) + len(step.forks),
            self.batch,
            self.sheet.n_wanted if wanted_only else self.length,
            self.decoder.width,
        )
        after = states.new_empty(shape)
        for branches, operation in self._chunks(step):
            chunk = states[branches.start : branches.stop]
            hidden = self.sheet.pick(chunk) if wanted_only else chunk
            mlp = block.mlp(hidden) if block.parallel else None
            if operation is None:
                context, values = self._attend(block, chunk, branches, wanted_only, kept)
            else:
                values = block.projections.values(block.attention_norm(hidden))
                context = IN_PLACE_OF_ATTENTION[operation](values).flatten(3)
            after[branches.start : branches.stop] = block.finish(hidden, context, mlp)
            for fork in step.forks:
                if fork.parent in branches:
                    i = fork.parent - branches.start
                    context = IN_PLACE_OF_ATTENTION[fork.operation](values[i]).flatten(2)
                    after[fork.child] = block.finish(
                        hidden[i], context, None if mlp is None else mlp[i]
                    )
        return after

    def _chunks(self, step: Step) -> Iterator[tuple[range, str | None]]:
        """Runs of neighbouring branches with the same operation, as long as the budget allows."""
        start = 0
        operations = step.operations
        for branch in range(1, len(operations) + 1):
            if (
                branch == len(operations)
                or operations[branch] != operations[start]
                or branch - start == self.chunk_branches
            ):
                yield range(start, branch), operations[start]
                start = branch

    def _attend(
        self,
        block: Block,
        states: Tensor,
        branches: range,
        wanted_only: bool,
        kept: KeysValues | None,
    ) -> tuple[Tensor, Tensor]:
        """Attention of the chunk `states` (n, B, T, D).

        Returns:
            The context (n, B, T or K, D), and the values (n, B, T or K, H, E) for forks.
        """
        queries, keys, values = block.projections.all(block.attention_norm(states))
        n, heads = len(branches), self.decoder.heads
        if kept is None:
            k, v = (x.transpose(2, 3).contiguous() for x in (keys, values))
        else:
            first = kept.slot[branches.start]
            slots = slice(first, first + n)  # neighbours that attend have neighbouring slots
            k, v = kept.keys[slots], kept.values[slots]
            k.copy_(keys.transpose(2, 3))
            v.copy_(values.transpose(2, 3))
        q = queries.transpose(2, 3).contiguous()
        if self.turn is not None:  # k, v and q are (n, B, H, T, E)
            self.turn.apply_(k)
            self.turn.apply_(q)
        if wanted_only:
            q = self.sheet.pick(q.transpose(2, 3)).transpose(2, 3).contiguous()
        scale = self.decoder.attention_scale
        if self.sheet.visible is None and not (wanted_only and self.sheet.wanted is not None):
            q, k, v = (x.flatten(0, 2) for x in (q, k, v))
            mixed = attention.causal(q, k, v, scale, block.window)
        else:
            bias = self._bias(block.window)
            if wanted_only:
                bias = self.sheet.pick(bias[None])[0]
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
            mixed = attention.masked(q, k, v, scale, bias, in_order=not wanted_only)
        mixed = mixed.view(n, self.batch, heads, -1, mixed.shape[-1])
        context = mixed.transpose(2, 3).flatten(3)
        return context, self.sheet.pick(values) if wanted_only else values

    def _bias(self, window: int | None) -> Tensor:
        """(B, T, T) for `attention.masked`: 0 where a token attends, else minus infinity."""
        if window not in self.bias:
            positions = self.sheet.positions.expand(self.batch, -1)
            distance = positions[:, :, None] - positions[:, None, :]
            visible = self.sheet.visible
            if visible is None:
                visible = (distance >= 0).expand(self.batch, -1, -1)
            if window is not None:
                visible = visible & (distance < window)
            bias = torch.zeros(visible.shape, dtype=self.decoder.dtype, device=visible.device)
            self.bias[window] = bias.masked_fill_(~visible, -torch.inf)
        return self.bias[window]
