"""Neurons of the MLPs that are set to zero, by scores of what serves the memory.

A neuron is an input of the last matrix of an MLP; without it, its column is zero. A score is that
for the rows to forget minus that for the rows to keep. The dose is the share of all neurons.

Shapes: I inputs of a matrix.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.mitigations.descent import descend
from pipeline.mitigations.matrices import (
    Matrices,
    inputs_scaled,
    last_matrices,
    mean_inputs,
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
