"""Estimates of memorization: every metric of every split, with intervals and differences.

Of a model with a twin also counterfactual memorization: what the model recites because the samples
were in its training data. A baseline may recite a text that it never saw, since the text is easy,
or famous. Its twin was trained on the same text without the samples. What the model recites and its
twin does not is due to the samples, and so is what a bypass leaves of that.

Source: Zhang et al. (2021), arXiv 2112.12938, who take the difference of expected accuracies over
many models; here it is the difference of exact match between two, as in Hubble, arXiv 2510.19811.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.measured import Grid, ModelTables, grids
from pipeline.analysis.rows import Measure, rows_of
from pipeline.analysis.statistics import (
    Estimates,
    clustered_errors,
    clustered_means,
    clustered_rates,
    effective_number,
    paired_differences,
    reaches,
)
from pipeline.measure.extraction import SCHEMES, TRIES, out_within
from pipeline.measure.metrics import METRICS, Metric

COUNTERFACTUAL = "counterfactual_by_copies"
"""Exact match of a model minus its twin's, of the samples with one number of copies; -1 to 1."""

CELLS = 1 << 23
"""Number of values whose differences are tested at once, 64 MB; it takes about five times that."""


def of_memorization(model: ModelTables, seed: int) -> Iterator[pl.DataFrame]:
    """The rows of one model's memorization table, a frame per split and kind of estimate."""
    for split, grid in grids(model).items():
        for rows in _split(grid, seed):
            yield rows.with_columns(split=pl.lit(split))


def k_values(suffix_length: int) -> list[int]:
    """The lengths at which exact match is reported: 1, 2, 4, … below S, and S itself."""
    return [*(1 << i for i in range((suffix_length - 1).bit_length())), suffix_length]


def _split(grid: Grid, seed: int) -> Iterator[pl.DataFrame]:
    """The rows of one split, a frame per kind of estimate."""
    groups, exact, right = grid.groups, grid.values("exact_match"), grid.values("correct_length")
    known = grid.first["decoded"].to_numpy()
    shown = [each for each in METRICS if each.aggregate and grid.known(each.name)]
    decoded = [each for each in shown if each.needs == "greedy continuation" and not known.all()]
    whole = [each for each in shown if each not in decoded]
    log_probs = {metric: grid.values(column) for metric, column in SCHEMES.items()}
    measures = [
        *(
            Measure("exact_match_at_k", right >= k, groups, rate=True, labels={"k": k})
            for k in k_values(grid.first["suffix_length"][0])
        ),
        *(_measure(grid, each) for each in whole),
        *(
            Measure(metric, out_within(values, n), groups, rate=True, labels={"k": n})
            for metric, values in log_probs.items()
            for n in TRIES
        ),
    ]
    yield from _estimated(grid, measures, seed)
    if decoded and known.any():
        yield from _estimated(grid, [_measure(grid, each, known) for each in decoded], seed)
    for metric, values in log_probs.items():
        yield from _hidden(grid, metric, values)
    copies = grid.first["copies"]
    by_copies = [
        ({"copies": count}, (copies == count).fill_null(False).to_numpy())
        for count in copies.drop_nulls().unique().sort()
    ]
    for labels, of in by_copies:
        recited = Measure("exact_match_by_copies", exact[of], groups[of], rate=True, labels=labels)
        yield from _estimated(grid, [recited], seed)
    if grid.known("twin_exact_match"):
        beyond = exact.astype(np.float64) - grid.values("twin_exact_match").astype(np.float64)
        for labels, of in by_copies:
            measure = Measure(COUNTERFACTUAL, beyond[of], groups[of], labels=labels)
            yield _counterfactual(grid, measure, seed)


def _measure(grid: Grid, metric: Metric, of: slice | NDArray[np.bool_] = slice(None)) -> Measure:
    values, groups = grid.values(metric.name)[of], grid.groups[of]
    bounded = (metric.least, metric.most) == (0, 1)
    return Measure(metric.name, values, groups, rate=metric.aggregate == "rate", bounded=bounded)


def _hidden(grid: Grid, metric: str, log_probs: NDArray[np.float64]) -> Iterator[pl.DataFrame]:
    """The share of samples that sampling still extracts although an intervention ends the recital.

    `log_probs` (N, V), nats, are those of the metric, which is of `extraction.SCHEMES`.
    """
    exact = grid.values("exact_match")
    for v, name in enumerate(grid.names):
        hidden = exact[:, grid.baseline] & ~exact[:, v]
        for n in TRIES if hidden.any() else ():
            out, groups = out_within(log_probs[hidden, v, None], n), grid.groups[hidden]
            measure = Measure(f"hidden_{metric}", out, groups, rate=True, labels={"k": n})
            yield rows_of([name], measure, clustered_rates(out, groups))


def _counterfactual(grid: Grid, measure: Measure, seed: int) -> pl.DataFrame:
    """The rows of `COUNTERFACTUAL` for one number of copies.

    The intervals are those of `statistics.reach`, which have a width even where no sample differs
    between the two: few samples cannot show that nothing is memorized.
    """
    values, groups = measure.values, measure.groups
    mean, stderr = clustered_errors(values, groups)
    half = reaches(stderr, effective_number(groups), 1.0)
    estimates = Estimates(mean, np.maximum(mean - half, -1.0), np.minimum(mean + half, 1.0))
    differences = paired_differences(values, values[:, [grid.baseline]], groups, seed)
    return rows_of(grid.names, measure, estimates, differences).drop_nans("value")


def _estimated(grid: Grid, measures: Sequence[Measure], seed: int) -> Iterator[pl.DataFrame]:
    """A frame per measure of the same samples.

    Measures that fit into memory together share the draws of the differences, which take long.
    """
    n, groups = len(grid.names), measures[0].groups
    at_once = max(1, CELLS // (len(groups) * n))
    for start in range(0, len(measures), at_once):
        some = measures[start : start + at_once]
        stacked = np.concatenate([m.values.astype(np.float64) for m in some], axis=1)
        unmodified = np.repeat(np.arange(len(some)) * n + grid.baseline, n)
        scale = np.repeat([float(m.bounded) for m in some], n)
        differences = paired_differences(stacked, stacked[:, unmodified], groups, seed, scale=scale)
        for i, measure in enumerate(some):
            of = slice(i * n, (i + 1) * n)
            if measure.rate:
                estimates = clustered_rates(measure.values.astype(np.bool_), groups)
            else:
                estimates = clustered_means(stacked[:, of], groups, scale=scale[of])
            yield rows_of(grid.names, measure, estimates, differences[of])
