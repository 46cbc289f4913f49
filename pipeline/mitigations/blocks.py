"""Block edits, at the blocks that matter most to the rows to forget and least to those to keep.

The dose is the number of blocks.

Shapes: L blocks.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions.editing import bypassed
from pipeline.interventions.exporting import write_edit
from pipeline.interventions.interventions import BASELINE, Intervention
from pipeline.mitigations.neurons import Write
from pipeline.mitigations.rows import Rows, all_log_probs, contrasted
from pipeline.models.sites import anatomy


def edited_blocks(
    model: PreTrainedModel, forget: Rows, keep: Rows, seed: int, *, edit: str
) -> Write:
    """Write a block edit, one of `exporting.EXPORTABLE`, into the blocks with the best scores.

    A block's score is what its edit alone costs the rows to forget, minus the same for the others.

    Source: arXiv 2501.05078 for the identity.
    """
    del seed
    [scores] = contrasted(lambda rows: [lowered(model, rows, edit)], forget, keep)
    order = scores.argsort(descending=True, stable=True).tolist()

    def write(copy: PreTrainedModel, count: float) -> None:
        if chosen := order[: round(count)]:
            write_edit(copy, edit, sorted(chosen))

    return write


identity = partial(edited_blocks, edit="identity")
zero = partial(edited_blocks, edit="zero")


def lowered(model: PreTrainedModel, rows: Rows, edit: str) -> Tensor:
    """(L,) how much an edit of each block alone lowers the mean log probability, nats a token."""
    alone = [Intervention(edit, {block: edit}) for block in range(len(anatomy(model).sites))]
    means = []
    for intervention in (BASELINE, *alone):
        with bypassed(model, intervention):
            means.append(all_log_probs(model, rows).double().mean())
    return means[0] - torch.stack(means[1:])
