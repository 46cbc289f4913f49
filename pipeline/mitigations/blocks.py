"""Block edits, at the blocks that matter most to the rows to forget and least to those to keep.

The dose is the number of blocks.
"""

from __future__ import annotations

from functools import partial

import torch
from transformers import PreTrainedModel

from pipeline.interventions.editing import bypassed
from pipeline.interventions.exporting import write_edit
from pipeline.interventions.interventions import BASELINE, Intervention
from pipeline.mitigations.neurons import Write
from pipeline.mitigations.rows import Rows, log_probs
from pipeline.models.sites import anatomy


def edited_blocks(
    model: PreTrainedModel, forget: Rows, keep: Rows, seed: int, *, edit: str
) -> Write:
    """Write a block edit into the weights of the blocks with the best scores.

    A block's score is how much its edit alone, one of `exporting.EXPORTABLE`, lowers the mean log
    probability of the scored tokens of the rows to forget, minus the same for the rows to keep.

    Source: arXiv 2501.05078 for the identity.
    """
    del seed
    blocks = range(len(anatomy(model).sites))
    lowered = [[_lowered(model, rows, at, edit) for at in blocks] for rows in (forget, keep)]
    scores = torch.tensor([a - b for a, b in zip(*lowered, strict=True)])
    order = scores.argsort(descending=True, stable=True).tolist()

    def write(copy: PreTrainedModel, count: float) -> None:
        if chosen := order[: round(count)]:
            write_edit(copy, edit, sorted(chosen))

    return write


identity = partial(edited_blocks, edit="identity")
zero = partial(edited_blocks, edit="zero")


@torch.no_grad()
def _lowered(model: PreTrainedModel, rows: Rows, block: int, edit: str) -> float:
    means = []
    for intervention in (BASELINE, Intervention(edit, {block: edit})):
        with bypassed(model, intervention):
            means.append(float(sum(log_probs(model, part).sum() for part in rows.batches())))
    return (means[0] - means[1]) / rows.scored
