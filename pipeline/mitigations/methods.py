"""The methods that remove memorized rows from a model, each an entry of `METHODS`.

A method is prepared once, on the model, the rows to forget and the rows to keep; what it returns
writes a dose into a copy of that model. The copy stays a stock model, which any engine loads.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions.editing import bypassed
from pipeline.interventions.exporting import write_edit
from pipeline.interventions.interventions import BASELINE, Intervention
from pipeline.mitigations.curvature import (
    coherent,
    flat_deleted,
    flat_noise,
    identity_deleted,
    random_block,
    random_weights,
)
from pipeline.mitigations.descent import gradient_difference, npo
from pipeline.mitigations.pruning import (
    balanced_subnet,
    by_activation,
    by_gradients,
    by_mask,
    optimal_damage,
    wanda,
)
from pipeline.mitigations.rows import Rows, Write, all_log_probs, contrasted
from pipeline.mitigations.schema import REMOVED
from pipeline.models.sites import anatomy


class Method(NamedTuple):
    """One method.

    Args:
        prepare: of the model, the rows to forget, the rows to keep and a seed; returns what writes
            a dose. It leaves the model as it is, and a dose of 0 leaves the copy as it is.
        meaning: what it does, in a few words.
        dose: the unit of its doses.
        doses: from weak to strong, five or more; those of a control of the same size are equal.
        whole: whether a dose is a whole number.
        source: its paper, or ``control``.
    """

    prepare: Callable[[PreTrainedModel, Rows, Rows, int], Write]
    meaning: str
    dose: str
    doses: tuple[float, ...]
    whole: bool
    source: str


def edited_blocks(
    model: PreTrainedModel, forget: Rows, keep: Rows, _seed: int, *, edit: str
) -> Write:
    """Write a block edit, one of `exporting.EXPORTABLE`, into the blocks with the best scores.

    A block's score is what its edit alone costs the rows to forget, minus the same for the others.
    The dose is the number of blocks.
    """
    [scores] = contrasted(lambda rows: [lowered(model, rows, edit)], forget, keep)
    order = scores.argsort(descending=True, stable=True).tolist()

    def write(copy: PreTrainedModel, count: float) -> None:
        if chosen := order[: round(count)]:
            write_edit(copy, edit, sorted(chosen))

    return write


identity = partial(edited_blocks, edit="identity")
zero = partial(edited_blocks, edit="zero")


def lowered(model: PreTrainedModel, rows: Rows, edit: str) -> Tensor:
    """How much an edit of each block alone lowers the mean log probability, nats a token."""
    alone = [Intervention(edit, {block: edit}) for block in range(len(anatomy(model).sites))]
    means = []
    for intervention in (BASELINE, *alone):
        with bypassed(model, intervention):
            means.append(all_log_probs(model, rows).double().mean())
    return means[0] - torch.stack(means[1:])


def nothing(_model: PreTrainedModel, _forget: Rows, _keep: Rows, _seed: int) -> Write:
    """Change nothing."""
    return lambda _copy, _dose: None


_BLOCKS = ("blocks", (1, 2, 3, 4, 5), True)
_NEURONS = ("share of neurons", (0.01, 0.03, 0.1, 0.2, 0.4), False)
_WEIGHTS = ("share of weights", (0.003, 0.01, 0.03, 0.1, 0.3), False)
_FLAT = ("share of each side", (0.2, 0.35, 0.5, 0.6, 0.7, 0.8), False)
_NORM = ("norm over that of all matrices", (0.01, 0.02, 0.04, 0.08, 0.16, 0.32), False)
_STEPS = ("steps", (2, 5, 10, 20, 40), True)
_BYPASS, _CHANG, _KFAC = "arXiv 2501.05078", "arXiv 2311.09060", "arXiv 2510.24256"
_SMARTER, _CONTROL = "smarter/memorization_kfac", "control"

METHODS = {
    "none": Method(nothing, "nothing", "none", (0,), True, _CONTROL),
    "block-identity": Method(identity, "attention bypassed in chosen blocks", *_BLOCKS, _BYPASS),
    "block-zero": Method(zero, "attention removed from chosen blocks", *_BLOCKS, _BYPASS),
    "neurons-activation": Method(by_activation, "most active neurons zeroed", *_NEURONS, _CHANG),
    "neurons-gradients": Method(
        by_gradients, "neurons of integrated gradients zeroed", *_NEURONS, "arXiv 2104.08696"
    ),
    "neurons-mask": Method(by_mask, "neurons of a learned mask zeroed", *_NEURONS, _CHANG),
    "wanda": Method(wanda, "weights by input norms zeroed", *_WEIGHTS, "arXiv 2306.11695"),
    "obd": Method(optimal_damage, "weights by saliency zeroed", *_WEIGHTS, "LeCun et al. 1989"),
    "balanced-subnet": Method(
        balanced_subnet, "weights of a learned mask zeroed", *_WEIGHTS, "arXiv 2410.02159"
    ),
    "kfac": Method(flat_deleted, "flat block of curvature deleted", *_FLAT, _KFAC),
    "identity": Method(identity_deleted, "flat neurons and inputs deleted", *_FLAT, _KFAC),
    "noise": Method(flat_noise, "noise in the flat block", *_FLAT, _SMARTER),
    "coherent": Method(coherent, "step against the margins in the flat block", *_NORM, _SMARTER),
    "gradient-difference": Method(
        gradient_difference, "gradient difference", *_STEPS, "arXiv 2203.12817"
    ),
    "npo": Method(npo, "negative preference optimization", *_STEPS, "arXiv 2404.05868"),
    "random": Method(random_weights, "as many random weights changed as much", *_FLAT, _CONTROL),
    "random-block": Method(random_block, "a random block deleted", *_FLAT, _CONTROL),
}
"""Name in the tables -> the method."""

HALVINGS = 3
"""Bisections between two doses of the list to find the chosen one."""


def edited(model: PreTrainedModel, write: Write, dose: float) -> PreTrainedModel:
    """A copy of the model with a dose written into it."""
    changed = copy.deepcopy(model)
    write(changed, dose)
    return changed


def chosen_dose(method: Method, left: Callable[[float], float]) -> float:
    """The smallest dose that removes enough of what a method sees, from its list or by bisection.

    `left` gives the share of the recitations of the seen rows that a dose leaves. If no dose of the
    list removes enough, its largest is returned.
    """
    low = 0.0
    for high in method.doses:
        if left(high) <= REMOVED:
            break
        low = high
    else:
        return float(method.doses[-1])
    for _ in range(HALVINGS):
        middle = round((low + high) / 2, 0 if method.whole else 6)
        if middle in (low, high):
            break
        low, high = (low, middle) if left(middle) <= REMOVED else (middle, high)
    return float(high)
