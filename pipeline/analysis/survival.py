"""Which tokens stay the greedy choice: memorized tokens against control ones of equal probability.

The unmodified model is nearly certain of a memorized token but not of an ordinary one, and a likely
token survives more edits than an unlikely one, memorized or not. So memorized tokens are compared
with control tokens of about the same baseline log p. Only true tokens that the unmodified model
chooses greedily are counted. They are sorted into bins by their log p. The control tokens of a bin
get the same total weight as its memorized tokens; bins with only one kind are left out.

Shapes: K tokens, V interventions, G groups of samples, B bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.analysis.statistics import DRAWS, Estimates, percentiles, times_drawn

EDGES = -0.001 * 2.0 ** np.arange(12, -1, -1)
"""Nats: log p where one bin ends and the next begins, -4.1 to -0.001, each half the last."""

_LEAST_WIDTH = 1e-8

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Tokens:
    """True tokens that are the unmodified model's greedy choice.

    Args:
        log_prob: (K,) nats, of the unmodified model.
        groups: (K,) of their samples; tokens with the same number are drawn together.
        stays: (K, V) whether the token is still the greedy choice.
    """

    log_prob: _Floats
    groups: NDArray[np.integer]
    stays: NDArray[np.bool_]


@dataclass(frozen=True)
class Survival:
    """How many tokens stay the greedy choice; 95% intervals of a bootstrap that draws groups.

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


def survival(memorized: Tokens, control: Tokens, seed: int, draws: int = DRAWS) -> Survival | None:
    """Compare tokens of equal baseline probability.

    Args:
        memorized: of memorized samples.
        control: of control samples, under the same interventions.
        seed: of the bootstrap, which draws the groups of both anew and matches them again.
        draws: bootstrap repetitions.

    Returns:
        Intervals are NaN where the draws do not differ, or where a draw has no matched token. None
        where no token is matched.
    """
    counts = [_by_bin(each) for each in (memorized, control)]
    ones = [np.ones((1, len(sizes))) for sizes, _ in counts]
    value = _matched(counts, ones)
    if np.isnan(value).any():
        return None
    times = [times_drawn(len(sizes), seed + i, draws) for i, (sizes, _) in enumerate(counts)]
    drawn = [_matched(counts, list(pair)) for pair in zip(*times, strict=True)]
    low, high = percentiles(np.concatenate(drawn))
    width = np.where(high - low > _LEAST_WIDTH, 0.0, np.nan)
    fields = zip(value[0], low + width, high + width, strict=True)
    memorized_stay, control_stay, gap = (Estimates(*each) for each in fields)
    own, theirs = (sizes.sum(0) for sizes, _ in counts)
    matched = float(own[theirs > 0].sum() / own.sum())
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


def _matched(counts: list[tuple[_Floats, _Floats]], times: list[_Floats]) -> _Floats:
    """(draws, 3, V): memorized, control and gap, with counts (draws, G) of each group."""
    (own, own_stay), (theirs, their_stay) = (
        (drawn @ sizes, np.tensordot(drawn, stay, 1))
        for (sizes, stay), drawn in zip(counts, times, strict=True)
    )
    weights = np.where(theirs > 0, own, 0.0)
    total = weights.sum(1, keepdims=True)
    total[total == 0] = np.nan
    memorized = (own_stay * (theirs > 0)[..., None]).sum(1) / total
    shares = their_stay / np.where(theirs > 0, theirs, 1.0)[..., None]
    control = (shares * weights[..., None]).sum(1) / total
    return np.stack([memorized, control, memorized - control], 1)
