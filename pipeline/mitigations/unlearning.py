"""Unlearning by gradient descent: gradient difference and NPO. The dose is the number of steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.mitigations.descent import descend
from pipeline.mitigations.neurons import Write
from pipeline.mitigations.rows import Rows, all_log_probs, log_probs

RATE, BATCH_ROWS = 3e-4, 16
"""Learning rate and rows of each kind in a step."""
BETA = 0.1
"""Of NPO, as in its paper."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""Log probabilities of the scored tokens to forget, (B, S), by the model that is trained and by the
one before -> the loss."""


def gradient_difference(model: PreTrainedModel, forget: Rows, keep: Rows, seed: int) -> Write:
    """Raise the loss on the rows to forget, and lower that on the rows to keep.

    Source: arXiv 2203.12817, as in open-unlearning.
    """
    return _descent(model, forget, keep, seed, lambda now, _before: now.mean())


def npo(model: PreTrainedModel, forget: Rows, keep: Rows, seed: int) -> Write:
    """Minimize 2/β log(1 + (p / p before)^β) for the rows to forget, and the loss of the others.

    Source: arXiv 2404.05868, with the retain term of open-unlearning.
    """
    return _descent(model, forget, keep, seed, npo_loss)


def npo_loss(now: Tensor, before: Tensor) -> Tensor:
    """The loss of NPO; its log probabilities are those of whole suffixes."""
    ratio = BETA * (now.sum(-1) - before.sum(-1))
    return 2 / BETA * torch.nn.functional.softplus(ratio).mean()


def _descent(model: PreTrainedModel, forget: Rows, keep: Rows, seed: int, loss: Loss) -> Write:
    before = all_log_probs(model, forget)

    def write(copy: PreTrainedModel, steps: float) -> None:
        generator = torch.Generator().manual_seed(seed)

        def total() -> Tensor:
            lost, kept = (rows.draw(BATCH_ROWS, generator) for rows in (forget, keep))
            now = log_probs(copy, forget[lost])
            return loss(now, before[lost]) - log_probs(copy, keep[kept]).mean()

        deque(descend(copy.parameters(), RATE, round(steps), total), 0)

    return write
