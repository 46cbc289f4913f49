"""Neurons of the MLPs that are set to zero: three scores of which ones serve the memory.

A neuron is an input of the last matrix of an MLP; without it, its column is zero. A score is that
for the rows to forget minus that for the rows to keep. The dose is the share of all neurons.

Shapes: I neurons of one MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.mitigations.descent import descend
from pipeline.mitigations.matrices import Matrix, inputs_scaled, last_matrices, mean_inputs
from pipeline.mitigations.rows import Rows, contrasted, log_probs

Write = Callable[[PreTrainedModel, float], None]
"""Writes a dose of an edit into a copy of the model that it was prepared on."""

NODES = 12
"""Of the Gauss-Legendre rule that integrates the gradients."""
MASK_STEPS, MASK_RATE, SPARSITY = 60, 0.03, 1.0
"""Steps and learning rate of the learned mask, and the weight of its mean against the loss
in nats: a gate of no use reaches 0 in half of the steps."""
MASK_ROWS = 32
"""Rows of one step of the learned mask."""


def by_activation(model: PreTrainedModel, forget: Rows, keep: Rows, seed: int) -> Write:
    """Zero the neurons that are most active on the rows to forget, weighted by what they write.

    Source: arXiv 2311.09060, section 3.2 (activations).
    """
    del seed
    last = last_matrices(model)
    return _without(contrasted(lambda rows: activity(model, rows, last), forget, keep))


def by_gradients(model: PreTrainedModel, forget: Rows, keep: Rows, seed: int) -> Write:
    """Zero the neurons with the largest integrated gradients of the scored tokens.

    Source: arXiv 2104.08696 (knowledge neurons), all neurons scaled together.
    """
    del seed
    last = last_matrices(model)
    return _without(contrasted(lambda rows: integrated_gradients(model, rows, last), forget, keep))


def by_mask(model: PreTrainedModel, forget: Rows, keep: Rows, seed: int) -> Write:
    """Zero the neurons that a sparse mask keeps for the rows to forget, and not for those to keep.

    Source: arXiv 2311.09060, section 3.2 (Slimming).
    """
    last = last_matrices(model)
    return _without(contrasted(lambda rows: slimmed(model, rows, seed, last), forget, keep))


@torch.no_grad()
def activity(model: PreTrainedModel, rows: Rows, last: Sequence[Matrix]) -> list[Tensor]:
    """(I,) for each MLP: the mean of |activation| where scored tokens are predicted, times the
    norm of what the neuron writes.
    """
    means = mean_inputs(model, rows, last, torch.abs)
    return [mean * m.weight.norm(dim=0) for mean, m in zip(means, last, strict=True)]


def integrated_gradients(
    model: PreTrainedModel, rows: Rows, last: Sequence[Matrix], count: int = NODES
) -> list[Tensor]:
    """(I,) for each MLP: the part of each neuron in the mean log probability of a scored token.

    Gates on all neurons go from 0 to 1 together. The parts sum to the difference that this makes.
    """
    sums = [torch.zeros(matrix.weight.shape[1]) for matrix in last]
    nodes, weights = np.polynomial.legendre.leggauss(count)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        gates = [torch.full((m.weight.shape[1],), float(node), requires_grad=True) for m in last]
        for part in rows.batches():
            with inputs_scaled(last, gates):
                total = log_probs(model, part).mean(-1).sum() / len(rows)
            for at, gradient in enumerate(torch.autograd.grad(total, gates)):
                sums[at] += float(weight) * gradient
    return sums


def slimmed(model: PreTrainedModel, rows: Rows, seed: int, last: Sequence[Matrix]) -> list[Tensor]:
    """(I,) for each MLP: gates in [0, 1] that keep the loss on the rows low, and are few.

    From 1, AdamW minimizes the loss plus `SPARSITY` times the mean gate.
    """
    gates = [torch.ones(matrix.weight.shape[1], requires_grad=True) for matrix in last]
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        with inputs_scaled(last, gates):
            lost = -log_probs(model, rows[rows.draw(MASK_ROWS, generator)]).mean()
        return lost + SPARSITY * torch.cat(gates).mean()

    for _ in descend(gates, MASK_RATE, MASK_STEPS, loss):
        with torch.no_grad():
            for gate in gates:
                gate.clamp_(0, 1)
    return [gate.detach() for gate in gates]


def _without(scores: Sequence[Tensor]) -> Write:
    """Zero the neurons of the largest scores, over all MLPs."""
    order = torch.cat(list(scores)).argsort(descending=True, stable=True)
    sizes = [len(each) for each in scores]

    @torch.no_grad()
    def write(copy: PreTrainedModel, share: float) -> None:
        chosen = torch.zeros(len(order), dtype=torch.bool)
        chosen[order[: round(share * len(order))]] = True
        for matrix, own in zip(last_matrices(copy), torch.split(chosen, sizes), strict=True):
            matrix.weight[:, own] = 0

    return write
