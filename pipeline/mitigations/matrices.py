"""The matrices of a model's MLPs, oriented alike, and what passes through them.

Shapes: B batch, T positions, I inputs and O outputs of a matrix.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from pipeline.mitigations.rows import Rows
from pipeline.models.modules import attached
from pipeline.models.places import weight_of
from pipeline.models.sites import anatomy
from pipeline.workflow.errors import bad_input

Matrices = Sequence[nn.Module]
"""`Linear`, or `Conv1D`, which stores its weight transposed; `weight_of` gives (O, I) of both."""


def mlp_matrices(model: PreTrainedModel) -> list[nn.Module]:
    """The matrices of all MLPs, in the order of the blocks.

    Raises:
        InputError: a block has no MLP of dense matrices.
    """
    found: list[nn.Module] = []
    for number, site in enumerate(anatomy(model).sites):
        modules = () if site.whole_mlp is None else site.whole_mlp.modules()
        own = [module for module in modules if isinstance(module, (nn.Linear, Conv1D))]
        if site.mlp not in own:
            raise bad_input(
                f"{type(model).__name__}: block {number}",
                "an MLP that is not made of dense matrices",
                "linear layers, the last of which writes to the stream",
                "use a method that edits blocks",
            )
        found += own
    return found


def last_matrices(model: PreTrainedModel) -> list[nn.Module]:
    """The matrix of each MLP that reads its neurons and writes to the stream."""
    last = [site.mlp for site in anatomy(model).sites]
    return [matrix for matrix in mlp_matrices(model) if matrix in last]


def weights_in(copy: PreTrainedModel, model: PreTrainedModel, matrices: Matrices) -> list[Tensor]:
    """(O, I), views of the weights of the same matrices in a copy of their model."""
    copies = dict(zip(model.modules(), copy.modules(), strict=True))
    return [weight_of(copies[matrix]) for matrix in matrices]


@contextmanager
def inputs_scaled(matrices: Matrices, gates: Sequence[Tensor]) -> Iterator[None]:
    """Multiply the inputs of matrices with gates (I,), as long as the context lasts."""

    def scale(gate: Tensor, _module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (args[0] * gate,)

    pairs = zip(matrices, gates, strict=True)
    with attached(m.register_forward_pre_hook(partial(scale, gate)) for m, gate in pairs):
        yield


@contextmanager
def recorded(matrices: Matrices) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Record what matrices read, (B, T, I) each, and after a backward pass the gradients by what
    they return, (B, T, O): two lists in the order of `matrices`.
    """
    read, gradients = ([torch.empty(0)] * len(matrices) for _ in range(2))

    def keep(at: int, _module: nn.Module, args: tuple[Tensor], returned: Tensor) -> None:
        read[at] = args[0].detach()
        if returned.requires_grad:
            returned.register_hook(partial(gradients.__setitem__, at))  # type: ignore[no-untyped-call]

    with attached(m.register_forward_hook(partial(keep, i)) for i, m in enumerate(matrices)):
        yield read, gradients


@torch.no_grad()
def mean_inputs(
    model: PreTrainedModel, rows: Rows, matrices: Matrices, of: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """(I,) for each matrix: the mean of a function of its inputs where tokens are scored."""
    sums = [torch.zeros(weight_of(matrix).shape[1]) for matrix in matrices]
    with recorded(matrices) as (read, _):
        for part in rows.batches():
            model(input_ids=part.tokens, use_cache=False)
            for total, inputs in zip(sums, read, strict=True):
                total += of(inputs[:, rows.first - 1 : -1]).sum((0, 1))
    return [total / rows.scored for total in sums]
