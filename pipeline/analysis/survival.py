"""Which tokens stay the greedy choice: memorized tokens against control ones of equal probability.

The unmodified model is nearly certain of a memorized token but not of an ordinary one, and a likely
token survives more edits than an unlikely one, memorized or not. So memorized tokens are compared
with control tokens of about the same baseline log p. Only true tokens that the unmodified model
chooses greedily are counted. They are sorted into bins by their log p. The control tokens of a bin
get the same total weight as its memorized tokens; bins with only one kind are left out.

Shapes: K tokens, V interventions, G groups of samples, B bins, D repetitions.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.analysis.statistics import (
    Estimates,
    effective_number,
    jackknife_error,
    reaches,
    scale_of_categories,
)

EDGES = -0.001 * 2.0 ** np.arange(12, -1, -1)
"""Nats: log p where one bin ends and the next begins, -4.1 to -0.001, each half the last."""

_Floats = NDArray[np.float64]


class Tokens(NamedTuple):
    """True tokens that are the unmodified model's greedy choice.

    Args:
        log_prob: (K,) nats, of the unmodified model.
        groups: (K,) of their samples; tokens with the same number are left out together.
        stays: (K, V) whether the token is still the greedy choice.
    """

    log_prob: _Floats
    groups: NDArray[np.integer]
    stays: NDArray[np.bool_]


class Survival(NamedTuple):
    """How many tokens stay the greedy choice, with 95% intervals; NaN where they are unknown.

    Args:
        memorized: V shares of the matched memorized tokens.
        control: V shares of the control tokens, weighted as the memorized ones.
        gap: V differences, memorized minus control; below 0 memorized tokens survive less often.
        matched: the share of memorized tokens that have control tokens in their bin.
    """

    memorized: Estimates
    control: Estimates
    gap: Estimates
    matched: float


def survival(memorized: Tokens, control: Tokens) -> Survival | None:
    """Compare tokens of equal baseline probability.

    The intervals are those of `statistics.reach` around the jackknife's error: one group of either
    kind at a time is left out, and the tokens are matched again. Both are under the same
    interventions.

    Returns:
        Shares lie between 0 and 1, their differences between -1 and 1. None where no token is
        matched.
    """
    sides = [_by_bin(each) for each in (memorized, control)]
    totals = [(sizes.sum(0)[None], stay.sum(0)[None]) for sizes, stay in sides]
    values = _matched(*totals)[0]
    if np.isnan(values).any():
        return None
    errors = []
    for at, (sizes, stay) in enumerate(sides):
        without = list(totals)
        without[at] = totals[at][0] - sizes, totals[at][1] - stay
        errors.append(jackknife_error(values - _matched(*without)))
    stderr = np.hypot(*errors)
    of_groups = [memorized.groups, control.groups]
    numbers, scales = (list(map(of, of_groups)) for of in (effective_number, scale_of_categories))
    numbers.append(min(numbers))
    scales.append(max(scales))
    half = np.array([reaches(*each) for each in zip(stderr, numbers, scales, strict=True)])
    half[np.isinf(half)] = np.nan
    ends = np.maximum(values - half, [[0.0], [0.0], [-1.0]]), np.minimum(values + half, 1.0)
    own, theirs = (sizes[0] for sizes, _ in totals)
    matched = float(own[theirs > 0].sum() / own.sum())
    memorized_stay, control_stay, gap = map(Estimates, values, *ends)
    return Survival(memorized_stay, control_stay, gap, matched)


def _by_bin(tokens: Tokens) -> tuple[_Floats, _Floats]:
    """Tokens (G, B) of each group and bin, and how many of them stay (G, B, V)."""
    bins = np.searchsorted(EDGES, tokens.log_prob)
    _, groups = np.unique(tokens.groups, return_inverse=True)
    count = groups.max() + 1 if len(groups) else 0
    sizes = np.zeros((count, len(EDGES) + 1))
    stay = np.zeros((*sizes.shape, tokens.stays.shape[1]))
    np.add.at(sizes, (groups, bins), 1.0)
    np.add.at(stay, (groups, bins), tokens.stays)
    return sizes, stay


def _matched(own: tuple[_Floats, _Floats], control: tuple[_Floats, _Floats]) -> _Floats:
    """(D, 3, V): memorized, control and gap, from tokens (D, B) or (1, B) and those that stay."""
    (sizes, stay), (theirs, their_stay) = own, control
    weights = np.where(theirs > 0, sizes, 0.0)
    total = weights.sum(1, keepdims=True)
    total[total == 0] = np.nan
    memorized = (stay * (theirs > 0)[..., None]).sum(1) / total
    shares = their_stay / np.where(theirs > 0, theirs, 1.0)[..., None]
    staying = (shares * weights[..., None]).sum(1) / total
    return np.stack([memorized, staying, memorized - staying], 1)
