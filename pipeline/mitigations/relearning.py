"""Fine-tuning on forgotten rows: how soon do the others come back?"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.mitigations.descent import descend
from pipeline.mitigations.rows import Rows, log_probs

RATE, BATCH_ROWS = 1e-3, 16
"""Learning rate, and rows of a step."""
STEPS = (0, 1, 2, 5, 10, 20, 50)
"""Steps after which the model is looked at."""


def relearned(
    model: PreTrainedModel, rows: Rows, seed: int, steps: Sequence[int] = STEPS
) -> Iterator[tuple[int, PreTrainedModel]]:
    """Train a copy of the model on whole rows.

    Args:
        model: stays as it is.
        rows: the texts to learn; all their tokens but the first are scored.
        seed: of their order.
        steps: after which to look, ascending.

    Yields:
        The number of steps taken, and the copy, which the next step changes.
    """
    made, whole = copy.deepcopy(model), Rows(rows.tokens, 1)
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        return -log_probs(made, whole[whole.draw(BATCH_ROWS, generator)]).mean()

    for step in descend(made.parameters(), RATE, steps[-1], loss):
        if step in steps:
            yield step, made
