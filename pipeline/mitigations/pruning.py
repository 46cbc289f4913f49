"""Neurons and single weights of the MLPs that are set to zero, by scores of what serves the memory.

A neuron is an input of the last matrix of an MLP; without it, its column is zero. A score is that
for the rows to forget minus that for the rows to keep, or is learned on both. The dose is the share
of all neurons, or of the weights of each matrix.

Shapes: I inputs and O outputs of a matrix.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from transformers import PreTrainedModel

from pipeline.mitigations.descent import descend
from pipeline.mitigations.matrices import (
    Matrices,
    inputs_scaled,
    last_matrices,
    mean_inputs,
    mlp_matrices,
    recorded,
    weights_in,
)
from pipeline.mitigations.rows import Rows, Write, contrasted, log_probs
from pipeline.models.places import weight_of

NODES = 12
"""Of the Gauss-Legendre rule that integrates the gradients."""
MASK_STEPS, MASK_RATE, MASK_ROWS, SPARSITY = 60, 0.03, 32, 1.0
"""Steps, learning rate and rows in a step of the learned mask of neurons, and the weight of its
mean against the loss in nats: a gate of no use reaches 0 in half of the steps."""
SHARPNESS, LOW, HIGH = 2 / 3, -0.1, 1.1
"""Of the Hard Concrete distribution: its temperature, and its ends before it is cut to [0, 1]."""
OPEN, GATE_RATE = 2.0, 0.1
"""Of its gates: where they start (log odds), and the learning rate (AdamW without decay)."""
SUBNET_STEPS, SUBNET_RATE, SUBNET_ROWS = 40, 0.05, 32
"""Steps, learning rate and rows of each kind in a step of BalancedSubnet."""
ENOUGH = 6.0
"""Nats a token above which the rows to forget count as forgotten; their loss is cut there."""

Score = Callable[[PreTrainedModel, Rows, Matrices, int], list[Tensor]]
"""(I,) for each matrix: a score of each of its inputs, of model, rows, matrices and seed."""


def neurons_zeroed(
    model: PreTrainedModel, forget: Rows, keep: Rows, seed: int, *, score: Score
) -> Write:
    """Zero the neurons of the largest scores, over all MLPs."""
    last = last_matrices(model)
    scores = contrasted(lambda rows: score(model, rows, last, seed), forget, keep)
    order = torch.cat(scores).argsort(descending=True, stable=True)

    @torch.no_grad()
    def write(copy: PreTrainedModel, share: float) -> None:
        chosen = torch.zeros(len(order), dtype=torch.bool)
        chosen[order[: round(share * len(order))]] = True
        parts = torch.split(chosen, [len(each) for each in scores])
        for weight, own in zip(weights_in(copy, model, last), parts, strict=True):
            weight[:, own] = 0

    return write


@torch.no_grad()
def activity(model: PreTrainedModel, rows: Rows, last: Matrices, _: int) -> list[Tensor]:
    """The mean of |activation| where scored tokens are predicted, times the norm of the output.

    Source: arXiv 2311.09060, section 3.2 (activations).
    """
    means = mean_inputs(model, rows, last, torch.abs)
    return [mean * weight_of(m).norm(dim=0) for mean, m in zip(means, last, strict=True)]


def integrated_gradients(
    model: PreTrainedModel, rows: Rows, last: Matrices, _: int, count: int = NODES
) -> list[Tensor]:
    """The part of each neuron in the mean log probability of a scored token.

    Gates on all neurons go from 0 to 1 together. The parts sum to the difference that this makes.

    Source: arXiv 2104.08696 (knowledge neurons), all neurons scaled together.
    """
    sums = [torch.zeros(weight_of(matrix).shape[1]) for matrix in last]
    nodes, weights = np.polynomial.legendre.leggauss(count)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        gates = _gates(last, float(node))
        for part in rows.batches():
            with inputs_scaled(last, gates):
                total = log_probs(model, part).mean(-1).sum() / len(rows)
            for at, gradient in enumerate(torch.autograd.grad(total, gates)):
                sums[at] += float(weight) * gradient
    return sums


def slimmed(model: PreTrainedModel, rows: Rows, last: Matrices, seed: int) -> list[Tensor]:
    """Gates in [0, 1] that keep the loss on the rows low, and are few.

    From 1, AdamW minimizes the loss plus `SPARSITY` times the mean gate.

    Source: arXiv 2311.09060, section 3.2 (Slimming).
    """
    gates, generator = _gates(last, 1.0), torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        part = rows[rows.draw(MASK_ROWS, generator)]
        with inputs_scaled(last, gates):
            lost = -log_probs(model, part).mean()
        return lost + SPARSITY * torch.cat(gates).mean()

    for _ in descend(gates, MASK_RATE, MASK_STEPS, loss):
        with torch.no_grad():
            for gate in gates:
                gate.clamp_(0, 1)
    return [gate.detach() for gate in gates]


def hard_concrete(model: PreTrainedModel, rows: Rows, last: Matrices, seed: int) -> list[Tensor]:
    """The same with Hard Concrete gates, whose expected number is what the loss pays for.

    The seed is that of the noise and the rows; the gates are without noise after training.

    Source: arXiv 1712.01312, in arXiv 2311.09060, section 3.2 (Hard Concrete).
    """
    odds, generator = _gates(last, OPEN), torch.Generator().manual_seed(seed)
    shift = SHARPNESS * torch.log(torch.tensor(-LOW / HIGH))

    def gate(odd: Tensor) -> Tensor:
        return (odd.sigmoid() * (HIGH - LOW) + LOW).clamp(0, 1)

    def loss() -> Tensor:
        part = rows[rows.draw(MASK_ROWS, generator)]
        drawn = [torch.rand(odd.shape, generator=generator).clamp(1e-6, 1 - 1e-6) for odd in odds]
        gates = [gate((u.logit() + odd) / SHARPNESS) for u, odd in zip(drawn, odds, strict=True)]
        with inputs_scaled(last, gates):
            lost = -log_probs(model, part).mean()
        return lost + SPARSITY * (torch.cat(odds) - shift).sigmoid().mean()

    for _ in descend(odds, GATE_RATE, MASK_STEPS, loss):
        pass
    return [gate(odd.detach()) for odd in odds]


by_activation = partial(neurons_zeroed, score=activity)
by_gradients = partial(neurons_zeroed, score=integrated_gradients)
by_mask = partial(neurons_zeroed, score=slimmed)


def _gates(last: Matrices, value: float) -> list[Tensor]:
    return [torch.full((weight_of(m).shape[1],), value, requires_grad=True) for m in last]


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
