"""Edits in the flat block of each matrix of the MLPs, after coupled K-FAC factors.

The Fisher of one matrix is the mean of vec(g aᵀ) vec(g aᵀ)ᵀ over tokens, a its inputs and g the
gradient of the loss by its outputs, for labels that the model samples. Its two partial traces are
the coupled factors: the mean of ‖g‖² a aᵀ and of ‖a‖² g gᵀ. Their eigenvectors of small eigenvalues
are the flat directions; the flat block is what lies in the flat ones of both sides.

Shapes: I inputs and O outputs of a matrix, i and o of them flat.

Source: arXiv 2510.24256; the coupling: public repository smarter/memorization_kfac.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.mitigations.matrices import Matrices, mlp_matrices, recorded, weights_in
from pipeline.mitigations.rows import Rows, Write, margins
from pipeline.models.places import weight_of

COHERENT_SHARE = 0.6
"""The share of the directions of each side onto which the coherent step is projected."""

Directions = Callable[[Tensor, torch.Generator], Any]
"""Of a factor: columns, the flattest first."""


class Basis(NamedTuple):
    """Directions of one matrix, (I, I) and (O, O) columns, the flattest first."""

    inputs: Tensor
    outputs: Tensor

    def block(self, change: Tensor, share: float) -> Tensor:
        """(o, i) coefficients of (O, I) in the flattest share of the directions of each side."""
        outputs, inputs = (x[:, : round(share * len(x))] for x in (self.outputs, self.inputs))
        return outputs.T @ change @ inputs

    def whole(self, block: Tensor) -> Tensor:
        """(O, I) with these coefficients in the flat block, and zeros elsewhere."""
        return self.outputs[:, : len(block)] @ block @ self.inputs[:, : block.shape[1]].T


def coherent(model: PreTrainedModel, forget: Rows, keep: Rows, seed: int) -> Write:
    """Step against the gradient of the rows' summed margins, projected on the flat block.

    The dose is the norm of the step over the norm of all matrices.

    Source: public repository smarter/memorization_kfac, theory/paper.
    """
    matrices = mlp_matrices(model)
    bases = eigenbases(model, matrices, keep, seed)
    for part in forget.batches():
        margins(model, part).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [weight_of(m, m.weight.grad) for m in matrices]  # type: ignore[arg-type]
    pairs = zip(bases, gradients, strict=True)
    steps = [basis.whole(basis.block(each, COHERENT_SHARE)) for basis, each in pairs]
    model.zero_grad()
    length, whole = _norm(steps), _norm(weight_of(matrix).detach() for matrix in matrices)

    @torch.no_grad()
    def write(copy: PreTrainedModel, dose: float) -> None:
        for weight, step in zip(weights_in(copy, model, matrices), steps, strict=True):
            weight.add_(-dose * whole / length * step)

    return write


def factors(
    model: PreTrainedModel, matrices: Matrices, tokens: Tensor, labels: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """For each matrix (I, I) and (O, O), the sums over all positions of ‖g‖² a aᵀ and ‖a‖² g gᵀ.

    `tokens` are (B, T) int64, `labels` (B, T - 1) those of the positions but the last.
    """
    with recorded(matrices) as (read, gradients):
        made = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        loss = nn.functional.cross_entropy(made.flatten(0, 1), labels.flatten(), reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]
    model.zero_grad()
    found = []
    for inputs, gradient in zip(read, gradients, strict=True):
        a, g = inputs.flatten(0, 1), gradient.flatten(0, 1)
        of_a, of_g = (x.square().sum(1, keepdim=True) for x in (a, g))
        found.append(((a * of_g).T @ a, (g * of_a).T @ g))
    return found


def _eigenvectors(factor: Tensor, _random: torch.Generator) -> Any:
    return torch.linalg.eigh(factor).eigenvectors  # ascending: the flattest first


def _axes(factor: Tensor, _random: torch.Generator) -> Any:
    """The eigenbasis of the identity: neurons and inputs in the order of their curvature."""
    return torch.eye(len(factor))[:, factor.diagonal().argsort(stable=True)]


def _turned(factor: Tensor, random: torch.Generator) -> Any:
    """Random orthogonal directions."""
    return torch.linalg.qr(torch.randn(factor.shape, generator=random)).Q


def eigenbases(
    model: PreTrainedModel,
    matrices: Matrices,
    rows: Rows,
    seed: int,
    directions: Directions = _eigenvectors,
) -> list[Basis]:
    """The eigenvectors, or other directions, of the coupled factors, with labels of the model."""
    random = torch.Generator().manual_seed(seed)
    total: list[tuple[Tensor, Tensor]] = []
    for part in rows.batches():
        with torch.no_grad():
            likely = model(input_ids=part.tokens, use_cache=False).logits[:, :-1].softmax(-1)
        labels = torch.multinomial(likely.flatten(0, 1), 1, generator=random)
        made = factors(model, matrices, part.tokens, labels.view(likely.shape[:2]))
        pairs = zip(total, made, strict=True)
        total = [(a + c, b + d) for (a, b), (c, d) in pairs] if total else made
    random.manual_seed(seed)
    return [Basis(*(directions(side, random) for side in pair)) for pair in total]


def _deletion(basis: Basis, _weight: Tensor, block: Tensor, _random: torch.Generator) -> Tensor:
    return -basis.whole(block)


def _noise(basis: Basis, _weight: Tensor, block: Tensor, random: torch.Generator) -> Tensor:
    """Gaussian noise of the norm of what a deletion removes."""
    return basis.whole(_of_norm(torch.randn(block.shape, generator=random), block))


def _scattered(_basis: Basis, weight: Tensor, block: Tensor, random: torch.Generator) -> Tensor:
    """The same for as many random weights as the block has."""
    change = torch.zeros(weight.numel())
    chosen = torch.randperm(len(change), generator=random)[: block.numel()]
    change[chosen] = torch.randn(len(chosen), generator=random)
    return _of_norm(change.view_as(weight), block)


def in_block(
    model: PreTrainedModel,
    _forget: Rows,
    keep: Rows,
    seed: int,
    *,
    change: Callable[[Basis, Tensor, Tensor, torch.Generator], Tensor],
    directions: Directions = _eigenvectors,
) -> Write:
    """Change every matrix (O, I) by what its directions on the rows to keep, its weight and this
    weight's flat block give. The dose is the share of the directions of each side.
    """
    matrices = mlp_matrices(model)
    known = eigenbases(model, matrices, keep, seed, directions)

    @torch.no_grad()
    def write(copy: PreTrainedModel, share: float) -> None:
        random = torch.Generator().manual_seed(seed)
        for weight, basis in zip(weights_in(copy, model, matrices), known, strict=True):
            weight.add_(change(basis, weight, basis.block(weight, share), random))

    return write


flat_deleted = partial(in_block, change=_deletion)
identity_deleted = partial(in_block, change=_deletion, directions=_axes)
flat_noise = partial(in_block, change=_noise)
random_block = partial(in_block, change=_deletion, directions=_turned)
random_weights = partial(in_block, change=_scattered)


def _of_norm(change: Tensor, like: Tensor) -> Tensor:
    """A tensor scaled to the norm of another; unchanged if it is zero."""
    scale: Tensor = like.norm() / change.norm().clamp(min=1e-30)
    return change * scale


def _norm(parts: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(part.square().sum()) for part in parts))
