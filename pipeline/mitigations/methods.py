"""The methods that remove memorized rows from a model, each an entry of `METHODS`.

A method is prepared once, on the model, the rows to forget and the rows to keep; what it returns
writes a dose into a copy of that model. The copy stays a stock model, which any engine loads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedModel

from pipeline.mitigations.blocks import identity, zero
from pipeline.mitigations.curvature import (
    coherent,
    flat_deleted,
    flat_noise,
    identity_deleted,
    random_block,
    random_weights,
)
from pipeline.mitigations.neurons import Write, by_activation, by_gradients, by_mask
from pipeline.mitigations.rows import Rows
from pipeline.mitigations.schema import REMOVED
from pipeline.mitigations.unlearning import gradient_difference, npo
from pipeline.mitigations.weights import balanced_subnet, optimal_damage, wanda


@dataclass(frozen=True)
class Method:
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


def nothing(model: PreTrainedModel, forget: Rows, keep: Rows, seed: int) -> Write:
    """Change nothing."""
    del model, forget, keep, seed
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
        by_gradients, "neurons of integrated gradients zeroed", *_NEURONS, "2104.08696"
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
    return changed.eval()  # type: ignore[no-any-return,no-untyped-call]


def chosen_dose(method: Method, left: Callable[[float], float]) -> float:
    """The smallest dose that removes enough of what a method sees, from its list or by bisection.

    Args:
        method: with its doses.
        left: dose -> the share of the recitations of the seen rows that stay.

    Returns:
        The dose; the largest of the list if none removes enough.
    """
    low = 0.0
    for high in method.doses:
        if left(high) <= REMOVED:
            break
        low = high
    else:
        return float(method.doses[-1])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        middle = float(round(middle)) if method.whole else round(middle, 6)
        if middle in (low, high):
            break
        low, high = (low, middle) if left(middle) <= REMOVED else (middle, high)
    return float(high)
