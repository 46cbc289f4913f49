"""Single weights of the MLPs that are set to zero, by scores of what serves the memory.

A score is that for the rows to forget minus that for the rows to keep, or is learned on both. The
dose is the share of the weights of each matrix.

Shapes: I inputs and O outputs of a matrix.
"""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call
from transformers import PreTrainedModel

from pipeline.mitigations.descent import descend
from pipeline.mitigations.matrices import Matrices, mean_inputs, mlp_matrices, recorded, weights_in
from pipeline.mitigations.rows import Rows, Write, contrasted, log_probs
from pipeline.models.places import weight_of

SUBNET_STEPS, SUBNET_RATE, SUBNET_ROWS = 40, 0.05, 32
"""Steps, learning rate and rows of each kind in a step of BalancedSubnet."""
ENOUGH = 6.0
"""Nats a token above which the rows to forget count as forgotten; their loss is cut there."""


def weights_zeroed(
    model: PreTrainedModel, matrices: Matrices, scores: Sequence[Tensor], *, by_row: bool = False
) -> Write:
    """Zero the weights of the largest scores, of each matrix or of each of its rows."""

    @torch.no_grad()
    def write(copy: PreTrainedModel, share: float) -> None:
        for weight, score in zip(weights_in(copy, model, matrices), scores, strict=True):
            weight[_top(score, share, by_row=by_row).bool()] = 0

    return write


@torch.no_grad()
def wanda(model: PreTrainedModel, forget: Rows, keep: Rows, _seed: int) -> Write:
    """Zero the weights of each row with the largest |W| times the norm of their inputs.

    Source: arXiv 2306.11695, forget minus keep as in arXiv 2402.05162.
    """
    matrices = mlp_matrices(model)

    def norms(rows: Rows) -> list[Tensor]:
        return [mean.sqrt() for mean in mean_inputs(model, rows, matrices, torch.square)]

    pairs = zip(matrices, contrasted(norms, forget, keep), strict=True)
    found = [weight_of(matrix).abs() * norm for matrix, norm in pairs]
    return weights_zeroed(model, matrices, found, by_row=True)


def optimal_damage(model: PreTrainedModel, forget: Rows, keep: Rows, _seed: int) -> Write:
    """Optimal Brain Damage: zero the largest half squared weights times their Fisher entries."""
    matrices = mlp_matrices(model)
    fisher = contrasted(lambda rows: fisher_diagonal(model, rows, matrices), forget, keep)
    pairs = zip(matrices, fisher, strict=True)
    found = [weight_of(matrix).detach().square() / 2 * each for matrix, each in pairs]
    return weights_zeroed(model, matrices, found)


def fisher_diagonal(model: PreTrainedModel, rows: Rows, matrices: Matrices) -> list[Tensor]:
    """(O, I) for each matrix: mean over scored tokens of the squared gradient at each position."""
    sums = [torch.zeros(weight_of(matrix).shape) for matrix in matrices]
    with recorded(matrices) as (read, gradients):
        for part in rows.batches():
            (-log_probs(model, part)).sum().backward()  # type: ignore[no-untyped-call]
            for total, a, g in zip(sums, read, gradients, strict=True):
                total += g.flatten(0, 1).square().T @ a.flatten(0, 1).square()
    model.zero_grad()
    return [total / rows.scored for total in sums]


def balanced_subnet(_model: PreTrainedModel, forget: Rows, keep: Rows, seed: int) -> Write:
    """Zero the weights that a learned mask names: without them, rows to forget become unlikely.

    Each weight has a score; the mask of the largest ones is removed, and gradients pass through it
    to the scores. The loss is half that on the rows to keep minus half that on those to forget.
    """

    def write(copy: PreTrainedModel, share: float) -> None:
        matrices = mlp_matrices(copy)
        generator = torch.Generator().manual_seed(seed)
        shapes = [weight_of(m).shape for m in matrices]
        scores = [(torch.rand(s, generator=generator) * 1e-3).requires_grad_() for s in shapes]

        def loss() -> Tensor:
            lost, stays = (rows[rows.draw(SUBNET_ROWS, generator)] for rows in (forget, keep))
            kept = [1 - _top(s.detach(), share) - (s - s.detach()) for s in scores]
            hurt = _nll(copy, matrices, kept, lost).clamp(max=ENOUGH)
            return (_nll(copy, matrices, kept, stays) - hurt) / 2

        deque(descend(scores, SUBNET_RATE, SUBNET_STEPS, loss), 0)
        weights_zeroed(copy, matrices, scores)(copy, share)

    return write


def _nll(model: PreTrainedModel, matrices: Matrices, kept: Sequence[Tensor], rows: Rows) -> Tensor:
    """Mean loss on rows with each weight times its factor, nats a token."""
    names = {module: name for name, module in model.named_modules()}
    values = {
        f"{names[matrix]}.weight": weight_of(matrix, weight_of(matrix).detach() * factor)
        for matrix, factor in zip(matrices, kept, strict=True)
    }
    return -log_probs(lambda **read: functional_call(model, values, kwargs=read), rows).mean()


def _top(score: Tensor, share: float, *, by_row: bool = False) -> Tensor:
    """1 at the share of the largest scores, of all or of each row, else 0."""
    flat = score if by_row else score.flatten()
    largest = flat.topk(round(share * flat.shape[-1]), -1).indices
    return torch.zeros_like(flat).scatter_(-1, largest, 1.0).view_as(score)
