"""Intervals against statsmodels, scipy, and numbers worked out by hand."""

import time

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from pipeline.analysis.statistics import (
    clustered_means,
    clustered_rates,
    holm,
    paired_differences,
    pooled,
    wilson,
)
from tests.analysis import verdict_errors


def test_wilsons_interval_is_that_of_statsmodels() -> None:
    successes, trials = np.array([0.0, 3, 50, 100]), np.array([100.0, 10, 100, 100])
    low, high = wilson(successes, trials)
    expected = proportion_confint(successes, trials, method="wilson")
    np.testing.assert_allclose((low, high), expected, atol=1e-12)
    low, high = wilson(np.array([0.0, 7.0]), np.array([7.0, 7.0]))  # exact at the ends
    assert low[0] == 0.0 < high[0] < 1
    assert 0 < low[1] < high[1] == 1.0


@pytest.mark.parametrize("successes", [0, 7, 20])
def test_samples_that_agree_within_a_group_count_once(successes: int) -> None:
    """With few groups their agreement is taken for granted; one of them is lost to it."""
    one_each = np.arange(20)[:, None] < successes
    copied = clustered_rates(np.repeat(one_each, 5, axis=0), np.repeat(np.arange(20), 5))
    student = [stats.t.ppf(0.975, n - 1) for n in (20, 100)]
    rate, z = successes / 20, stats.norm.ppf(0.975) * student[0] / student[1]
    low, high = wilson(np.array([rate * 19]), np.array([19.0]), z)
    assert copied.value == rate
    np.testing.assert_allclose((copied.low, copied.high), (low, high), rtol=0, atol=1e-3)


def test_agreement_within_many_groups_is_estimated_and_one_group_tells_next_to_nothing() -> None:
    one_each = np.arange(200)[:, None] % 3 == 0
    copied = clustered_rates(np.repeat(one_each, 5, axis=0), np.repeat(np.arange(200), 5))
    low, high = wilson(np.array([67.0]), np.array([200.0]))
    np.testing.assert_allclose((copied.low, copied.high), (low, high), rtol=0, atol=0.002)
    together = clustered_rates(np.arange(200)[:, None] < 150, np.zeros(200, dtype=int))
    assert together.value == 0.75
    assert together.low < 0.05
    assert together.high > 0.98


def test_disagreement_within_groups_narrows_no_interval() -> None:
    apart = clustered_rates(np.arange(200)[:, None] % 2 == 0, np.arange(200) // 2)
    low, high = wilson(np.array([100.0]), np.array([200.0]))
    assert apart.low <= low
    assert apart.high >= high


def test_means_agree_with_the_textbook_interval() -> None:
    values = np.random.default_rng(1).normal(3, 2, size=(400, 1))
    means = clustered_means(values, np.arange(400))
    low, high = stats.t.interval(0.95, 399, values.mean(), values.std(ddof=1) / 20)
    assert means.value == pytest.approx(values.mean())
    assert low - 0.02 < means.low[0] <= low + 1e-9
    assert high - 1e-9 <= means.high[0] < high + 0.02


def test_the_mean_of_skewed_values_may_be_far_above() -> None:
    """Hall's interval reaches further to the side of the rare large values."""
    values = np.exp(np.random.default_rng(2).normal(size=(90, 1)))
    means = clustered_means(values, np.arange(90))
    half = stats.t.ppf(0.975, 89) * values.std(ddof=1) / 90**0.5
    assert means.low == pytest.approx(values.mean() - half)
    assert means.high[0] - values.mean() > 1.2 * half
    mirrored = clustered_means(-values, np.arange(90))
    assert (mirrored.low[0], mirrored.high[0]) == pytest.approx((-means.high[0], -means.low[0]))


@pytest.mark.parametrize("name", verdict_errors.DRAWS)
def test_intervals_hold_the_truth(name: str) -> None:
    """Of 1,000 intervals, at least 93%: nearly three standard errors below nominal coverage."""
    assert verdict_errors.coverage(name, 1000) >= 0.93


def paired(seed: int, n: int, shift: float = 0.0) -> tuple[NDArray[np.float64], ...]:
    """A baseline (n, 1) and values (n, 1) that follow it."""
    random = np.random.default_rng(seed)
    baseline = random.normal(size=(n, 1))
    return baseline + shift + random.normal(0, 0.5, size=(n, 1)), baseline


def test_copies_of_a_sample_narrow_no_interval() -> None:
    values, baseline = paired(7, 40, 0.2)
    of_one, tenfold = (
        [np.repeat(each, n, axis=0) for each in (values, baseline, np.arange(40))] for n in (1, 10)
    )
    single, copied = (paired_differences(*each, seed=0) for each in (of_one, tenfold))
    for field in ("value", "low", "high", "p_value"):
        assert getattr(copied, field) == pytest.approx(getattr(single, field))
    single, copied = (clustered_means(each[0], each[2]) for each in (of_one, tenfold))
    np.testing.assert_allclose([copied.low, copied.high], [single.low, single.high])
    alone = clustered_means(np.array([[1.0], [2.0]]), np.array([5, 5]))  # one group, no spread
    assert alone.value == [1.5]
    assert np.isnan([alone.low, alone.high]).all()


def test_differences_are_those_of_the_paired_t_test_and_of_scipys_permutations() -> None:
    values, baseline = paired(6, 300, 0.06)
    ours = paired_differences(values, baseline, np.arange(300), seed=0, draws=4000)
    change = (values - baseline)[:, 0]
    of_scipy = stats.ttest_rel(values[:, 0], baseline[:, 0]).confidence_interval(0.95)
    assert ours.value == pytest.approx(change.mean())
    assert (ours.low[0], ours.high[0]) == pytest.approx(of_scipy, abs=0.005)
    flipped = stats.permutation_test(
        (change,), np.mean, permutation_type="samples", n_resamples=4000, rng=1
    )
    assert 0.01 < flipped.pvalue < 0.5
    assert ours.p_value == pytest.approx(flipped.pvalue, abs=0.02)
    assert ours.p_value == pytest.approx(stats.ttest_1samp(change, 0).pvalue, abs=0.02)
    # pairing takes out what the samples differ by among themselves
    means = clustered_means(np.hstack([values, baseline]), np.arange(300))
    assert ours.high - ours.low < 0.7 * (means.high - means.low).min()


@pytest.mark.parametrize(("worse", "better"), [(4, 0), (9, 2), (12, 9), (1, 1)])
def test_outcomes_of_unrelated_samples_are_tested_as_by_mcnemar(worse: int, better: int) -> None:
    baseline = np.array([1] * worse + [0] * better + [1] * 60 + [0] * 40, dtype=float)[:, None]
    values = np.array([0] * worse + [1] * better + [1] * 60 + [0] * 40, dtype=float)[:, None]
    ours = paired_differences(values, baseline, np.arange(len(values)), seed=0, draws=20_000)
    exact = mcnemar([[60, worse], [better, 40]], exact=True).pvalue
    assert ours.p_value == pytest.approx(exact, abs=0.012)
    assert ours.value == pytest.approx((better - worse) / len(values))


def test_the_error_of_a_difference_leaves_out_whole_groups() -> None:
    values, baseline = paired(8, 90)
    groups = np.repeat(np.arange(30), [1, 5] * 15)
    ours = paired_differences(values, baseline, groups, seed=3, draws=128)
    without = [(values - baseline)[groups != group].mean() for group in range(30)]
    error = np.sqrt(((np.array(without) - ours.value) ** 2).sum() * 29 / 30)
    n = 90**2 / (15 * 1 + 15 * 25)
    half = stats.t.ppf(0.975, n - 1) * error
    assert max(ours.value - ours.low, ours.high - ours.value) >= half * (1 - 1e-9)
    assert ours.high - ours.low == pytest.approx(2 * half, rel=0.2)


def test_no_change_has_an_interval_only_where_values_have_limits() -> None:
    """There is room for changes, and for values, that the sample missed."""
    same = np.random.default_rng(10).normal(size=(50, 1))
    ours = paired_differences(same, same, np.arange(50), seed=0)
    assert (ours.value[0], ours.p_value[0]) == (0.0, 1.0)
    assert np.isnan([ours.low, ours.high]).all()
    rates = (same > 0).astype(float)
    ours = paired_differences(rates, rates, np.arange(50), seed=0, scale=np.ones(1))
    assert ours.value == 0
    assert ours.high == -ours.low == pytest.approx(stats.t.ppf(0.975, 49) ** 2 / 50)
    ones = clustered_means(np.ones((64, 2)), np.arange(64), scale=np.array([0.0, 1.0]))
    assert np.isnan([ones.low[0], ones.high[0]]).all()
    assert ones.high[1] == 1
    assert ones.low[1] == pytest.approx(1 - stats.t.ppf(0.975, 63) ** 2 / 64)


def test_infinite_values_give_nothing_and_spoil_no_other() -> None:
    values, baseline = paired(12, 30, 0.5)
    spoiled = values.copy()
    spoiled[3] = -np.inf
    both = paired_differences(np.hstack([values, spoiled]), baseline, np.arange(30), seed=0)
    alone = paired_differences(values, baseline, np.arange(30), seed=0)
    assert both.value[0] == pytest.approx(alone.value[0])
    assert both.p_value[0] == alone.p_value[0]
    assert np.isnan([both.value[1], both.low[1], both.high[1], both.p_value[1]]).all()
    means = clustered_means(np.hstack([values, spoiled]), np.arange(30))
    assert np.isfinite([means.low[0], means.high[0]]).all()
    assert np.isnan([means.low[1], means.high[1]]).all()


def test_the_difference_of_two_perplexities_is_that_of_a_bootstrap() -> None:
    random = np.random.default_rng(13)
    words = random.integers(5, 50, size=80).astype(float)
    baseline = -2 * words[:, None] + random.normal(size=(80, 1))
    values = baseline - 0.3 * words[:, None]
    how = {"weights": words, "link": lambda mean: np.exp(-mean)}
    ours = paired_differences(values, baseline, np.arange(80), 5, draws=128, **how)
    total = words.sum()
    expected = np.exp(-values.sum() / total) - np.exp(-baseline.sum() / total)
    assert ours.value == pytest.approx(expected)
    drawn = np.random.default_rng(5).integers(80, size=(4000, 80))
    perplexities = [
        np.exp(-each[drawn, 0].sum(axis=1) / words[drawn].sum(axis=1))
        for each in (values, baseline)
    ]
    low, high = np.quantile(perplexities[0] - perplexities[1], [0.025, 0.975])
    assert (ours.low[0], ours.high[0]) == pytest.approx((low, high), rel=0.02)
    own = clustered_means(values, np.arange(80), **how)
    assert own.value == pytest.approx(np.exp(-values.sum() / total))
    ends = np.quantile(perplexities[0], [0.025, 0.975])
    assert (own.low[0], own.high[0]) == pytest.approx(ends, rel=0.02)


def test_without_an_effect_few_p_values_are_small() -> None:
    random = np.random.default_rng(14)
    n, columns = 120, 400
    groups = np.repeat(np.arange(60), 2)
    shared = np.repeat(random.normal(size=(60, columns)), 2, axis=0)  # within a group
    values = shared + random.normal(size=(n, columns))
    p_values = paired_differences(values, np.zeros((n, 1)), groups, seed=0, draws=1000).p_value
    assert 0.02 < (p_values <= 0.05).mean() < 0.08
    assert 0.4 < np.mean(p_values) < 0.6
    # as if the samples were unrelated, twice as many would be
    assert (stats.ttest_1samp(values, 0).pvalue <= 0.05).mean() > 0.08


def test_holm_by_hand() -> None:
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    some = holm(np.array([0.2, np.nan, 0.01]))
    assert some[[0, 2]] == pytest.approx([0.2, 0.02])
    assert np.isnan(some[1])
    assert np.isnan(holm(np.array([np.nan]))).all()


def test_seeds_have_an_interval_together_if_each_has_one() -> None:
    known = pooled([0.1, 0.1, None], [0.0, 0.05, None], [0.2, 0.3, None])
    assert known == pytest.approx((0.1, 0.025, 0.25))
    apart = pooled([0.0, 1.0], [0.0, 0.9], [0.1, 1.0])
    assert apart[1:] == pytest.approx(stats.t.interval(0.95, 1, 0.5, 0.5))
    for lows, highs in (([None, None], [None, None]), ([0.0, None], [0.2, None])):
        value, *ends = pooled([0.1, 0.1], lows, highs)
        assert value == 0.1
        assert np.isnan(ends).all()
    assert pooled([0.1], [0.0], [0.3]) == pytest.approx((0.1, 0.0, 0.3))
    assert np.isnan(pooled([None], [None], [None])).all()


def test_all_samples_of_the_paper_take_seconds() -> None:
    """15,000 samples in 12,219 groups, 41 interventions, in the memory of a laptop."""
    random = np.random.default_rng(16)
    values = (random.random((15_000, 41)) < 0.8).astype(float)
    groups = random.integers(12_219, size=15_000)
    began = time.process_time()
    ours = paired_differences(values, values[:, :1], groups, seed=0)
    assert time.process_time() - began < 20
    assert ours.p_value[0] == 1.0
    assert np.isfinite(ours.low[1:]).all()


def test_rates_of_unrelated_samples_are_plain_wilson() -> None:
    outcomes = np.arange(200).reshape(100, 2) % 3 == 0
    rates = clustered_rates(outcomes, np.arange(100))
    low, high = wilson(outcomes.sum(axis=0).astype(float), np.array([100.0, 100.0]))
    np.testing.assert_allclose(rates.value, outcomes.mean(axis=0))
    np.testing.assert_allclose((rates.low, rates.high), (low, high))


def test_a_change_everywhere_has_the_smallest_p_value() -> None:
    baseline = np.random.default_rng(11).random((60, 1))
    ours = paired_differences(baseline - 1, baseline, np.arange(60), seed=0, draws=999)
    assert ours.p_value == pytest.approx(1 / 1000)
