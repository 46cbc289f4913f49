"""Gradient descent, as methods and probes use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor


def descend(
    weights: Iterable[Tensor], rate: float, steps: int, loss: Callable[[], Tensor]
) -> Iterator[int]:
    """Minimize a loss by AdamW at a constant rate, without weight decay.

    Args:
        weights: are changed in place; their gradients are not kept.
        rate: the learning rate.
        steps: to take.
        loss: called in each step; a scalar that depends on the weights.

    Yields:
        The number of steps taken, from 0 on.
    """
    trained = list(weights)
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
    yield 0
    for step in range(1, steps + 1):
        gradients = torch.autograd.grad(loss(), trained, allow_unused=True)
        for weight, gradient in zip(trained, gradients, strict=True):
            weight.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
        yield step
