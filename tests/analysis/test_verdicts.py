"""Three values, and intervals that are put together."""

import math

import numpy as np
import polars as pl
import pytest

from pipeline.analysis.estimates import Estimate, combined
from pipeline.analysis.statistics import clustered_errors, effective_number, reach
from pipeline.analysis.verdicts import MAIN, VALUES, compared, rule, verdicts

S, N, U = VALUES  # supported, contradicted, undecided
INSIDE = Estimate(0.5, 0.4, 0.6)


def test_a_threshold_is_crossed_by_a_whole_interval_alone() -> None:
    def against(compare: str, *thresholds: float) -> list[str]:
        return [compared(INSIDE, compare, threshold) for threshold in thresholds]

    assert against("at_least", 0.3, 0.5, 0.7) == [S, U, N]
    assert against("at_most", 0.3, 0.5, 0.7) == [N, U, S]
    assert against("above", 0.3, 0.4, 0.6) == [S, U, N]
    unknown = Estimate(math.nan, math.nan, math.nan)
    assert {compared(unknown, each, 0) for each in ("at_least", "at_most", "above")} == {U}


def test_logic() -> None:
    for of_units, *expected in (
        ([S, S, S], S, S, S),
        ([S, S, U], U, S, S),
        ([S, S, N], N, S, S),
        ([S, U, U], U, S, U),
        ([S, N], N, S, N),
        ([U, N, N], N, U, N),
        ([U, U, N], N, U, U),
        ([N, N], N, N, N),
    ):
        frame = pl.DataFrame({"verdict": of_units})
        made = [frame.select(rule(name)).item() for name in ("every", "some", "most")]  # type: ignore[arg-type]
        assert made == expected, of_units


def test_intervals_of_sums() -> None:
    one, other = Estimate(0.5, 0.2, 0.6), Estimate(0.3, 0.26, 0.7)
    apart = combined([(1, one), (-1, other)])
    assert apart.value == pytest.approx(0.2)
    assert apart.low == pytest.approx(0.2 - math.hypot(0.3, 0.4))
    assert apart.high == pytest.approx(0.2 + math.hypot(0.1, 0.04))
    together = combined([(1, one), (-1, other)], offset=1, related=True)
    assert (together.low, together.high) == (pytest.approx(0.5), pytest.approx(1.34))


def test_the_error_is_shared_among_all_conditions(evidence_of_paper: pl.DataFrame) -> None:
    made = verdicts(evidence_of_paper).filter(setup=MAIN, claim="late-block")
    conditions = made.filter(pl.col("condition").is_not_null())
    assert conditions.height > 20
    assert set(conditions["level"]) == {1 - 0.05 / conditions.height}


def test_errors_of_groups() -> None:
    """The jackknife's; ten groups of five equal samples are ten samples."""
    random = np.random.default_rng(1)
    values, groups = random.random((40, 1)), random.integers(6, size=40)
    without = np.array([values[groups != g].mean() for g in range(6)])
    expected = math.sqrt(((without - values.mean()) ** 2).sum() * 5 / 6)
    assert clustered_errors(values, groups)[1] == pytest.approx(expected)
    values = np.random.default_rng(0).random((10, 2))
    mean, errors = clustered_errors(np.repeat(values, 5, axis=0), np.repeat(np.arange(10), 5))
    assert mean == pytest.approx(values.mean(axis=0))
    assert errors == pytest.approx(values.std(axis=0, ddof=1) / math.sqrt(10))
    assert effective_number(np.repeat(np.arange(10), 5)) == pytest.approx(10)
    assert effective_number(np.array([0, 0, 0, 1])) == pytest.approx(1.6)
    weights = np.arange(1.0, 11.0)
    ratio, _ = clustered_errors(values, np.arange(10), weights)
    assert ratio == pytest.approx(values.sum(axis=0) / 55)
    assert effective_number(np.arange(10), weights) == pytest.approx(55**2 / 385)
    assert np.isnan(clustered_errors(values, np.zeros(10, dtype=int))[1]).all()


def test_reach() -> None:
    assert reach(0.01, 1e9, 0.0, 0.95) == pytest.approx(0.0196, rel=1e-3)
    nothing_seen = reach(0.0, 100, 1.0, 0.95)
    assert 0.036 < nothing_seen < 0.045  # the exact limit is 0.036, two-sided
    assert reach(math.nan, 100, 1.0, 0.95) == math.inf
    assert reach(0.1, 1, 1.0, 0.95) == math.inf
