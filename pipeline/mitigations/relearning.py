"""Fine-tuning on forgotten rows: how soon do the others come back?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from pipeline.mitigations.rows import Rows, log_probs

RATE, BATCH_ROWS = 1e-3, 16
"""Learning rate (AdamW, constant), and rows of a step."""
STEPS = (0, 1, 2, 5, 10, 20, 50)
"""Steps after which the model is looked at."""


def relearned(
    model: PreTrainedModel,
    rows: Rows,
    seed: int,
    look: Callable[[int, PreTrainedModel], None],
    steps: Sequence[int] = STEPS,
) -> None:
    """Train a copy of the model on whole rows, and look at it now and then.

    Args:
        model: stays as it is.
        rows: the texts to learn; all their tokens but the first are scored.
        seed: of their order.
        look: called with the number of steps taken and the copy.
        steps: after which to look, ascending.
    """
    made = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(made.parameters(), lr=RATE, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    whole = Rows(rows.tokens, 1)
    for step in range(steps[-1] + 1):
        if step in steps:
            look(step, made)
        if step == steps[-1]:
            return
        part = whole[torch.randint(len(rows), (min(BATCH_ROWS, len(rows)),), generator=generator)]
        optimizer.zero_grad()
        (-log_probs(made, part).mean()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
