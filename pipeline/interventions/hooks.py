"""Hooks on a stock model's own modules: they append rows to a batch, and edit activations.

The model does the computation; hooks only append rows at the right blocks, and apply the edits to
the rows that have them.

Shapes: B rows of tokens in a call, n rows in a block, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pipeline.interventions.edits import ATTENTION, BLOCK, CONTEXT, MLP, RULES, Here, provided
from pipeline.interventions.interventions import Edit, Intervention
from pipeline.models.modules import attached, forward_replaced, states_in, states_out
from pipeline.models.precision import without_hooks
from pipeline.models.sites import Anatomy, Site
from pipeline.workflow.errors import bad_input

Means = Mapping[tuple[int, str], Tensor]
"""(block, site) -> mean (D,) of the values there under the baseline, for edits that need it."""

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


def require_editable(known: Anatomy, interventions: Sequence[Intervention]) -> None:
    """Raise if this model's blocks lack the site of an edit.

    Raises:
        InputError: says what was found and what was expected.
    """
    for intervention in interventions:
        heads, edits = intervention.heads, intervention.edits.values()
        if heads and max(heads) >= known.n_heads:
            raise bad_input(
                what=f"intervention {intervention.name}",
                got=f"head {max(heads)}",
                expected=f"heads 0 to {known.n_heads - 1}",
                remedy="name heads that the model has",
            )
        odd = [edit for edit in edits if RULES[edit].site in (ATTENTION, MLP)]
        if odd and not known.additive:
            raise bad_input(
                what=f"intervention {intervention.name}, on {type(known.model).__name__}",
                got="blocks that return more than their input plus one output projection's and "
                "one MLP matrix's output",
                expected=f"blocks that hand on their input where both are zero, for {odd[0]}",
                remedy="use the edits identity, heads and skip, which such a model allows",
            )


@contextmanager
def hooked(
    known: Anatomy,
    blocks: Sequence[BlockRows],
    batch: int = 0,
    means: Means | None = None,
    *,
    fast: bool = True,
) -> Iterator[None]:
    """Append and edit rows in the blocks of a model while the context lasts.

    The weights are not touched; afterwards, even after an exception, the model's results are bit
    for bit those from before.

    Args:
        known: of the model.
        blocks: one per block; their rows may change between calls of the model.
        batch: B, rows of tokens in a call that appends rows.
        means: for edits that need them.
        fast: replace transformers' written-out GELUs on a CPU by PyTorch's kernel, which is six
            times as fast, and in float32 differs by one unit of rounding.
    """
    handles = (
        handle
        for number, (site, rows) in enumerate(zip(known.sites, blocks, strict=True))
        if batch or rows.edits  # also without edits, since a mask has fewer rows
        for handle in _Hooks(known, site, rows, number, batch, means or {}).register()
    )
    slow = known.slow_activations if fast and known.model.device.type == "cpu" else ()
    with attached(handles), forward_replaced(slow, lambda stock: partial(_gelu, stock)):
        yield


def _gelu(stock: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh") if x.dtype == torch.float32 else stock(x)


class _Hooks:
    """The hooks of one block: they append rows, and apply the edits of `rows`."""

    def __init__(
        self, known: Anatomy, site: Site, rows: BlockRows, number: int, batch: int,
        means: Means,
    ) -> None:  # fmt: skip
        self.site, self.rows, self.number, self.batch = site, rows, number, batch
        self.batched, self.means, self.n_heads = known.batched, means, known.n_heads
        self.size = self.length = 0  # rows and positions in the block, once it has begun
        self.values: dict[Edit, Tensor] = {}
        self.entered: dict[Edit, Tensor] = {}
        edits_mlp = any(RULES[edit.name].site == MLP for edit in rows.edits)
        # the MLP's output for an appended row equals that of the row it copies
        self.shares_mlp = known.parallel and rows.appended is not None and not edits_mlp

    def register(self) -> Iterable[Any]:
        """Register the hooks that the edits need; rows may be removed later, edits not added."""
        sites = {RULES[edit.name].site for edit in self.rows.edits}
        yield self.site.block.register_forward_pre_hook(self._begin, with_kwargs=True)
        if any(RULES[edit.name].needs_values for edit in self.rows.edits):
            yield self.site.source.register_forward_hook(self._keep_values)
        if CONTEXT in sites:
            yield self.site.mixer.register_forward_pre_hook(self._edit_context)
        for name, module in ((ATTENTION, self.site.attention), (MLP, self.site.mlp)):
            if name in sites and module is not None:
                yield module.register_forward_hook(self._editor(name))
        if self.site.whole_mlp is not None and (self.shares_mlp or self.rows.last):
            yield self.site.whole_mlp.register_forward_pre_hook(self._narrow_mlp)
            yield self.site.whole_mlp.register_forward_hook(self._widen_mlp)
        if BLOCK in sites:
            yield self.site.block.register_forward_hook(self._editor(BLOCK))

    def _begin(self, _module: nn.Module, args: Any, kwargs: Any) -> Any:
        hidden = states_in(args, kwargs)
        if self.rows.appended is not None:
            hidden = torch.cat([hidden, hidden[self.rows.appended]])
        self.size, self.length = hidden.shape[:2]
        for edit, rows in self.rows.edits.items():
            if RULES[edit.name].site == BLOCK:
                self.entered[edit] = hidden[rows].clone()  # the block may change it in place
        if not self.batch or self.size == self.batch:
            return None
        args, kwargs = self._widened(args, ("args",)), self._widened(kwargs, ())
        if args:
            return (hidden, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": hidden}

    def _widened(self, tree: Any, path: tuple[str | int, ...]) -> Any:
        """Repeat batched arguments for each branch; the body made them for the rows of tokens."""
        if isinstance(tree, Tensor) and path in self.batched and path not in _STATES:
            if len(tree) % self.batch:  # such as one row of positions for all
                return tree
            return tree.repeat(self.size // self.batch, *[1] * (tree.ndim - 1))
        if isinstance(tree, dict):
            return {key: self._widened(value, (*path, key)) for key, value in tree.items()}
        if type(tree) in (tuple, list):
            return type(tree)(self._widened(x, (*path, i)) for i, x in enumerate(tree))
        return tree

    def _narrow_mlp(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Leave out rows and positions whose output is known or not needed."""
        rows = self.size - len(provided(self.rows.appended)) if self.shares_mlp else self.size
        positions = slice(-self.rows.last if self.rows.last else None, None)
        # contiguous, since some families call `view` on their input
        return tuple(x[:rows, positions].contiguous() if isinstance(x, Tensor) else x for x in args)

    def _widen_mlp(self, _module: nn.Module, _args: Any, returned: Tensor) -> Tensor:
        if self.shares_mlp:
            returned = torch.cat([returned, returned[provided(self.rows.appended)]])
        return F.pad(returned, (0, 0, self.length - returned.shape[1], 0))

    def _keep_values(self, _module: nn.Module, _args: Any, returned: Tensor) -> None:
        projected = self._by_row(returned)
        for edit, rows in self.rows.edits.items():
            if RULES[edit.name].needs_values:
                self.values[edit] = self.site.values.pick(projected[rows])

    def _edit_context(self, _module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (self._edited(CONTEXT, args[0]), *args[1:])

    def _editor(self, where: str) -> Callable[[nn.Module, Any, Any], Any]:
        def edit(_module: nn.Module, _args: Any, returned: Any) -> Any:
            made = self._edited(where, states_out(returned))
            return made if isinstance(returned, Tensor) else (made, *returned[1:])

        return edit

    def _edited(self, where: str, passing: Tensor) -> Tensor:
        """A copy of `passing` with the edits of this site applied; others may read the original."""
        result = passing.clone()
        by_row = self._by_row(result)
        for edit, rows in self.rows.edits.items():
            rule = RULES[edit.name]
            if rule.site == where:
                now, entered = by_row[rows], self.entered.pop(edit, None)
                if entered is not None and entered.shape != now.shape:
                    raise bad_input(
                        f"the edit {edit.name} of block {self.number}, while it is in force",
                        "an evaluation that appends rows",
                        "complete and score outside of `bypassed`",
                        "leave the context, and name both edits in one intervention",
                    )
                by_row[rows] = rule.apply(
                    Here(
                        now=now,
                        entered=entered,
                        values=self.values.pop(edit, None),
                        project=self._project,
                        mean=self.means.get((self.number, where)),
                        edit=edit,
                        n_heads=self.n_heads,
                    )
                )
        return result

    def _project(self, mixed: Tensor) -> Tensor:
        site = self.site
        if site.mixer is not site.attention:
            mixed = without_hooks(site.mixer, mixed)
        return without_hooks(site.attention, mixed)

    def _by_row(self, x: Tensor) -> Tensor:
        """A view (rows, T, …) of tensors that some families pass as (rows x T, …)."""
        x = x.view(self.size, -1, x.shape[-1]) if x.ndim == 2 else x
        return x.flatten(2)
