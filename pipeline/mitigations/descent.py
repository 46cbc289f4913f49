"""Gradient descent, as methods and probes use it; and unlearning by it: gradient difference, NPO.

The dose of unlearning is the number of steps.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.mitigations.rows import Rows, Write, all_log_probs, log_probs

RATE, BATCH_ROWS = 3e-4, 16
"""Learning rate and rows of each kind in a step."""
BETA = 0.1
"""Of NPO, as in its paper."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""Log probabilities of the scored tokens to forget, (B, S), by the model that is trained and by the
one before -> the loss."""


def descend(
    weights: Iterable[Tensor], rate: float, steps: int, loss: Callable[[], Tensor]
) -> Iterator[int]:
    """Minimize a loss of the weights in place, by AdamW at a constant rate, without weight decay.

    Yields the number of steps taken, from 0 on. The gradients of the weights are not kept.
    """
    trained = list(weights)
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
    yield 0
    for step in range(1, steps + 1):
        loss().backward(inputs=trained)  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        yield step


def unlearned(model: PreTrainedModel, forget: Rows, keep: Rows, seed: int, *, loss: Loss) -> Write:
    """Minimize a loss on the rows to forget plus the mean loss on the rows to keep."""
    before = all_log_probs(model, forget)

    def write(copy: PreTrainedModel, steps: float) -> None:
        generator = torch.Generator().manual_seed(seed)

        def total() -> Tensor:
            lost, kept = (rows.draw(BATCH_ROWS, generator) for rows in (forget, keep))
            now = log_probs(copy, forget[lost])
            return loss(now, before[lost]) - log_probs(copy, keep[kept]).mean()

        deque(descend(copy.parameters(), RATE, round(steps), total), 0)

    return write


def npo_loss(now: Tensor, before: Tensor) -> Tensor:
    """2/β log(1 + (p / p before)^β), of the probabilities of whole suffixes."""
    ratio = BETA * (now.sum(-1) - before.sum(-1))
    return 2 / BETA * torch.nn.functional.softplus(ratio).mean()


gradient_difference = partial(unlearned, loss=lambda now, _before: now.mean())
"""As in open-unlearning: the loss on the rows to forget is raised."""
npo = partial(unlearned, loss=npo_loss)
"""With the retain term of open-unlearning."""
