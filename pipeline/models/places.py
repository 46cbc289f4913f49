"""Places in a model that may hold a memory, with the weights and the units of each.

Two matrices of each block write to the stream: attention's output projection, and the MLP's last
matrix. A *unit* is an input of one of them: a dimension of a head's values, or a neuron.

Shapes: H heads, E size of a head, I inputs of a matrix.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from pipeline.models.grids import ATTENTION, BOTH, GRIDS, HEAD, MLP, NEURON_GROUPS, NEURONS
from pipeline.models.sites import KEY, QUERY, VALUE, anatomy, writing
from pipeline.workflow.errors import bad_input

ALL = slice(None)
"""Every row, or every column, of a matrix."""
Masks = Mapping[str, Tensor]
"""Name of a parameter -> bool of its shape: the weights that belong to a place."""


@dataclass(frozen=True, order=True)
class Place:
    """Part of a block.

    Args:
        block: 0-based.
        part: `ATTENTION`, `MLP`, `BOTH`, `HEAD` or `NEURONS`.
        index: of a head, or of a group of neurons; else 0.
    """

    block: int
    part: str
    index: int = 0

    @property
    def name(self) -> str:
        """As the tables have it, such as ``block-03`` or ``block-03.head-01``."""
        part = "" if self.part == BOTH else f".{self.part}"
        index = f"-{self.index:02}" if self.part in (HEAD, NEURONS) else ""
        return f"block-{self.block:02}{part}{index}"


def grid(model: PreTrainedModel, kind: str) -> list[Place]:
    """All places of one kind of `grids.GRIDS`, in the order of the blocks."""
    known = anatomy(model)
    parts = (BOTH, 1), (HEAD, known.sites[0].values.heads), (NEURONS, NEURON_GROUPS)
    part, count = dict(zip(GRIDS, parts, strict=True))[kind]
    return [Place(b, part, i) for b in range(len(known.sites)) for i in range(count)]


def writers(model: PreTrainedModel) -> list[nn.Module]:
    """The matrices that write to the stream, attention's and the MLP's of each block in turn.

    Raises:
        InputError: a block without an MLP, or one that does not add both to the stream.
    """
    known = anatomy(model)
    if not known.additive:
        raise bad_input(
            "localization",
            type(model).__name__,
            "a model whose blocks add attention and MLP to the stream",
            "take another model",
        )
    return writing(known.sites)


def units(model: PreTrainedModel, place: Place) -> tuple[slice, slice]:
    """The inputs of the two matrices of the place's block that belong to the place."""
    site = anatomy(model).sites[place.block]
    own = slice(2 * place.block, 2 * place.block + 2)
    attention, mlp = (weight_of(module).shape[1] for module in writers(model)[own])
    count = site.values.heads if place.part == HEAD else NEURON_GROUPS
    size = (attention if place.part == HEAD else mlp) // count
    some = slice(place.index * size, (place.index + 1) * size)
    return (
        {BOTH: slice(attention), ATTENTION: slice(attention), HEAD: some}.get(place.part, slice(0)),
        {BOTH: slice(mlp), MLP: slice(mlp), NEURONS: some}.get(place.part, slice(0)),
    )


def weight_of(module: nn.Module, stored: Tensor | None = None) -> Tensor:
    """(O, I), a view of the weight of a `Linear` or `Conv1D`, or of what is stored like it."""
    weight: Tensor = module.weight if stored is None else stored  # type: ignore[assignment]
    return weight.T if isinstance(module, Conv1D) else weight


def masks(model: PreTrainedModel, places: Iterable[Place]) -> dict[str, Tensor]:
    """The weights of places: all that compute what they write, without norms.

    Of a head its rows of the projections of queries, keys and values, and its columns of the output
    projection; of neurons their rows of the matrices before the last, and their columns of that.

    Raises:
        InputError: heads of a model whose heads share keys and values.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, Tensor] = {}
    for place in places:
        for module, rows, columns in _own(model, place):
            for parameter in module.parameters(recurse=False):
                mask = torch.zeros(parameter.shape, dtype=torch.bool)
                if parameter.ndim == 2:
                    weight_of(module, mask)[rows, columns] = True
                else:  # a bias, of the rows alone
                    mask[rows] = columns == ALL
                if mask.any():
                    name = names[id(parameter)]
                    found[name] = found.get(name, mask) | mask
    return found


def _own(model: PreTrainedModel, place: Place) -> Iterator[tuple[nn.Module, slice | Tensor, slice]]:
    """Modules, with the rows and the columns of their weights that belong to a place.

    A bias belongs to the rows, if all columns do.
    """
    site = anatomy(model).sites[place.block]
    if place.part in (ATTENTION, MLP, BOTH):
        modules = {ATTENTION: site.attention, MLP: site.mlp}
        chosen = [module for name, module in modules.items() if place.part in (name, BOTH)]
        for child in site.block.children():
            if any(module in chosen for module in child.modules()):
                yield from ((module, ALL, ALL) for module in child.modules())
        return
    of_attention, of_mlp = units(model, place)
    if place.part == HEAD:
        yield site.attention, ALL, of_attention
        for where in (QUERY, KEY, VALUE):
            tap, heads = site.tap(where), site.values.heads
            if tap is None or site.values.groups != heads:
                raise bad_input(
                    f"heads of {type(model).__name__}",
                    f"{site.values.groups} heads of keys and values for {heads} of queries",
                    "a model in which each head has its own",
                    "plant in blocks or neurons",
                )
            rows = torch.arange(len(weight_of(tap.module)))[tap.columns]
            yield tap.module, rows.view(heads, -1)[place.index], ALL
        return
    whole, last = site.whole_mlp or nn.Module(), site.mlp or nn.Module()
    yield last, ALL, of_mlp
    for module in whole.modules():
        if isinstance(module, (nn.Linear, Conv1D)) and module is not last:
            yield module, of_mlp, ALL
