"""The one training loop of the theory: Adam on all data in each step, for many models at once."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

WARM_UP_STEPS = 30
"""Number of steps in which the learning rate rises; afterwards it falls along a cosine."""
LAST_RATE = 0.02
"""The learning rate of the last step, as a share of the largest."""


def train(
    parameters: Sequence[Tensor],
    losses: Callable[[], Tensor],
    steps: int,
    learning_rate: float,
    stepped: Callable[[], object] = lambda: None,
) -> None:
    """Minimize the losses (M,) of models that stand side by side, in one step or more.

    The parameters are changed in place; the first dimension of each is the model. A model's
    gradient comes from its own loss: the sum that is minimized keeps the models apart. The learning
    rate is the largest; `stepped` is called after every step.
    """

    def share(step: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        return min(1.0, (step + 1) / WARM_UP_STEPS) * (LAST_RATE + (1 - LAST_RATE) * cosine)

    learning = [parameter.requires_grad_() for parameter in parameters]
    optimizer = torch.optim.Adam(learning, lr=learning_rate, fused=True)
    schedule = LambdaLR(optimizer, share)
    for _ in range(steps):
        optimizer.zero_grad()
        losses().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        stepped()
    for parameter in learning:
        parameter.requires_grad_(False)
