"""Rank correlations, also partial ones, with intervals and permutation tests.

Shapes: N pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pipeline.analysis.statistics import DRAWS, GRAIN, LEVEL

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Correlation:
    """A rank correlation, -1 to 1, with its 95% interval and p-value.

    Args:
        value: Spearman's; NaN where one of the two does not vary.
        low, high: ends of the interval; NaN where unknown.
        p_value: of no relation, two-sided; NaN where there is no value.
    """

    value: float
    low: float
    high: float
    p_value: float


def rank_correlation(one: _Floats, other: _Floats, seed: int, draws: int = DRAWS) -> Correlation:
    """Spearman's rank correlation, with a percentile bootstrap interval and a permutation test.

    A perfect correlation stays perfect in every draw of the bootstrap, however few pairs there
    are, so the interval is not a test; the p-value is.

    Args:
        one: (N,) finite.
        other: (N,) finite, in the same order.
        seed: of the draws.
        draws: of the bootstrap, and as many permutations.
    """
    nothing = Correlation(math.nan, math.nan, math.nan, math.nan)
    if len(one) < 3:
        return nothing
    value = float(_spearman(one[None], other[None])[0])
    if math.isnan(value):
        return nothing
    random = np.random.default_rng(seed)
    drawn = random.integers(len(one), size=(draws, len(one)))
    found = _spearman(one[drawn], other[drawn])
    found = found[~np.isnan(found)]  # one pair drawn N times has no correlation
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    shuffled = random.permuted(np.tile(other, (draws, 1)), axis=1)
    by_chance = _spearman(np.tile(one, (draws, 1)), shuffled)
    beyond = int((np.abs(by_chance) >= abs(value) * (1 - GRAIN)).sum())
    return Correlation(value, float(low), float(high), (1 + beyond) / (1 + draws))


def partial_rank_correlation(
    one: _Floats, other: _Floats, given: _Floats, seed: int, draws: int = DRAWS
) -> Correlation:
    """Spearman's partial rank correlation of two variables, given a third.

    It is the correlation of the residuals of their ranks after linear regression on the ranks of
    `given`. The test permutes the residuals of `other`. It rejects slightly too often where both
    follow `given` closely, since ranks follow along a curve: for unrelated normal variables that
    correlate with `given` by 0.9, one test in 13 is below 0.05.

    Args:
        one: (N,) finite.
        other: (N,) finite, in the same order.
        given: (N,) finite, in the same order.
        seed: of the draws.
        draws: of the bootstrap, and as many permutations.

    Source: Freedman and Lane (1983), J. Business and Economic Statistics 1, 292-298.
    """
    nothing = Correlation(math.nan, math.nan, math.nan, math.nan)
    if len(one) < 4:
        return nothing
    ranks = [stats.rankdata(each) for each in (one, other, given)]
    x, y, z = (each - each.mean() for each in ranks)
    if not z.any():
        return rank_correlation(one, other, seed, draws)
    left, right = (each - (each @ z) / (z @ z) * z for each in (x, y))
    size = math.sqrt((left @ left) * (right @ right))
    if size < GRAIN:
        return nothing
    value = float(left @ right) / size
    random = np.random.default_rng(seed)
    drawn = random.integers(len(one), size=(draws, len(one)))
    xy, xz, yz = (
        _spearman(a[drawn], b[drawn]) for a, b in ((one, other), (one, given), (other, given))
    )
    rest = (1 - xz**2) * (1 - yz**2)
    known = ~np.isnan(xy) & (rest > GRAIN)
    found = np.clip((xy - xz * yz)[known] / np.sqrt(rest[known]), -1, 1)
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(found) else (-1, 1)
    shuffled = random.permuted(np.tile(right, (draws, 1)), axis=1)
    # permuted residuals are regressed on `given` again, as the ranks were
    shuffled -= np.outer(shuffled @ z, z) / (z @ z)
    by_chance = shuffled @ left / (np.linalg.norm(shuffled, axis=1) * np.linalg.norm(left) + GRAIN)
    beyond = int((np.abs(by_chance) >= abs(value) * (1 - GRAIN) - GRAIN).sum())
    return Correlation(value, float(low), float(high), (1 + beyond) / (1 + draws))


def _spearman(one: _Floats, other: _Floats) -> _Floats:
    """(draws,) of pairs (draws, N); NaN where one of the two does not vary."""
    ranks = [stats.rankdata(each, axis=1) for each in (one, other)]
    x, y = (each - each.mean(axis=1, keepdims=True) for each in ranks)
    size = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    # clipped, since rounding may bring a perfect correlation beyond 1
    product = np.clip((x * y).sum(axis=1), -size, size)
    found: _Floats = np.divide(product, size, out=np.full(size.shape, np.nan), where=size > 0)
    return found
