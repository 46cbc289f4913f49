"""Interventions as data: a name, and the edit of each affected block.

No model is needed here. `edits` applies an edit to a model; a `Group` says which blocks are edited
together, and is the form in which a study lists its interventions.

Source: arXiv 2501.05078, section 3.2 (one block at a time) and A.3.2 (quartiles).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from operator import index
from types import MappingProxyType

IDENTITY, HEADS, NOISE = "identity", "heads", "noise"
EDITS = (IDENTITY, "zero", "mean", "mlp-zero", "mlp-mean", "skip", HEADS, NOISE)
"""The names of all edits; `edits.RULES` has the rule of each."""

QUARTILES = 4

EACH, QUARTILE, FIRST, LAST, WINDOWS, RANDOM, EACH_HEAD = GROUPS = (
    "each", "quartiles", "first", "last", "windows", "random", "heads",
)  # fmt: skip
"""The kinds of groups that do not list their blocks."""


@dataclass(frozen=True)
class Intervention:
    """A name, and the edit of each affected block.

    Args:
        name: ``baseline``, ``block-07``, ``quartile-1``, ``block-07.zero``, …; for readers; no code
            parses it.
        edits: block (0-based) -> edit, one of `EDITS`; empty for the baseline.
        heads: for the edit ``heads``: the heads (0-based) that get the identity.
        seed: for the edit ``noise``: seed of the random directions.
        group: the kind of group it belongs to, one of `GROUPS`, ``blocks`` for an explicit list.
        draw: the number of a random draw, from 1; None if there is only one.

    Raises:
        ValueError: a block that is no integer, a negative block or head, an unknown edit, or heads
            without the edit ``heads`` or the reverse.
    """

    name: str
    edits: Mapping[int, str]
    heads: tuple[int, ...] | None = None
    seed: int = 0
    group: str = "blocks"
    draw: int | None = None

    def __post_init__(self) -> None:
        try:
            edits = {index(block): edit for block, edit in self.edits.items()}
        except TypeError:
            blocks = [*self.edits]
            raise ValueError(f"{self.name}: blocks {blocks}; expected integers") from None
        for block, edit in edits.items():
            if block < 0:
                raise ValueError(f"{self.name}: block {block} is negative; blocks start at 0")
            if edit not in EDITS:
                raise ValueError(f"{self.name}: no edit {edit!r}; expected one of {EDITS}")
        if (HEADS in edits.values()) != bool(self.heads):
            raise ValueError(f"{self.name}: heads {self.heads}; expected with the edit `heads`")
        if self.heads and min(self.heads) < 0:
            raise ValueError(f"{self.name}: head {min(self.heads)} is negative; heads start at 0")
        # a read-only view of a sorted copy: equal interventions compare equal and stay equal
        object.__setattr__(self, "edits", MappingProxyType(dict(sorted(edits.items()))))

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.edits.items()), self.heads, self.seed))

    @property
    def blocks(self) -> tuple[int, ...]:
        """The affected blocks, ascending."""
        return tuple(self.edits)

    @property
    def edit(self) -> str | None:
        """The edit of its blocks, several joined by ``+``; None for the baseline."""
        return "+".join(sorted(set(self.edits.values()))) or None

    def at(self, block: int) -> Edit | None:
        """The edit of a block; None if the block is unchanged."""
        if block not in self.edits:
            return None
        name = self.edits[block]
        return Edit(
            name, self.heads if name == HEADS else None, self.seed if name == NOISE else None
        )


@dataclass(frozen=True, order=True)
class Edit:
    """An edit with its parameters; interventions with equal edits share their computation."""

    name: str
    heads: tuple[int, ...] | None = None
    seed: int | None = None


BASELINE = Intervention("baseline", {}, group="baseline")


@dataclass(frozen=True)
class Group:
    """A line of a study's `interventions`: the blocks that are edited together, and their edit.

    Args:
        blocks: ``each`` block alone, the four ``quartiles``, the ``first`` k, the ``last`` k, all
            ``windows`` of k neighbours, k at ``random``, each of the attention ``heads`` of every
            block alone, or a list of blocks (0-based).
        edit: one of `EDITS`.
        k: number of blocks, for first, last, windows and random.
        draws: number of random sets of blocks, or of directions for the edit ``noise``.
        seed: of random draws.
        heads: for a list of blocks with the edit ``heads``: the heads.

    Raises:
        ValueError: an invalid combination.
    """

    blocks: str | tuple[int, ...]
    edit: str = IDENTITY
    k: int | None = None
    draws: int = 1
    seed: int = 0
    heads: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        listed = not isinstance(self.blocks, str)
        if listed and (not self.blocks or len(set(self.blocks)) < len(self.blocks)):
            raise ValueError(f"blocks {self.blocks}: expected one or more, each once")
        if not listed and self.blocks not in GROUPS:
            raise ValueError(f"blocks {self.blocks!r}: expected a list, or one of {GROUPS}")
        if self.edit not in EDITS:
            raise ValueError(f"edit {self.edit!r}: expected one of {EDITS}")
        if (self.k is not None) != (self.blocks in (FIRST, LAST, WINDOWS, RANDOM)):
            raise ValueError(f"blocks {self.blocks!r} with k {self.k}: expected k with first, "
                             "last, windows and random, and nowhere else")  # fmt: skip
        if self.k is not None and self.k < 1:
            raise ValueError(f"k {self.k}: expected 1 or more")
        if self.draws < 1 or (self.draws > 1 and self.blocks != RANDOM and self.edit != NOISE):
            raise ValueError(f"draws {self.draws}: expected 1, or more with blocks: random or "
                             "edit: noise")  # fmt: skip
        if (self.edit == HEADS) != (self.blocks == EACH_HEAD or bool(self.heads)):
            raise ValueError("the edit `heads` goes with blocks: heads, or with a list of heads")
        if self.heads and not listed:
            raise ValueError("a list of heads goes with a list of blocks")


SWEEP = (Group(EACH), Group(QUARTILE))
"""The paper's groups: each block alone, then each quartile of blocks."""


def sweep(
    n_blocks: int, groups: Sequence[Group] = SWEEP, n_heads: int | None = None
) -> tuple[Intervention, ...]:
    """All interventions of a model: the baseline, then those of each group.

    Args:
        n_blocks: L, at least 1. Below four there are no quartiles.
        groups: the paper's unless given.
        n_heads: H; needed for the group ``heads``; listed heads are checked against it.

    Returns:
        1 + L + 4 interventions (1 + L where L < 4) for the paper's groups, in that order.

    Raises:
        ValueError: a group that does not fit the model, or two interventions of one name.
    """
    if n_blocks < 1:
        raise ValueError(f"{n_blocks} blocks; a model has at least one")
    made = [BASELINE]
    for group in groups:
        made += _members(group, n_blocks, n_heads)
    names = [one.name for one in made]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"intervention {repeated} twice: expected each once; remove one")
    return tuple(made)


def bypass(name: str, blocks: range | tuple[int, ...]) -> Intervention:
    """The intervention `name` that gives each of `blocks` identity attention."""
    return Intervention(name, dict.fromkeys(blocks, IDENTITY))


def block_name(block: int) -> str:
    """``block-07`` for block 7."""
    return f"block-{block:02d}"


def quartile_blocks(quartile: int, n_blocks: int) -> range:
    """The blocks of quartile q of L blocks: floor((q-1)L/4) to floor(qL/4)-1, 0-based.

    Raises:
        ValueError: `quartile` is not 1 to 4, or there are fewer than four blocks.
    """
    if quartile not in range(1, QUARTILES + 1):
        raise ValueError(f"quartile {quartile}: expected 1 to {QUARTILES}")
    if n_blocks < QUARTILES:
        raise ValueError(f"{n_blocks} blocks have no quartiles; at least {QUARTILES} are needed")
    return range((quartile - 1) * n_blocks // QUARTILES, quartile * n_blocks // QUARTILES)


def _members(group: Group, n_blocks: int, n_heads: int | None) -> Iterator[Intervention]:
    """The interventions of one group, for a model of L blocks."""
    kind = group.blocks if isinstance(group.blocks, str) else "blocks"
    suffix = "" if group.edit in (IDENTITY, HEADS) else f".{group.edit}"
    if kind == EACH_HEAD and n_heads is None:
        raise ValueError("the group `heads` needs the number of heads")
    heads = [(head,) for head in range(n_heads or 0)] if kind == EACH_HEAD else [group.heads]
    sets = ((name, of, some) for name, of in _sets(group, n_blocks).items() for some in heads)
    for number, (name, blocks, some) in enumerate(sets, 1):
        if blocks and max(blocks) >= n_blocks:
            raise ValueError(f"{name}: block {max(blocks)}; expected 0 to {n_blocks - 1}")
        if some:
            name += f".head-{_joined(some)}"
            if n_heads is not None and max(some) >= n_heads:
                raise ValueError(f"{name}: head {max(some)}; expected 0 to {n_heads - 1}")
        name, edits = name + suffix, dict.fromkeys(blocks, group.edit)
        if group.edit != NOISE:
            draw = number if kind == RANDOM else None
            yield Intervention(name, edits, some, group=kind, draw=draw)
            continue
        for direction in range(1, group.draws + 1):
            draw, seed = direction if group.draws > 1 else None, 1000 * group.seed + direction
            yield Intervention(name + _drawn(group, draw), edits, some, seed, kind, draw)


def _drawn(group: Group, draw: int | None) -> str:
    """The end of the name of a draw; seed 0 and a single draw are left out."""
    return (f"-seed-{group.seed}" if group.seed else "") + (f"-draw-{draw}" if draw else "")


def _sets(group: Group, n_blocks: int) -> dict[str, tuple[int, ...]]:
    """Name -> blocks of each set of blocks of a group, before heads and edit are named."""
    k, blocks = group.k or 0, tuple(range(n_blocks))
    if k > n_blocks:
        raise ValueError(f"{group.blocks} {k} blocks; the model has {n_blocks}")
    if not isinstance(group.blocks, str):
        listed = tuple(sorted(group.blocks))
        return {f"block{'s' if len(listed) > 1 else ''}-{_joined(listed)}": listed}
    if group.blocks == QUARTILE:
        quartiles = range(1, QUARTILES + 1) if n_blocks >= QUARTILES else ()
        return {f"quartile-{q}": tuple(quartile_blocks(q, n_blocks)) for q in quartiles}
    if group.blocks == FIRST:
        return {f"first-{k}": blocks[:k]}
    if group.blocks == LAST:
        return {f"last-{k}": blocks[n_blocks - k :]}
    if group.blocks == WINDOWS:
        windows = [blocks[first : first + k] for first in range(n_blocks - k + 1)]
        return {f"window-{window[0]:02d}-to-{window[-1]:02d}": window for window in windows}
    if group.blocks == RANDOM and group.edit == NOISE:  # only directions vary
        return {f"random-{k}": _random_sets(n_blocks, k, 1, group.seed)[0]}
    if group.blocks == RANDOM:
        sets = enumerate(_random_sets(n_blocks, k, group.draws, group.seed), 1)
        return {f"random-{k}{_drawn(group, draw)}": chosen for draw, chosen in sets}
    return {block_name(block): (block,) for block in blocks}


def _random_sets(n_blocks: int, k: int, draws: int, seed: int) -> list[tuple[int, ...]]:
    """Distinct random sets of k of L blocks; the first sets stay the same when `draws` grows."""
    if draws > comb(n_blocks, k):
        raise ValueError(
            f"{draws} random draws of {k} of {n_blocks} blocks; expected at most "
            f"{comb(n_blocks, k)}, for there are no more"
        )
    source = random.Random(f"{seed} {k} {n_blocks}")  # noqa: S311  no secret
    if comb(n_blocks, k) <= 10_000:
        every = list(combinations(range(n_blocks), k))
        source.shuffle(every)
        return every[:draws]
    sets: dict[tuple[int, ...], None] = {}
    while len(sets) < draws:
        sets[tuple(sorted(source.sample(range(n_blocks), k)))] = None
    return list(sets)


def _joined(numbers: Sequence[int]) -> str:
    return "+".join(f"{number:02d}" for number in numbers)
