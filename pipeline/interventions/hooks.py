"""Hooks on a stock model's own modules: they append rows to a batch, and edit activations.

Shapes: B rows of tokens in a call, n rows in a block, T positions, D width.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pipeline.interventions.edits import (
    ENTERED,
    MEAN,
    OTHER,
    VALUES,
    Here,
    Source,
    rule_of,
    site_of,
)
from pipeline.interventions.interventions import LAST_TOKEN, NOISE, PREFIX, Edit, Intervention
from pipeline.models.modules import attached, forward_replaced, states_in, states_out
from pipeline.models.places import weight_of
from pipeline.models.sites import (
    ATTENTION,
    CONTEXT,
    INNER,
    KEY,
    MLP,
    QUERY,
    SITES,
    VALUE,
    Anatomy,
    Tap,
)
from pipeline.workflow.errors import bad_input

Means = Mapping[tuple[int, str], Tensor]
"""(block, site) -> mean (D,) of the values there under the baseline, for edits that need it."""

Others = dict[tuple[Source, int, str], Tensor]
"""(source, block, site) -> the values there in the source, (B, T, F), or (1, T, F) for all rows."""

Selection = slice | Tensor
"""Rows of a batch."""

_STATES = {("args", 0), ("hidden_states",)}
"""Paths of a block's first argument."""


@dataclass
class BlockRows:
    """The work of the hooks in one block.

    Args:
        appended: (n,) int64, the rows that are appended once more before the block; None: none.
        edits: edit -> the rows, after appending, that have it.
        last: the number of final positions of the block's output that are needed; None: all.
    """

    appended: Tensor | None = None
    edits: dict[Edit, Selection] = field(default_factory=dict)
    last: int | None = None


@dataclass
class Beside:
    """What the edits of a pass need beside the values of their rows.

    Args:
        means: for edits that need them.
        start: the first position of the suffix among those that a call reads; (B,) one for each
            row of tokens.
        others: for edits that have a source.
    """

    means: Means = field(default_factory=dict)
    start: int | Tensor = 0
    others: Others = field(default_factory=dict)


def require_editable(known: Anatomy, interventions: Sequence[Intervention]) -> None:
    """Raise if this model's blocks lack the site of an edit, or some of its heads or neurons."""
    for one in interventions:
        for block, edit in one.placed:
            for misfit in _misfits(known, edit, block):
                what = f"intervention {one.name}, on {type(known.model).__name__}"
                raise bad_input(what, *misfit)


def _misfits(known: Anatomy, edit: Edit, block: int) -> Iterator[tuple[str, str, str]]:
    """What a model lacks for an edit: found, expected, remedy."""
    where = site_of(edit)
    if where in (ATTENTION, MLP, INNER) and not known.additive:
        yield (
            "blocks that return more than their input plus one output projection's and one MLP "
            "matrix's output",
            f"blocks that hand on their input where both are zero, for {edit.name}",
            "use the edits identity, heads and skip, which such a model allows",
        )
    if known.sites[block].tap(where) is None:
        got = f"no module that returns the {where} alone"
        yield got, f"a {where} for the edit {edit.name}", "use another site"
    if edit.neurons and where != INNER:
        yield f"neurons of an edit at {where}", "an edit at mlp", "leave them out"
    if edit.heads and (where not in BY_HEAD or edit.name == NOISE):
        got = f"heads of an edit at {where}, where heads are not apart"
        yield got, "an edit at attention, context, query, key or value", "leave them out"
    some = edit.heads or edit.neurons
    if some and max(some) >= (most := _parts(known, where)):
        kind = "head" if edit.heads else "neuron"
        expected = f"{kind}s 0 to {most - 1}"
        yield f"{kind} {max(some)}", expected, f"name {kind}s that the model has"


BY_HEAD = (CONTEXT, QUERY, KEY, VALUE)
"""Sites whose columns are one head after the other."""


def _parts(known: Anatomy, where: str) -> int:
    """The heads or neurons side by side at a site."""
    if where == INNER:
        matrix: Any = known.sites[0].mlp
        return weight_of(matrix).shape[1]
    values = known.sites[0].values
    return values.groups if where in (KEY, VALUE) else values.heads


@contextmanager
def hooked(
    known: Anatomy,
    blocks: Sequence[BlockRows],
    batch: int = 0,
    beside: Beside | None = None,
    *,
    fast: bool = True,
) -> Iterator[None]:
    """Append and edit rows in the blocks of a model while the context lasts; see `bypassed`.

    Args:
        known: of the model.
        blocks: one per block; their rows may change between calls of the model.
        batch: B, rows of tokens in a call that appends rows.
        beside: for edits that need more than their rows; may change between calls.
        fast: replace transformers' written-out GELUs on a CPU by PyTorch's kernel, which is six
            times as fast, and in float32 differs by one unit of rounding.
    """
    handles = (
        handle
        for number, rows in enumerate(blocks)
        if batch or rows.edits  # also without edits, since a mask has fewer rows
        for handle in _Hooks(known, rows, number, batch, beside or Beside()).register()
    )
    slow = known.slow_activations if fast and known.model.device.type == "cpu" else ()
    with attached(handles), forward_replaced(slow, lambda stock: partial(_gelu, stock)):
        yield


def _gelu(stock: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh") if x.dtype == torch.float32 else stock(x)


class _Hooks:
    """The hooks of one block."""

    def __init__(
        self, known: Anatomy, rows: BlockRows, number: int, batch: int, beside: Beside
    ) -> None:
        self.known, self.site, self.rows, self.number = known, known.sites[number], rows, number
        self.batch, self.beside = batch, beside
        self.size = self.length = 0  # rows and positions in the block, once it has begun
        self.rules = {edit: (rule_of(edit.name), site_of(edit)) for edit in rows.edits}
        self.given: dict[tuple[Edit, str], Tensor] = {}
        edits_mlp = any(where in (MLP, INNER) for _, where in self.rules.values())
        # the rows whose MLP's output that of an appended row equals
        self.copied = rows.appended if known.parallel and not edits_mlp else None

    def register(self) -> Iterable[Any]:
        """Register the hooks that the edits need; rows may be removed later, edits not added."""
        sites = {where for _, where in self.rules.values()}
        yield self.site.block.register_forward_pre_hook(self._begin, with_kwargs=True)
        if any(VALUES in rule.needs for rule, _ in self.rules.values()):
            yield self.site.source.register_forward_hook(self._keep_values)
        for where in SITES:
            if where in sites and (tap := self.site.tap(where)) is not None:
                yield attach(tap, partial(self._edited, where, tap.columns))
        if self.site.whole_mlp is not None and (self.copied is not None or self.rows.last):
            yield self.site.whole_mlp.register_forward_pre_hook(self._narrow_mlp)
            yield self.site.whole_mlp.register_forward_hook(self._widen_mlp)

    def _begin(self, _module: nn.Module, args: Any, kwargs: Any) -> Any:
        hidden = states_in(args, kwargs)
        if self.rows.appended is not None:
            hidden = torch.cat([hidden, hidden[self.rows.appended]])
        self.size, self.length = hidden.shape[:2]
        for edit, rows in self.rows.edits.items():
            if ENTERED in self.rules[edit][0].needs:  # the block may change it in place
                self.given[edit, ENTERED] = hidden[rows].clone()
        if not self.batch or self.size == self.batch:
            return None
        return self._widened(args, ("args",), hidden), self._widened(kwargs, (), hidden)

    def _widened(self, tree: Any, path: tuple[str | int, ...], hidden: Tensor) -> Any:
        """Repeat batched arguments for each branch; the body made them for the rows of tokens."""
        if path in _STATES:
            return hidden
        if isinstance(tree, Tensor) and path in self.known.batched:
            if len(tree) % self.batch:  # such as one row of positions for all
                return tree
            return tree.repeat(self.size // self.batch, *[1] * (tree.ndim - 1))
        if isinstance(tree, dict):
            return {key: self._widened(value, (*path, key), hidden) for key, value in tree.items()}
        if type(tree) in (tuple, list):
            return type(tree)(self._widened(x, (*path, i), hidden) for i, x in enumerate(tree))
        return tree

    def _narrow_mlp(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Leave out rows and positions whose output is known or not needed."""
        rows = self.size - (0 if self.copied is None else len(self.copied))
        positions = slice(-self.rows.last if self.rows.last else None, None)
        # contiguous, since some families call `view` on their input
        return tuple(x[:rows, positions].contiguous() if isinstance(x, Tensor) else x for x in args)

    def _widen_mlp(self, _module: nn.Module, _args: Any, returned: Tensor) -> Tensor:
        if self.copied is not None:
            returned = torch.cat([returned, returned[self.copied]])
        return F.pad(returned, (0, 0, self.length - returned.shape[1], 0))

    def _keep_values(self, _module: nn.Module, _args: Any, returned: Tensor) -> None:
        projected = self._by_row(returned)
        for edit, rows in self.rows.edits.items():
            if VALUES in self.rules[edit][0].needs:
                self.given[edit, VALUES] = self.site.values.pick(projected[rows])

    def _edited(self, where: str, columns: Selection, passing: Tensor) -> Tensor:
        """A copy of `passing` with the edits of this site applied; others may read the original."""
        result = passing.clone()
        by_row = self._by_row(result)
        for edit, rows in self.rows.edits.items():
            rule, site = self.rules[edit]
            if site != where:
                continue
            whole = by_row[rows]
            now = whole[..., columns]
            if not len(now):
                continue
            given = self._beside(edit, rows, now)
            here = Here(now, self.site.project, edit, self.site.values.heads, given)
            before = now.clone() if edit.heads or edit.neurons or edit.positions else now
            made = rule(here)
            if not isinstance(made, Tensor) or made.shape != before.shape:
                got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
                raise bad_input(
                    f"the edit {rule.name} of block {self.number}",
                    f"{got} from its function",
                    f"a tensor {tuple(before.shape)}, as here.now",
                    "return new values for all rows, positions and dimensions",
                )
            whole[..., columns] = self._limited(edit, where, rows, before, made.to(before.dtype))
            by_row[rows] = whole
        return result

    def _beside(self, edit: Edit, rows: Selection, now: Tensor) -> dict[str, Tensor]:
        """What an edit needs beyond the values at its site, for its rows."""
        rule, where = self.rules[edit]
        given = {n: self.given.pop((edit, n)) for n in (VALUES, ENTERED) if n in rule.needs}
        if rule.source is not None:
            others = self.beside.others[rule.source, self.number, where]
            given[OTHER] = (
                others if len(others) == 1 else others[self._samples(rows).to(others.device)]
            )
        for need, x in given.items():
            x = x[:, -now.shape[1] :].to(now)  # the last positions may be the only ones computed
            given[need] = x.expand(len(now), -1, -1) if len(x) == 1 else x
            if given[need].shape[:2] != now.shape[:2]:
                raise bad_input(
                    f"the edit {rule.name} of block {self.number}, while it is in force",
                    "an evaluation that appends rows",
                    "complete and score outside of `bypassed`",
                    "leave the context, and name both edits in one intervention",
                )
        if MEAN in rule.needs:
            given[MEAN] = self.beside.means[self.number, where]
        return given

    def _limited(
        self, edit: Edit, where: str, rows: Selection, before: Tensor, made: Tensor
    ) -> Tensor:
        """The edited values in the heads, neurons and positions of the edit, else those before."""
        if some := edit.heads or edit.neurons:
            chosen = torch.zeros(_parts(self.known, where), dtype=torch.bool)
            chosen[list(some)] = True
            chosen = chosen.repeat_interleave(before.shape[-1] // len(chosen)).to(before.device)
            made = torch.where(chosen, made, before)
        if edit.positions:
            # the last positions that are read may be the only ones computed
            at = torch.arange(self.length, device=before.device)[-before.shape[1] :]
            start = torch.as_tensor(self.beside.start, device=before.device)
            start = start.expand(self.batch or self.size)[self._samples(rows), None]
            within = {PREFIX: at < start, LAST_TOKEN: at == start - 1}
            made = torch.where(within.get(edit.positions, at >= start)[..., None], made, before)
        return made

    def _samples(self, rows: Selection) -> Tensor:
        """The row of tokens that each of some rows reads."""
        return torch.arange(self.size, device=self.known.model.device)[rows] % (
            self.batch or self.size
        )

    def _by_row(self, x: Tensor) -> Tensor:
        """A view (rows, T, …) of tensors that some families pass as (rows x T, …)."""
        x = x.view(self.size, -1, x.shape[-1]) if x.ndim == 2 else x
        return x.flatten(2)


def attach(tap: Tap, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
    """Register a hook that changes the values which pass at a tap."""

    def received(_module: nn.Module, args: Any) -> Any:
        return (change(args[0]), *args[1:])

    def returned(_module: nn.Module, _args: Any, made: Any) -> Any:
        changed = change(states_out(made))
        return changed if isinstance(made, Tensor) else (changed, *made[1:])

    if tap.entering:
        return tap.module.register_forward_pre_hook(received)
    return tap.module.register_forward_hook(returned)
