"""95% intervals for rates, means and paired differences; their p-values, adjusted for many blocks.

Samples with nearly equal suffixes are not independent of each other, so they are clustered by group
(column ``suffix_group``): 15,000 real samples have only 12,219 distinct suffixes.

Shapes: N samples, C columns (interventions times metrics), G groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95
DRAWS = 2000

_Floats = NDArray[np.float64]
_Booleans = NDArray[np.bool_]
Link = Callable[[_Floats], _Floats]
"""Maps a mean to the reported number, such as a log-likelihood to a perplexity."""

_Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
_CHUNK = 128  # bootstrap draws at once: 128 x 15,000 counts are 15 MB
GRAIN = 1e-9
"""Relative: a matrix product may differ in its last bits with the number of threads."""


@dataclass(frozen=True)
class Estimates:
    """C estimates with their 95% intervals.

    Args:
        value: (C,) the estimates.
        low: (C,) lower ends; NaN where unknown.
        high: (C,) upper ends; NaN where unknown.
    """

    value: _Floats
    low: _Floats
    high: _Floats


@dataclass(frozen=True)
class Differences(Estimates):
    """C differences of two means with their 95% intervals and p-values.

    Args:
        p_value: (C,) of no difference, two-sided; NaN where unknown.
    """

    p_value: _Floats


FEW = 50
"""With fewer effective clusters, the correlation within them is taken to be 1, not estimated."""


def wilson(successes: _Floats, trials: _Floats, quantile: float = _Z) -> tuple[_Floats, _Floats]:
    """Wilson's score interval for a rate; valid also at 0 and 1, where a normal one has no width.

    Args:
        successes: (C,) 0 to trials, not necessarily whole.
        trials: (C,) above 0, not necessarily whole.
        quantile: of the normal distribution, or a larger one for few clusters.

    Returns:
        low, high: (C,) each, 0 to 1.
    """
    rate, spread = successes / trials, quantile**2 / trials
    centre = (rate + spread / 2) / (1 + spread)
    half = np.sqrt(rate * (1 - rate) * spread + spread**2 / 4) / (1 + spread)
    # rounding may place the rate outside its own interval by 1e-17
    return np.clip(centre - half, 0.0, rate), np.clip(centre + half, rate, 1.0)


def normal(value: _Floats, stderr: _Floats) -> tuple[_Floats, _Floats]:
    """The interval ``value ± 1.96 stderr``; NaN where the standard error is NaN.

    Args:
        value: (C,) the estimates.
        stderr: (C,) their standard errors, NaN where unknown.
    """
    return value - _Z * stderr, value + _Z * stderr


def clustered_rates(outcomes: NDArray[np.bool_], groups: NDArray[np.integer]) -> Estimates:
    """Rates with Wilson intervals at the effective number of samples.

    The effective number is N over the design effect: the variance of the mean with clustered
    groups, over the variance if all samples were independent. It is never above N, and is N (plain
    Wilson) where every group has one sample. With fewer than `FEW` effective clusters, or where all
    outcomes are equal, the correlation within groups is taken to be 1. The quantile is Student's
    for the effective number of clusters, relative to that for N.

    Args:
        outcomes: (N, C) success or not.
        groups: (N,) samples with the same number belong together.

    Returns:
        C rates.

    Source: Korn and Graubard (1998), Survey Methodology 24, 193-201, with Wilson's interval.
    """
    count, clusters = len(groups), effective_number(groups)
    largest = np.unique(groups, return_counts=True)[1].max() / count
    rate, stderr = clustered_errors(outcomes.astype(np.float64), groups)
    # of equal clusters all but one, since one is needed to estimate the spread of the others
    few = max(clusters * (1 - largest), 1.0) if count > clusters else clusters
    together = np.full(rate.shape, few)
    mixed = (rate > 0) & (rate < 1)
    if clusters >= FEW and mixed.any():
        independent = rate[mixed] * (1 - rate[mixed]) / (count - 1)
        together[mixed] = count / np.maximum(stderr[mixed] ** 2 / independent, 1.0)
    wider = _student(clusters) / _student(count)
    low, high = wilson(rate * together, together, _Z * wider)
    return Estimates(rate, low, high)


def clustered_means(
    values: _Floats,
    groups: NDArray[np.integer],
    weights: _Floats | None = None,
    link: Link | None = None,
    bounded: _Booleans | None = None,
) -> Estimates:
    """Means with the wider of Student's interval and Hall's, which follows skewed values.

    Both rest on the jackknife's error over whole groups. Student's has a width even where nearly
    all values are at an end of their range, so that the sample may lack the others: see `reach`. A
    bootstrap's percentiles, the usual choice, are too narrow there, and with few groups.

    Args:
        values: (N, C).
        groups: (N,) samples with the same number belong together.
        weights: (N,) the mean is the sum of the values over the sum of these; None: all 1.
        link: applied to each mean, monotone; None: the mean itself.
        bounded: (C,) whether the values lie between 0 and 1; None: no limits are known.

    Returns:
        C means; their intervals are NaN where there is only one group, or a value is not finite.
    """
    known = np.isfinite(values).all(axis=0)
    finite = np.where(known, values, 0.0)
    sizes, sums = _group_sums(finite, groups, weights)
    mean, errors = clustered_errors(finite, groups, weights)
    n = effective_number(groups, weights)
    limited = np.zeros(mean.shape, dtype=bool) if bounded is None else bounded
    half = np.array(
        [reach(error, n, float(each), LEVEL) for error, each in zip(errors, limited, strict=True)]
    )
    half = np.where(np.isfinite(half) & known, half, np.nan)
    skewed = _skewed(sums - sizes[:, None] * mean, n)
    below, above = (np.fmax(half, errors * each) for each in skewed)
    low, high = np.sort([_linked(link, mean - below), _linked(link, mean + above)], axis=0)
    low = np.where(limited, np.maximum(low, 0.0), low)
    high = np.where(limited, np.minimum(high, 1.0), high)
    unknown = np.isnan(half)
    with np.errstate(invalid="ignore"):  # the mean of infinities of both signs
        value = np.where(known, mean, values.mean(axis=0))
    ends = (np.where(unknown, np.nan, end) for end in (low, high))
    return Estimates(_linked(link, value), *ends)


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
    and for both means. They are NaN where the draws do not differ, since an interval of no width
    would claim a certainty that a sample cannot give.

    The two-sided p-values come from a randomization test that flips the sign of whole groups:
    without an effect, a group's two outcomes are exchangeable. For 0/1 outcomes of unrelated
    samples that is McNemar's exact test; unlike McNemar's test, it counts each group once. The
    share of bootstrap draws beyond 0 is not used: if four samples changed, all for the worse, it
    gives 0.04 where the exact test gives 0.13. So an interval may just exclude 0 although the
    p-value is above 0.05. No p-value is below 1/(draws + 1).

    Args:
        values: (N, C).
        baseline: (N, C), or (N, 1) for all columns.
        groups: (N,) samples with the same number belong together.
        seed: of the draws.
        draws: bootstrap repetitions, and as many flips.
        weights: (N,) a mean is the sum of its values over the sum of these; None: all 1.
        link: applied to each mean, monotone; None: the mean itself. The test compares the means.

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
        width = np.where(high - low > 4 * GRAIN, 0.0, np.nan)
        low, high = low + width, high + width
    p_value = _sign_flips(change, seed, draws)
    fields = (difference, low, high, p_value)
    return Differences(*(np.where(known, field, np.nan) for field in fields))


def holm(p_values: _Floats) -> _Floats:
    """P-values with Holm's adjustment, which bounds the chance of any false rejection.

    It holds for any dependence between the tests; tests of the blocks of one model on the same
    samples depend strongly.

    Args:
        p_values: (C,) of one family of tests; NaN where unknown.

    Returns:
        (C,) adjusted; NaN where `p_values` is NaN.
    """
    # statsmodels' multipletests gives the same result, but takes 0.1 s per call to collect garbage
    count = np.count_nonzero(~np.isnan(p_values))
    ascending = np.argsort(p_values)[:count]  # NaN comes last
    adjusted = np.full(p_values.shape, np.nan)
    stepped = p_values[ascending] * np.arange(count, 0, -1)
    adjusted[ascending] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return adjusted


def clustered_errors(
    values: _Floats, groups: NDArray[np.integer], weights: _Floats | None = None
) -> tuple[_Floats, _Floats]:
    """Means and their standard errors, clustered by group.

    The error is the jackknife's, leaving out one group at a time; with groups of equal size it is
    the standard error of the groups' means. Large groups increase it.

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
    """The effective number of independent samples, if the samples of a group agree completely.

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
    freedom. The second term accounts for events that n samples may have missed: for a share that
    is 0 in all samples, the interval reaches to t²/n instead of 0. Agresti and Coull achieve this
    for a rate at 0 or 1 by adding t²/2 successes and failures; here it applies to differences and
    averages of shares as well, with slightly wider intervals.

    Args:
        stderr: standard error of the mean.
        n: effective number of samples.
        scale: the most by which one sample can move n times the mean: 1 for a share; 0 if
            unlimited, which omits the second term.
        level: of the interval, such as 0.95.

    Returns:
        Half the width; infinity with fewer than two samples or without a standard error.

    Source: Agresti and Coull (1998), The American Statistician 52, 119-126; for paired
    differences Bonett and Price (2012), Statistics in Medicine 31, 1231-1237.
    """
    if n < 2 or math.isnan(stderr):
        return math.inf
    t = float(stats.t.ppf((1 + level) / 2, n - 1))
    return t * math.hypot(stderr, t * scale / n)


def student(values: _Floats) -> tuple[float, float]:
    """Student's interval for the mean of a few numbers, such as one per seed; NaN below two.

    Args:
        values: (N,).
    """
    if len(values) < 2:
        return math.nan, math.nan
    reach = stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return float(values.mean() - reach), float(values.mean() + reach)


def pooled(
    values: Sequence[float | None], lows: Sequence[float | None], highs: Sequence[float | None]
) -> tuple[float, float, float]:
    """One number for the seeds of one recipe: their mean, with its interval.

    The interval holds two: the mean of the seeds' own intervals, which is about samples and
    documents, and Student's 95% interval between the seeds, which is about trainings.

    Args:
        values: one for each seed; None where unknown.
        lows: lower ends of the seeds' intervals; likewise.
        highs: upper ends.

    Returns:
        value, low, high; NaN where no seed has one.
    """
    value, low, high = (
        float(np.mean(numbers)) if numbers else math.nan
        for numbers in ([n for n in column if n is not None] for column in (values, lows, highs))
    )
    between = student(np.array([number for number in values if number is not None]))
    return value, float(np.fmin(low, between[0])), float(np.fmax(high, between[1]))


def _skewed(residuals: _Floats, n: float) -> tuple[_Floats, _Floats]:
    """How many standard errors the interval of a mean reaches below and above it, (C,) each.

    Args:
        residuals: (G, C) sums of the groups, minus what their mean would give.
        n: effective number of groups.

    Source: Hall (1992), Journal of the Royal Statistical Society B 54, 221-228: Student's quantile
    after a cubic transformation, which removes the skewness.
    """
    spread = (residuals**2).mean(axis=0) ** 1.5
    skewness = np.divide(
        (residuals**3).mean(axis=0), spread, out=np.zeros_like(spread), where=spread > 0
    )
    third = np.where(np.abs(skewness) < 1e-6, 1e-6, skewness) / 3

    def transformed(quantile: float) -> _Floats:
        shifted: _Floats = np.cbrt(1 + 3 * third * (quantile / n**0.5 - third / (2 * n)))
        found: _Floats = (shifted - 1) * n**0.5 / third
        return found

    quantile = _student(n)
    return transformed(quantile), -transformed(-quantile)


def _student(count: float) -> float:
    """The quantile of Student's distribution for a mean of `count` numbers."""
    return float(stats.t.ppf((1 + LEVEL) / 2, max(count - 1, 1)))


def _difference(
    link: Link | None, pair: tuple[_Floats, ...], sizes: _Floats, times: _Floats
) -> _Floats:
    """(draws, C) differences, with counts (draws, G) of each group; see `paired_differences`.

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
    """(C,) the share of sign flips of the groups' changes (G, C) with a sum at least as extreme."""
    random = np.random.default_rng((seed, 1))  # a different stream from the bootstrap's
    # rounding of a matrix product must not decide whether a sum is as extreme
    observed = np.abs(change.sum(axis=0)) * (1 - GRAIN) - GRAIN * GRAIN
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
    # rounded outwards, so that the interval of equal values contains them
    return np.floor(low / GRAIN) * GRAIN, np.ceil(high / GRAIN) * GRAIN


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
