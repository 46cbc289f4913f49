"""95% intervals for rates, means and paired differences; their p-values, adjusted for many blocks.

Samples with nearly equal suffixes are not independent of each other, so they are clustered by group
(column ``suffix_group``): 15,000 real samples have only 12,219 distinct suffixes.

Shapes: N samples, C columns (interventions times metrics), G groups. `values` is (N, C). `groups`
(N,) has the same number for samples that belong together. A mean is the sum of its values over that
of the `weights` (N,), None: all 1. A monotone `link` is applied to each mean. `scale`, one number
or (C,), is that of `reach` for values between 0 and 1; 0: no limits are known.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95
DRAWS = 2000

_Floats = NDArray[np.float64]
Link = Callable[[_Floats], _Floats]
"""Maps a mean to the reported number, such as a log-likelihood to a perplexity."""


def same(means: _Floats) -> _Floats:
    """The mean itself."""
    return means


Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
"""Half the width of a normal interval, in standard errors: 1.96."""

_CHUNK = 128  # flips at once: 128 x 15,000 signs are 15 MB
GRAIN = 1e-9
"""Relative: a matrix product may differ in its last bits with the number of threads."""


@dataclass(frozen=True)
class Estimates:
    """C estimates, and the ends of their 95% intervals, NaN where unknown; (C,) each."""

    value: _Floats
    low: _Floats
    high: _Floats

    def __getitem__(self, columns: slice) -> Self:
        """Some of the C columns."""
        return replace(self, **{name: field[columns] for name, field in vars(self).items()})

    @property
    def first(self) -> tuple[float, float, float]:
        """The first estimate and its interval."""
        return float(self.value[0]), float(self.low[0]), float(self.high[0])


@dataclass(frozen=True)
class Differences(Estimates):
    """C differences of two means; `p_value` (C,) of no difference, two-sided, NaN where unknown."""

    p_value: _Floats


FEW = 50
"""With fewer effective clusters, the correlation within them is not left to its estimate alone."""


def wilson(successes: _Floats, trials: _Floats, quantile: float = Z) -> tuple[_Floats, _Floats]:
    """Wilson's score interval for a rate; valid also at 0 and 1, where a normal one has no width.

    Of `trials` (C,), above 0, `successes` (C,) succeed; neither must be whole. The `quantile` is of
    the normal distribution, or a larger one for few clusters. The ends, (C,) each, are 0 to 1.
    """
    rate, spread = successes / trials, quantile**2 / trials
    centre = (rate + spread / 2) / (1 + spread)
    half = np.sqrt(rate * (1 - rate) * spread + spread**2 / 4) / (1 + spread)
    # rounding may place the rate outside its own interval by 1e-17
    return np.clip(centre - half, 0.0, rate), np.clip(centre + half, rate, 1.0)


def clustered_rates(outcomes: NDArray[np.bool_], groups: NDArray[np.integer]) -> Estimates:
    """Rates with Wilson intervals at the effective number of samples.

    The effective number is N over the design effect: the variance of the mean with clustered
    groups, over the variance if all samples were independent. It is never above N, and is N (plain
    Wilson) where every group has one sample. With fewer than `FEW` effective clusters the design
    effect is uncertain: half of it is that of samples that agree completely within groups, and all
    of it where all outcomes are equal. The quantile is Student's for the effective number of
    clusters, relative to that for N.

    Returns:
        C rates.

    Source: Korn and Graubard (1998), Survey Methodology 24, 193-201, with Wilson's interval.
    """
    count, clusters = len(groups), effective_number(groups)
    largest = np.unique(groups, return_counts=True)[1].max() / count
    rate, stderr = clustered_errors(outcomes.astype(np.float64), groups)
    # of equal clusters all but one, since one is needed to estimate the spread of the others
    few = max(clusters * (1 - largest), 1.0) if count > clusters else clusters
    with np.errstate(invalid="ignore", divide="ignore"):
        independent = rate * (1 - rate) / (count - 1)
        effect = np.maximum(stderr**2 / independent, 1.0)
    if clusters < FEW:
        effect = (effect + count / few) / 2
    mixed = (rate > 0) & (rate < 1) & np.isfinite(stderr)
    together = np.where(mixed, count / effect, few)
    wider = _student(clusters) / _student(count)
    low, high = wilson(rate * together, together, Z * wider)
    return Estimates(rate, low, high)


def clustered_means(
    values: _Floats,
    groups: NDArray[np.integer],
    weights: _Floats | None = None,
    link: Link = same,
    scale: _Floats | float = 0.0,
) -> Estimates:
    """Means with the wider of Student's interval and Hall's, which follows skewed values.

    Both rest on the jackknife's error over whole groups. Student's has a width even where nearly
    all values are at an end of their range, so that the sample may lack the others: see `reach`. A
    bootstrap's percentiles, the usual choice, are too narrow there, and with few groups.

    Returns:
        C means. Their intervals are NaN where there is only one group, a value is not finite, or
        all groups agree on a value without limits: an interval of no width would claim a certainty
        that a sample cannot give.
    """
    known = np.isfinite(values).all(axis=0)
    mean, changes = _jackknife(*_group_sums(np.where(known, values, 0.0), groups, weights))
    below, above = _distances(changes, effective_number(groups, weights), scale)
    ends = np.sort([link(mean - below), link(mean + above)], axis=0)
    ends = np.where(np.greater(scale, 0), np.clip(ends, 0.0, 1.0), ends)
    with np.errstate(invalid="ignore"):  # the mean of infinities of both signs
        value = np.where(known, mean, values.mean(axis=0))
    return Estimates(link(value), *np.where(known, ends, np.nan))


def paired_differences(
    values: _Floats,
    baseline: _Floats,
    groups: NDArray[np.integer],
    seed: int,
    draws: int = DRAWS,
    weights: _Floats | None = None,
    link: Link = same,
    scale: _Floats | float = 0.0,
) -> Differences:
    """Differences of two means over the same samples, with intervals and p-values.

    The intervals are those of `clustered_means`, of the difference: they rest on how it changes
    when one group at a time is left out.

    The two-sided p-values come from a randomization test that flips the sign of whole groups:
    without an effect, a group's two outcomes are exchangeable. For 0/1 outcomes of unrelated
    samples that is McNemar's exact test; unlike McNemar's test, it counts each group once. An
    interval may just exclude 0 although the p-value is above 0.05, or the reverse. No p-value is
    below 1/(draws + 1).

    `baseline` is (N, C), or (N, 1) for all columns; `draws` is the number of flips. With a link the
    test compares the means.

    Returns:
        C differences; NaN in every field where a value is not finite.
    """
    known = np.isfinite(values).all(axis=0) & np.isfinite(baseline).all(axis=0)
    if not known.all():
        values, baseline = np.where(known, values, 0.0), np.where(known, baseline, 0.0)
    sizes, change = _group_sums(values - baseline, groups, weights)
    # of the change, so that no change is a difference of exactly 0
    difference, changes = _jackknife(sizes, change)
    if link is not same:
        own, of_baseline = (
            _jackknife(*_group_sums(each, groups, weights), link) for each in (values, baseline)
        )
        difference, changes = own[0] - of_baseline[0], own[1] - of_baseline[1]
    below, above = _distances(changes, effective_number(groups, weights), scale)
    most = np.where(np.greater(scale, 0), 1.0, np.inf)
    fields = (
        difference,
        np.maximum(difference - below, -most),
        np.minimum(difference + above, most),
        _sign_flips(change, seed, draws),
    )
    return Differences(*(np.where(known, field, np.nan) for field in fields))


def holm(p_values: _Floats) -> _Floats:
    """P-values with Holm's adjustment, which bounds the chance of any false rejection.

    It holds for any dependence between the tests; tests of the blocks of one model on the same
    samples depend strongly. `p_values` (C,) are of one family of tests; where they are NaN, so is
    what is returned, (C,).
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

    Returns:
        mean, standard error: (C,) each; the error is NaN where there is only one group.
    """
    mean, changes = _jackknife(*_group_sums(values, groups, weights))
    return mean, jackknife_error(changes)


def effective_number(groups: NDArray[np.integer], weights: _Floats | None = None) -> float:
    """The effective number of independent samples, if the samples of a group agree completely.

    Kish's squared sum of the groups' sizes over the sum of their squares: N where every group has
    one sample.
    """
    sizes, _ = _group_sums(np.ones((len(groups), 1)), groups, weights)
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def scale_of_categories(groups: NDArray[np.integer]) -> float:
    """The `scale` of `reach` for samples of categories, which are alike but not near-duplicates.

    Between 1, as if those of a category agreed completely, and n/N, as if they were independent:
    the geometric mean. 1 where each is a category of its own.
    """
    return math.sqrt(effective_number(groups) / len(groups))


def reach(stderr: float, n: float, scale: float, level: float) -> float:
    """Half the width of an interval for a mean, at any level.

    ``t * sqrt(stderr² + (t * scale / n)²)``, t of Student's distribution with n - 1 degrees of
    freedom. The second term accounts for events that n samples may have missed: for a share that
    is 0 in all samples, the interval reaches to t²/n instead of 0. Agresti and Coull achieve this
    for a rate at 0 or 1 by adding t²/2 successes and failures; here it applies to differences and
    averages of shares as well, with slightly wider intervals.

    `n` is the effective number of samples, `level` such as 0.95. `scale` is the most by which one
    sample can move n times the mean: 1 for a share; 0 if unlimited, which omits the second term.

    Returns:
        Half the width; infinity with fewer than two samples or without a standard error.

    Source: Agresti and Coull (1998), The American Statistician 52, 119-126; for paired
    differences Bonett and Price (2012), Statistics in Medicine 31, 1231-1237.
    """
    if n < 2 or math.isnan(stderr):
        return math.inf
    t = _student(n, level)
    return t * math.hypot(stderr, t * scale / n)


def reaches(stderr: _Floats, n: float, scale: _Floats | float) -> _Floats:
    """(C,) what `reach` gives for each standard error, at `LEVEL`."""
    scales = np.broadcast_to(scale, stderr.shape)
    return np.array([reach(error, n, of, LEVEL) for error, of in zip(stderr, scales, strict=True)])


def jackknife_error(changes: _Floats) -> _Floats:
    """(…,) the standard error, from the changes (G, …) when one group is left out."""
    error: _Floats = np.sqrt((changes**2).sum(axis=0) * (len(changes) - 1) / len(changes))
    return error


def student(values: _Floats) -> tuple[float, float]:
    """Student's interval for the mean of a few numbers, such as one per seed; NaN below two."""
    if len(values) < 2:
        return math.nan, math.nan
    reach = _student(len(values)) * values.std(ddof=1) / len(values) ** 0.5
    return float(values.mean() - reach), float(values.mean() + reach)


def pooled(
    values: Sequence[float | None], lows: Sequence[float | None], highs: Sequence[float | None]
) -> tuple[float, float, float]:
    """One number for the seeds of one recipe: their mean, with its interval.

    The interval holds two: the mean of the seeds' own intervals, which is about samples and
    documents, and Student's 95% interval between the seeds, which is about trainings. Values and
    the ends of their intervals are one for each seed, None where unknown.

    Returns:
        value, low, high; NaN where no seed has one.
    """
    known = [row for row in zip(values, lows, highs, strict=True) if row[0] is not None]
    if not known:
        return math.nan, math.nan, math.nan
    seeds = np.array(known, np.float64)  # None becomes NaN
    value, low, high = map(float, seeds.mean(axis=0))
    between = student(seeds[:, 0])
    if math.isnan(between[0]):
        return value, low, high
    return value, float(np.minimum(low, between[0])), float(np.maximum(high, between[1]))


def _jackknife(sizes: _Floats, sums: _Floats, link: Link = same) -> tuple[_Floats, _Floats]:
    """A mean, and what each group contributes to it.

    Returns:
        (C,) the number, and (G, C) the number minus that without the group; NaN for a single group.
    """
    total = sizes.sum()
    others = np.where(sizes < total, total - sizes, np.nan)[:, None]
    mean = sums.sum(axis=0) / total
    change = (sums - sizes[:, None] * mean) / others
    value = link(mean)
    return value, change if link is same else value - link(mean - change)


def _distances(changes: _Floats, n: float, scale: _Floats | float) -> tuple[_Floats, _Floats]:
    """How far the interval of an estimate reaches below and above it, (C,) each; NaN: unknown.

    `changes` (G, C) are as of `_jackknife`, `n` is the effective number of groups.

    Source: Hall (1992), Journal of the Royal Statistical Society B 54, 221-228: Student's quantile
    after a cubic transformation, which removes the skewness; `reach` where that is wider.
    """
    errors = jackknife_error(changes)
    half = reaches(errors, n, scale)
    half = np.where(np.isfinite(half) & (half > GRAIN * GRAIN), half, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        skewness = (changes**3).mean(axis=0) / (changes**2).mean(axis=0) ** 1.5
    third = np.where(np.abs(skewness) >= 1e-6, skewness, 1e-6) / 3
    quantiles = _student(n) * np.array([[1.0], [-1.0]])
    shifted = np.cbrt(1 + 3 * third * (quantiles / n**0.5 - third / (2 * n)))
    below, above = errors * ((shifted - 1) * n**0.5 / third)
    return np.maximum(half, below), np.maximum(half, -above)


def _student(count: float, level: float = LEVEL) -> float:
    """The quantile of Student's distribution for a mean of `count` numbers."""
    return float(stats.t.ppf((1 + level) / 2, max(count - 1, 1)))


def _sign_flips(change: _Floats, seed: int, flips: int) -> _Floats:
    """(C,) the share of sign flips of the groups' changes (G, C) with a sum at least as extreme."""
    random = np.random.default_rng((seed, 1))
    # rounding of a matrix product must not decide whether a sum is as extreme
    observed = np.abs(change.sum(axis=0)) * (1 - GRAIN) - GRAIN * GRAIN
    beyond = np.zeros(observed.shape)
    for start in range(0, flips, _CHUNK):
        size = (min(_CHUNK, flips - start), len(change))
        signs = 2.0 * random.integers(2, size=size, dtype=np.int8) - 1.0
        beyond += (np.abs(signs @ change) >= observed).sum(axis=0)
    share: _Floats = (1 + beyond) / (1 + flips)
    return share


def _group_sums(
    values: _Floats, groups: NDArray[np.integer], weights: _Floats | None = None
) -> tuple[_Floats, _Floats]:
    """The size (G,) of each group, or its weight, and the sum (G, C) of its rows."""
    order = np.argsort(groups, kind="stable")
    _, starts = np.unique(groups[order], return_index=True)
    each = np.ones(len(groups)) if weights is None else weights[order]
    return np.add.reduceat(each, starts), np.add.reduceat(values[order], starts, axis=0)
