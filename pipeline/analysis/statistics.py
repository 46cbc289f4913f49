"""95% intervals for rates, means and paired differences; their p-values, adjusted for many blocks.

Samples with equal suffixes are not independent of each other, so they are counted by their group
(column ``suffix_group``): of 15,000 real samples only 12,219 suffixes differ.

Shapes: N samples, C columns (interventions times metrics), G groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

LEVEL = 0.95
DRAWS = 2000

_Floats = NDArray[np.float64]
Link = Callable[[_Floats], _Floats]
"""From a mean to the number that is reported, such as from a log-likelihood to a perplexity."""

_Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
_CHUNK = 128  # bootstrap draws at once: 128 x 15,000 counts are 15 MB
_GRAIN = 1e-9  # a matrix product may differ in its last bits with the number of threads


@dataclass(frozen=True)
class Estimates:
    """C estimates with their 95% intervals.

    Args:
        value: (C,) the estimates.
        low: (C,) lower ends; NaN where nothing can be said.
        high: (C,) upper ends; NaN where nothing can be said.
    """

    value: _Floats
    low: _Floats
    high: _Floats


@dataclass(frozen=True)
class Correlation:
    """A rank correlation, -1 to 1, with its 95% interval and p-value.

    Args:
        value: Spearman's; NaN where one of the two does not vary.
        low, high: ends of the interval; NaN where nothing can be said.
        p_value: of no relation, two-sided; NaN where there is no value.
    """

    value: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class Differences(Estimates):
    """C differences of two means with their 95% intervals and p-values.

    Args:
        p_value: (C,) of no difference, two-sided; NaN where nothing can be said.
    """

    p_value: _Floats


def wilson(successes: _Floats, trials: _Floats) -> tuple[_Floats, _Floats]:
    """Wilson's score interval for a rate; right at 0 and 1 too, where the normal one has no width.

    Args:
        successes: (C,) 0 to trials, not necessarily whole.
        trials: (C,) above 0, not necessarily whole.

    Returns:
        low, high: (C,) each, 0 to 1.
    """
    low, high = proportion_confint(successes, trials, alpha=1 - LEVEL, method="wilson")
    rate = successes / trials
    # rounding may leave the rate outside of its own interval by 1e-17
    return np.clip(low, 0.0, rate), np.clip(high, rate, 1.0)


def normal(value: _Floats, stderr: _Floats) -> tuple[_Floats, _Floats]:
    """The interval ``value ± 1.96 stderr``; NaN where the standard error is NaN.

    Args:
        value: (C,) the estimates.
        stderr: (C,) their standard errors, NaN where unknown.
    """
    return value - _Z * stderr, value + _Z * stderr


def clustered_rates(outcomes: NDArray[np.bool_], groups: NDArray[np.integer]) -> Estimates:
    """Rates with Wilson intervals at the effective number of samples.

    The effective number is N over the design effect: the variance of the mean with samples of one
    group taken together, over the variance if all were independent. It is never above N, and is N
    where every group has one sample: plain Wilson. Where all outcomes are equal, or of one
    group, they cannot tell how far a group's samples go together; then they are taken to agree
    wholly.

    Args:
        outcomes: (N, C) success or not.
        groups: (N,) samples with the same number belong together.

    Returns:
        C rates.
    """
    count = len(groups)
    rate = outcomes.mean(axis=0, dtype=np.float64)
    sizes, residuals = _group_sums(outcomes - rate, groups)
    together = np.full(rate.shape, count**2 / (sizes**2).sum())
    if len(sizes) > 1 and (mixed := (rate > 0) & (rate < 1)).any():
        clustered = (residuals[:, mixed] ** 2).sum(axis=0) / count**2
        clustered *= len(sizes) / (len(sizes) - 1)
        independent = rate[mixed] * (1 - rate[mixed]) / max(count - 1, 1)
        effect = np.maximum(clustered / independent, 1.0)
        together[mixed] = count / effect
    low, high = wilson(rate * together, together)
    return Estimates(rate, low, high)


def clustered_means(
    values: _Floats,
    groups: NDArray[np.integer],
    seed: int,
    draws: int = DRAWS,
    weights: _Floats | None = None,
    link: Link | None = None,
) -> Estimates:
    """Means with percentile intervals of a bootstrap that draws whole groups.

    Args:
        values: (N, C).
        groups: (N,) samples with the same number belong together.
        seed: of the draws.
        draws: bootstrap repetitions.
        weights: (N,) the mean is the sum of the values over the sum of these; None: all 1.
        link: applied to each mean; None: the mean itself.

    Returns:
        C means; their intervals are NaN where there is only one group, or a value is not finite.
    """
    sizes, sums = _group_sums(values, groups, weights)
    mean = _linked(link, sums.sum(axis=0) / sizes.sum())
    known = np.isfinite(sums).all(axis=0)
    if len(sizes) < 2 or not known.any():
        nothing = np.full(mean.shape, np.nan)
        return Estimates(mean, nothing, nothing)
    sums = np.where(known, sums, np.nan)  # an infinity drawn 0 times would be one more warning
    means = np.concatenate(
        [t @ sums / (t @ sizes)[:, None] for t in times_drawn(len(sizes), seed, draws)]
    )
    return Estimates(mean, *percentiles(_linked(link, means)))


def paired_differences(
    values: _Floats,
    baseline: _Floats,
    groups: NDArray[np.integer],
    seed: int,
    draws: int = DRAWS,
    weights: _Floats | None = None,
    link: Link | None = None,
) -> Differences:
    """Differences of two means over the same samples, with bootstrap intervals and p-values.

    The intervals are percentiles of a bootstrap that draws whole groups, the same for every column
    and for both means. They are NaN where the draws do not differ: no width would be a claim
    of certainty that samples which all agree cannot make.

    The p-values, two-sided, are those of a randomization test that flips the sign of whole groups:
    without an effect, a group's two outcomes could as well have been exchanged. For 0/1 outcomes of
    unrelated samples that is McNemar's exact test; with groups it counts each once,
    which McNemar's does not. The share of bootstrap draws beyond 0 is not taken: where
    four samples changed, all for the worse, it gives 0.04 where the exact test gives 0.13. So an
    interval may just leave out 0 where the p-value is above 0.05. None is below 1/(draws + 1).

    Args:
        values: (N, C).
        baseline: (N, C), or (N, 1) for all columns.
        groups: (N,) samples with the same number belong together.
        seed: of the draws.
        draws: bootstrap repetitions, and as many flips.
        weights: (N,) a mean is the sum of its values over the sum of these; None: all 1.
        link: applied to each mean, monotone; None: the mean itself. The test is one of the means.

    Returns:
        C differences; NaN in every field where a value is not finite.
    """
    known = np.isfinite(values).all(axis=0) & np.isfinite(baseline).all(axis=0)
    if not known.all():
        values, baseline = np.where(known, values, 0.0), np.where(known, baseline, 0.0)
    sizes, change = _group_sums(values - baseline, groups, weights)
    pair: tuple[_Floats, ...] = (change,)  # alone, so that no change is a difference of exactly 0
    if link is not None:
        pair = tuple(_group_sums(each, groups, weights)[1] for each in (values, baseline))
    difference = _difference(link, pair, sizes, np.ones((1, len(sizes))))[0]
    low = high = np.full(difference.shape, np.nan)
    if len(sizes) > 1:
        drawn = [
            _difference(link, pair, sizes, times) for times in times_drawn(len(sizes), seed, draws)
        ]
        low, high = percentiles(np.concatenate(drawn))
        width = np.where(high - low > 4 * _GRAIN, 0.0, np.nan)
        low, high = low + width, high + width
    p_value = _sign_flips(change, seed, draws)
    fields = (difference, low, high, p_value)
    return Differences(*(np.where(known, field, np.nan) for field in fields))


def holm(p_values: _Floats) -> _Floats:
    """Holm's adjustment: below 0.05 with at most that chance of any false one among them all.

    It needs nothing of how the tests depend on each other; blocks of one model on the same samples
    depend much.

    Args:
        p_values: (C,) of one family of tests; NaN where there is none.

    Returns:
        (C,) NaN where there was none.
    """
    # statsmodels' multipletests gives the same, and a garbage collection of 0.1 s with each call
    count = np.count_nonzero(~np.isnan(p_values))
    ascending = np.argsort(p_values)[:count]  # NaN comes last
    adjusted = np.full(p_values.shape, np.nan)
    stepped = p_values[ascending] * np.arange(count, 0, -1)
    adjusted[ascending] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return adjusted


def clustered_errors(
    values: _Floats, groups: NDArray[np.integer], weights: _Floats | None = None
) -> tuple[_Floats, _Floats]:
    """Means and their standard errors, samples of one group taken together.

    The error is the jackknife's, leaving out one group at a time; with groups of equal size it is
    the standard error of the groups' means. Groups that weigh much make it larger.

    Args:
        values: (N, C).
        groups: (N,) samples with the same number belong together.
        weights: (N,) the mean is the sum of the values over the sum of these; None: all 1.

    Returns:
        mean, standard error: (C,) each; the error is NaN where there is only one group.
    """
    sizes, sums = _group_sums(values, groups, weights)
    mean = sums.sum(axis=0) / sizes.sum()
    if len(sizes) < 2:
        return mean, np.full(mean.shape, np.nan)
    others = (sizes.sum() - sizes)[:, None]
    changes = (sums - sizes[:, None] * mean) / others  # of the mean, without the group
    return mean, np.sqrt((changes**2).sum(axis=0) * (len(sizes) - 1) / len(sizes))


def effective_number(groups: NDArray[np.integer], weights: _Floats | None = None) -> float:
    """How many independent samples N samples in groups are worth where groups agree wholly.

    Kish's squared sum of the groups' sizes over the sum of their squares: N where every group has
    one sample.

    Args:
        groups: (N,) samples with the same number belong together; N above 0.
        weights: (N,) of the samples in the mean; None: all 1.
    """
    sizes, _ = _group_sums(np.ones((len(groups), 1)), groups, weights)
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def reach(stderr: float, n: float, scale: float, level: float) -> float:
    """Half the width of an interval for a mean, at any level.

    ``t * sqrt(stderr² + (t * scale / n)²)``, t of Student's distribution with n - 1 degrees of
    freedom. The second term stands for what n samples may have missed: of a share of which no
    sample has any, the interval reaches to t²/n, and not to 0. It is what Agresti and Coull's t²/2
    added successes and failures do to a rate at 0 or 1; here it does the same to differences and
    averages of shares, a little wider than theirs.

    Args:
        stderr: standard error of the mean.
        n: effective number of samples.
        scale: by how much one sample can move n times the mean: 1 for a share; 0 where that has
            no limit, which leaves the second term out.
        level: of the interval, such as 0.95.

    Returns:
        Infinity where fewer than two samples, or no standard error, can tell anything.

    Source: Agresti and Coull (1998), The American Statistician 52, 119-126; for paired
    differences Bonett and Price (2012), Statistics in Medicine 31, 1231-1237.
    """
    if n < 2 or math.isnan(stderr):
        return math.inf
    t = float(stats.t.ppf((1 + level) / 2, n - 1))
    return t * math.hypot(stderr, t * scale / n)


def student(values: _Floats) -> tuple[float, float]:
    """Student's interval for the mean of a few numbers, such as one a seed; NaN below two.

    Args:
        values: (N,).
    """
    if len(values) < 2:
        return math.nan, math.nan
    reach = stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return float(values.mean() - reach), float(values.mean() + reach)


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
    beyond = int((np.abs(by_chance) >= abs(value) * (1 - _GRAIN)).sum())
    return Correlation(value, float(low), float(high), (1 + beyond) / (1 + draws))


def partial_rank_correlation(
    one: _Floats, other: _Floats, given: _Floats, seed: int, draws: int = DRAWS
) -> Correlation:
    """Spearman's rank correlation of two at equal values of a third.

    It is the correlation of what is left of their ranks after straight lines through the ranks of
    `given`. The test permutes what is left of `other`. It is a little too eager where both follow
    `given` closely, for ranks do so along a curve: of unrelated normal variables that correlate
    with it by 0.9, one test in 13 is below 0.05.

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
    if size < _GRAIN:
        return nothing
    value = float(left @ right) / size
    random = np.random.default_rng(seed)
    drawn = random.integers(len(one), size=(draws, len(one)))
    xy, xz, yz = (
        _spearman(a[drawn], b[drawn]) for a, b in ((one, other), (one, given), (other, given))
    )
    rest = (1 - xz**2) * (1 - yz**2)
    known = ~np.isnan(xy) & (rest > _GRAIN)
    found = np.clip((xy - xz * yz)[known] / np.sqrt(rest[known]), -1, 1)
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(found) else (-1, 1)
    shuffled = random.permuted(np.tile(right, (draws, 1)), axis=1)
    # a permutation is freed of `given` again, as the ranks were
    shuffled -= np.outer(shuffled @ z, z) / (z @ z)
    by_chance = shuffled @ left / (np.linalg.norm(shuffled, axis=1) * np.linalg.norm(left) + _GRAIN)
    beyond = int((np.abs(by_chance) >= abs(value) * (1 - _GRAIN) - _GRAIN).sum())
    return Correlation(value, float(low), float(high), (1 + beyond) / (1 + draws))


def _spearman(one: _Floats, other: _Floats) -> _Floats:
    """(draws,) of pairs (draws, N); NaN where one of the two does not vary."""
    ranks = [stats.rankdata(each, axis=1) for each in (one, other)]
    x, y = (each - each.mean(axis=1, keepdims=True) for each in ranks)
    size = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    # clipped: rounding may bring a perfect one beyond 1
    product = np.clip((x * y).sum(axis=1), -size, size)
    found: _Floats = np.divide(product, size, out=np.full(size.shape, np.nan), where=size > 0)
    return found


def _difference(
    link: Link | None, pair: tuple[_Floats, ...], sizes: _Floats, times: _Floats
) -> _Floats:
    """(draws, C) differences, each group (G,) taken so often (draws, G); see `paired_differences`.

    `pair` holds the sums (G, C) of the changes, or, with a link, of the values and the baseline's.
    """
    means = [_linked(link, times @ sums / (times @ sizes)[:, None]) for sums in pair]
    return means[0] if link is None else means[0] - means[1]


def times_drawn(n_groups: int, seed: int, draws: int) -> Iterator[_Floats]:
    """(draws, G) in chunks: how often each draw of a bootstrap takes each of G groups."""
    random = np.random.default_rng(seed)
    for start in range(0, draws, _CHUNK):
        n_draws = min(_CHUNK, draws - start)
        drawn = random.integers(n_groups, size=(n_draws, n_groups))
        drawn += n_groups * np.arange(n_draws)[:, None]
        times = np.bincount(drawn.ravel(), minlength=n_draws * n_groups)
        yield times.reshape(n_draws, n_groups).astype(np.float64)


def _sign_flips(change: _Floats, seed: int, flips: int) -> _Floats:
    """(C,) the share of sign flips of the groups' changes (G, C) that bring a sum as far from 0."""
    random = np.random.default_rng((seed, 1))  # not the bootstrap's draws once more
    # a matrix product's last bits must not decide whether a sum is as far out
    observed = np.abs(change.sum(axis=0)) * (1 - _GRAIN) - _GRAIN * _GRAIN
    beyond = np.zeros(observed.shape)
    for start in range(0, flips, _CHUNK):
        size = (min(_CHUNK, flips - start), len(change))
        signs = 2.0 * random.integers(2, size=size, dtype=np.int8) - 1.0
        beyond += (np.abs(signs @ change) >= observed).sum(axis=0)
    share: _Floats = (1 + beyond) / (1 + flips)
    return share


def percentiles(drawn: _Floats) -> tuple[_Floats, _Floats]:
    """The 95% interval (C,) of (draws, C) numbers; NaN where one of them is not finite."""
    known = np.isfinite(drawn).all(axis=0)
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(np.where(known, drawn, np.nan), ends, axis=0)
    # rounded outwards, or the interval of equal values might miss them
    return np.floor(low / _GRAIN) * _GRAIN, np.ceil(high / _GRAIN) * _GRAIN


def _linked(link: Link | None, means: _Floats) -> _Floats:
    return means if link is None else link(means)


def _group_sums(
    values: _Floats, groups: NDArray[np.integer], weights: _Floats | None = None
) -> tuple[_Floats, _Floats]:
    """The size (G,) of each group, or its weight, and the sum (G, C) of its rows."""
    order = np.argsort(groups, kind="stable")
    _, starts = np.unique(groups[order], return_index=True)
    each = np.ones(len(groups)) if weights is None else weights[order]
    return np.add.reduceat(each, starts), np.add.reduceat(values[order], starts, axis=0)
