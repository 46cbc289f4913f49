"""Interventions as data: a name, and the edit of each affected block.

No model is needed here. `edits` applies an edit to a model; a `Group` says which blocks are edited
together, and is the form in which a study lists its interventions.

Source: arXiv 2501.05078, section 3.2 (one block at a time) and A.3.2 (quartiles).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from math import comb
from operator import index
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

EditLike = str | Callable[..., Any]
"""An edit by its name, or as a function made by `edit`."""

IDENTITY, HEADS, NOISE = "identity", "heads", "noise"
EDITS = (IDENTITY, "zero", "mean", "mlp-zero", "mlp-mean", "skip", HEADS, NOISE)
"""The names of the built-in edits; `edits.RULES` has the rule of each."""

OWN = re.compile(r"edits/(?:\w[\w-]*/)*\w[\w-]*\.py:[A-Za-z_]\w*")
"""An edit of a study's own: a file in the folder ``edits`` of the project, and a function in it."""

OWN_EDITS = Path("edits")
"""The folder of these files, beside params.yaml; all in it is an input of what uses one."""

BY_HEAD, BY_NEURON = (HEADS, "zero", "mean"), ("mlp-zero", "mlp-mean")
"""Built-in edits that some heads, or some neurons, may get alone."""

POSITIONS = PREFIX, SUFFIX, LAST_TOKEN = "prefix", "suffix", "last"
"""Positions that an edit may be limited to; the last token is that of the prefix."""

QUARTILES = 4

EACH, QUARTILE, FIRST, LAST, WINDOWS, RANDOM, EACH_HEAD = GROUPS = (
    "each", "quartiles", "first", "last", "windows", "random", "heads",
)  # fmt: skip
"""The kinds of groups that do not list their blocks."""


class MisfitError(ValueError):
    """A group or an intervention that means nothing.

    Args:
        got: the offending value.
        expected: the valid values.
    """

    def __init__(self, got: str, expected: str) -> None:
        super().__init__(f"{got}: expected {expected}")
        self.got, self.expected = got, expected


def edit_order(edit: str) -> tuple[int, str]:
    """Sorts names of edits: the built-in ones in the order of `EDITS`, then those of one's own."""
    return (EDITS.index(edit) if edit in EDITS else len(EDITS), edit)


def is_own(edit: EditLike) -> bool:
    """Whether an edit is a function of one's own."""
    return edit not in EDITS


@dataclass(frozen=True)
class Intervention:
    """A name, and the edit of each affected block.

    Args:
        name: ``baseline``, ``block-07``, ``quartile-1``, ``block-07.zero``, …; for readers; no code
            parses it.
        edits: block (0-based) -> edit: one of `EDITS`, a function made by `edit`, or
            ``edits/FILE.py:FUNCTION``; empty for the baseline.
        heads: the heads (0-based) that alone get the edit; needed for the edit ``heads``.
        seed: for the edit ``noise``: seed of the random directions.
        group: the kind of group it belongs to, one of `GROUPS`, ``blocks`` for an explicit list;
            with what the edits are limited to, such as ``each.suffix``.
        draw: the number of a random draw, from 1; None if there is only one.
        neurons: the columns (0-based) of the MLP's inner width that alone get the edit; None: all.
        positions: one of `POSITIONS`, which alone get the edit; None: all.
        source: the model of a study whose values a patch puts in; None: as the patch says.

    Raises:
        ValueError: a block that is no integer, a negative block, head or neuron, an unknown edit,
            or heads or neurons with an edit that cannot be limited to them.
    """

    name: str
    edits: Mapping[int, EditLike]
    heads: tuple[int, ...] | None = None
    seed: int = 0
    group: str = "blocks"
    draw: int | None = None
    neurons: tuple[int, ...] | None = None
    positions: str | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        try:
            edits = {index(block): edit for block, edit in self.edits.items()}
        except TypeError:
            blocks = [*self.edits]
            raise ValueError(f"{self.name}: blocks {blocks}; expected integers") from None
        for block in edits:
            if block < 0:
                raise ValueError(f"{self.name}: block {block} is negative; blocks start at 0")
        _require(f"{self.name}: ", edits.values(), self.heads, self.neurons, self.positions)
        # a read-only view of a sorted copy: equal interventions compare equal and stay equal
        object.__setattr__(self, "edits", MappingProxyType(dict(sorted(edits.items()))))

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.edits.items()), self.heads, self.seed))

    @property
    def blocks(self) -> tuple[int, ...]:
        """The affected blocks, ascending."""
        return tuple(self.edits)

    @property
    def placed(self) -> list[tuple[int, Edit]]:
        """The affected blocks, ascending, each with its edit."""
        return [(block, edit) for block in self.edits if (edit := self.at(block))]

    @property
    def edit(self) -> str | None:
        """The name of the edit of its blocks, several joined by ``+``; None for the baseline."""
        return "+".join(sorted(set(map(str, self.edits.values())))) or None

    def at(self, block: int) -> Edit | None:
        """The edit of a block; None if the block is unchanged."""
        if block not in self.edits:
            return None
        name = self.edits[block]
        by_head = name == HEADS or HEADS not in self.edits.values()
        return Edit(
            name,
            self.heads if by_head else None,
            self.seed if name == NOISE else None,
            self.neurons,
            self.positions,
        )


@dataclass(frozen=True)
class Edit:
    """An edit with its parameters; interventions with equal edits share their computation."""

    name: EditLike
    heads: tuple[int, ...] | None = None
    seed: int | None = None
    neurons: tuple[int, ...] | None = None
    positions: str | None = None


@dataclass(frozen=True)
class Group:
    """A line of a study's `interventions`: the blocks that are edited together, and their edit.

    Args:
        blocks: ``each`` block alone, the four ``quartiles``, the ``first`` k, the ``last`` k, all
            ``windows`` of k neighbours, k at ``random``, each of the attention ``heads`` of every
            block alone, or a list of blocks (0-based).
        edit: ``identity``, ``zero``, ``mean``, ``mlp-zero``, ``mlp-mean``, ``skip``, ``heads`` or
            ``noise``; or a function of one's own: in a study ``edits/FILE.py:FUNCTION``, a file in
            the folder ``edits`` beside params.yaml.
        k: number of blocks, for first, last, windows and random.
        draws: number of random sets of blocks, or of directions for the edit ``noise``; 1 to 1000.
        seed: of random draws.
        heads: attention heads (0-based) that alone get the edit, in place of all: of ``heads``,
            ``zero``, ``mean``, or a function of one's own.
        neurons: columns (0-based) of the MLP's inner width that alone get the edit: of
            ``mlp-zero``, ``mlp-mean``, or a function of one's own at the MLP.
        positions: ``prefix``, ``suffix``, or ``last`` (token of the prefix), which alone get the
            edit; all unless given.
        source: for an edit that reads the values of another model: the name of a model of the
            study, of the same shape.

    Raises:
        ValueError: an invalid combination.
    """

    # the configuration of pydantic, which reads this class as the schema of a study's line
    __pydantic_config__: ClassVar[Mapping[str, object]] = {"extra": "forbid", "strict": True}

    blocks: str | Sequence[int]
    edit: EditLike = IDENTITY
    k: int | None = None
    draws: int = 1
    seed: int = 0
    heads: Sequence[int] | None = None
    neurons: Sequence[int] | None = None
    positions: str | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        for name in ("blocks", "heads", "neurons"):
            if isinstance(given := getattr(self, name), Sequence) and not isinstance(given, str):
                known = all(isinstance(n, int) and 0 <= n < _MOST_NUMBERS for n in given)
                if not given or len(set(given)) < len(given) or not known:
                    got = f"{name} {tuple(given)}"
                    raise MisfitError(got, f"one or more, each once, of 0 to {_MOST_NUMBERS - 1}")
                object.__setattr__(self, name, tuple(given))
        if isinstance(self.blocks, str) and self.blocks not in GROUPS:
            raise MisfitError(f"blocks {self.blocks!r}", f"a list, or one of {GROUPS}")
        if (self.k is not None) != (self.blocks in (FIRST, LAST, WINDOWS, RANDOM)):
            raise MisfitError(
                f"blocks {self.blocks!r} with k {self.k}",
                "k with first, last, windows and random, and nowhere else",
            )
        if self.k is not None and self.k < 1:
            raise MisfitError(f"k {self.k}", "1 or more")
        several = self.blocks == RANDOM or self.edit == NOISE
        if not 1 <= self.draws <= (1000 if several else 1):
            expected = "1, or up to 1000 with blocks: random or edit: noise"
            raise MisfitError(f"draws {self.draws}", expected)
        if not 0 <= self.seed < 4_000_000:
            raise MisfitError(f"seed {self.seed}", "0 to 3999999")
        if self.blocks == EACH_HEAD and self.heads:
            raise MisfitError("heads with blocks: heads", "a list of heads with other blocks")
        heads = (0,) if self.blocks == EACH_HEAD else self.heads
        _require("", [self.edit], heads, self.neurons, self.positions)
        if self.source is not None and not is_own(self.edit):
            raise MisfitError(f"source with {self.edit}", "a function of one's own that reads it")


_MOST_NUMBERS = 2**16


def _require(
    of: str,
    edits: Collection[EditLike],
    heads: Sequence[int] | None,
    neurons: Sequence[int] | None,
    positions: str | None,
) -> None:
    """Raise for unknown edits, or some that cannot be limited to heads, neurons or positions."""
    for edit in edits:
        made = callable(edit) and hasattr(edit, "site")
        if not made and not (edit in EDITS or OWN.fullmatch(str(edit))):
            expected = f"one of {EDITS}, edits/FILE.py:FUNCTION, or a function marked @edit(site=…)"
            raise MisfitError(f"{of}edit {edit!r}", expected)
    kinds = {str(edit) for edit in edits if not is_own(edit)}
    if heads is None and HEADS in kinds:
        raise MisfitError(f"{of}heads {heads}", "one or more with the edit `heads`")
    for kind, some in (("head", heads), ("neuron", neurons)):
        if some is not None and min(some, default=-1) < 0:
            raise MisfitError(f"{of}{kind} {min(some, default='none')}", "one or more, from 0")
    if heads and HEADS not in kinds and (odd := kinds - {*BY_HEAD}):
        raise MisfitError(
            f"{of}heads {tuple(heads)} with {', '.join(sorted(odd))}",
            f"the edit `{HEADS}`, for the identity of some heads, {' or '.join(BY_HEAD[1:])}",
        )
    if neurons and (odd := kinds - {*BY_NEURON}):
        got = f"{of}neurons with {', '.join(sorted(odd))}"
        raise MisfitError(got, f"{' or '.join(BY_NEURON)}, or a function of one's own at the MLP")
    if positions is not None and positions not in POSITIONS:
        raise MisfitError(f"{of}positions {positions!r}", f"one of {POSITIONS}")


BASELINE = Intervention("baseline", {}, group="baseline")

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


def bypass(name: str, blocks: Iterable[int]) -> Intervention:
    """The intervention `name` that gives each of `blocks` identity attention."""
    return Intervention(name, dict.fromkeys(blocks, IDENTITY))


def block_name(block: int) -> str:
    """``block-07`` for block 7."""
    return f"block-{block:02d}"


def _members(group: Group, n_blocks: int, n_heads: int | None) -> Iterator[Intervention]:
    """The interventions of one group, for a model of L blocks."""
    kind = group.blocks if isinstance(group.blocks, str) else "blocks"
    scope: dict[str, Any] = {
        name: getattr(group, name) for name in ("neurons", "positions", "source")
    }
    heads: list[Any] = [group.heads]
    if kind == EACH_HEAD:
        if n_heads is None:
            raise ValueError("the group `heads` needs the number of heads")
        heads = [(head,) for head in range(n_heads)]
    of = kind
    if group.heads and group.edit != HEADS:  # apart from the blocks whose edit is whole
        of += f".head-{_joined(group.heads)}"
    of += _ending(group, with_edit=False)
    sets = product(_sets(group, n_blocks).items(), heads)
    for number, ((name, blocks), some) in enumerate(sets, 1):
        if max(blocks) >= n_blocks:
            raise ValueError(f"{name}: block {max(blocks)}; expected 0 to {n_blocks - 1}")
        if some:
            name += f".head-{_joined(some)}"
            if n_heads is not None and max(some) >= n_heads:
                raise ValueError(f"{name}: head {max(some)}; expected 0 to {n_heads - 1}")
        name, edits = name + _ending(group, with_edit=True), dict.fromkeys(blocks, group.edit)
        if group.edit != NOISE:
            draw = number if kind == RANDOM else None
            yield Intervention(name, edits, some, group=of, draw=draw, **scope)
            continue
        for direction in range(1, group.draws + 1):
            draw, seed = direction if group.draws > 1 else None, 1000 * group.seed + direction
            yield Intervention(name + _drawn(group, draw), edits, some, seed, of, draw, **scope)


def _ending(group: Group, *, with_edit: bool) -> str:
    """The end of the names of a group's interventions: the edit, and what it is limited to."""
    edit = str(group.edit).rpartition(":")[2]
    parts = [edit] if with_edit and edit not in (IDENTITY, HEADS) else []
    if group.neurons:
        many = f"{len(group.neurons)}-from-{min(group.neurons)}"
        parts.append(f"neuron-{_joined(group.neurons) if len(group.neurons) <= 4 else many}")
    return "".join(f".{part}" for part in (*parts, group.positions, group.source) if part)


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
        ends = [q * n_blocks // QUARTILES for q in range(QUARTILES + 1)]
        quartiles = enumerate(pairwise(ends), 1) if n_blocks >= QUARTILES else ()
        return {f"quartile-{q}": blocks[first:end] for q, (first, end) in quartiles}
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
