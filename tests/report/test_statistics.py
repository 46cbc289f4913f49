"""Intervals against statsmodels, scipy, and numbers worked out by hand."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from pipeline.report.statistics import clustered_means, clustered_rates, normal, wilson


def test_wilson_is_that_of_statsmodels_and_scipy() -> None:
    successes, trials = np.array([0.0, 3, 50, 100]), np.array([100.0, 10, 100, 100])
    low, high = wilson(successes, trials)
    expected = proportion_confint(successes, trials, method="wilson")
    np.testing.assert_allclose((low, high), expected, atol=1e-12)
    of_scipy = stats.binomtest(3, 10).proportion_ci(method="wilson")
    assert (low[1], high[1]) == pytest.approx((of_scipy.low, of_scipy.high))


def test_wilson_holds_its_own_rate_at_the_ends() -> None:
    low, high = wilson(np.array([0.0, 7.0]), np.array([7.0, 7.0]))
    assert low[0] == 0.0
    assert 0 < high[0] < 1
    assert high[1] == 1.0
    assert 0 < low[1] < 1


def test_normal_interval_and_no_stderr() -> None:
    low, high = normal(np.array([0.5, 0.5]), np.array([0.1, np.nan]))
    assert (low[0], high[0]) == pytest.approx(stats.norm.interval(0.95, 0.5, 0.1))
    assert np.isnan([low[1], high[1]]).all()


def test_rates_of_unrelated_samples_are_plain_wilson() -> None:
    outcomes = np.arange(200).reshape(100, 2) % 3 == 0
    rates = clustered_rates(outcomes, np.arange(100))
    low, high = wilson(outcomes.sum(axis=0).astype(float), np.array([100.0, 100.0]))
    np.testing.assert_allclose(rates.value, outcomes.mean(axis=0))
    np.testing.assert_allclose((rates.low, rates.high), (low, high))


@pytest.mark.parametrize("successes", [0, 7, 20])
def test_samples_that_agree_within_a_group_count_once(successes: int) -> None:
    one_each = np.arange(20)[:, None] < successes
    groups = np.arange(20)
    copied = clustered_rates(np.repeat(one_each, 5, axis=0), np.repeat(groups, 5))
    single = clustered_rates(one_each, groups)
    assert copied.value == single.value
    # G/(G-1) against N/(N-1) is all that differs
    assert copied.low == pytest.approx(single.low, abs=0.01)
    assert copied.high == pytest.approx(single.high, abs=0.01)


def test_means_agree_with_the_textbook_interval() -> None:
    values = np.random.default_rng(1).normal(3, 2, size=(400, 1))
    means = clustered_means(values, np.arange(400), seed=0)
    low, high = stats.norm.interval(0.95, values.mean(), values.std(ddof=1) / 20)
    assert means.value == pytest.approx(values.mean())
    assert means.low == pytest.approx(low, abs=0.03)
    assert means.high == pytest.approx(high, abs=0.03)


def test_means_are_those_of_an_explicit_bootstrap_of_groups() -> None:
    values = np.random.default_rng(2).normal(size=(90, 2))
    groups = np.repeat(np.arange(30), [1, 5] * 15)
    ours = clustered_means(values, groups, seed=3, draws=128)
    random = np.random.default_rng(3)
    means = []
    for drawn in random.integers(30, size=(128, 30)):
        rows = np.concatenate([values[groups == group] for group in drawn])
        means.append(rows.mean(axis=0))
    expected = np.quantile(means, [0.025, 0.975], axis=0)
    np.testing.assert_allclose((ours.low, ours.high), expected, atol=1e-8)


def test_copies_of_a_sample_do_not_narrow_the_interval_of_the_mean() -> None:
    values = np.random.default_rng(4).normal(size=(50, 1))
    single = clustered_means(values, np.arange(50), seed=0)
    copied = clustered_means(np.repeat(values, 10, axis=0), np.repeat(np.arange(50), 10), seed=0)
    assert copied.low == pytest.approx(single.low)
    assert copied.high == pytest.approx(single.high)


def test_one_group_tells_no_spread() -> None:
    means = clustered_means(np.array([[1.0], [2.0]]), np.array([5, 5]), seed=0)
    assert means.value == [1.5]
    assert np.isnan([means.low, means.high]).all()


def test_the_seed_settles_the_interval() -> None:
    values = np.random.default_rng(5).normal(size=(40, 1))
    first, again, other = (clustered_means(values, np.arange(40), seed=s) for s in (0, 0, 1))
    assert first.low == again.low
    assert first.low != other.low
