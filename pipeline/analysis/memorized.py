"""Estimates of memorization: every metric of every split, with intervals and differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis import twins
from pipeline.analysis.measured import Grid, ModelTables, grids
from pipeline.analysis.rows import Measure, rows_of
from pipeline.analysis.statistics import (
    clustered_means,
    clustered_rates,
    paired_differences,
)
from pipeline.interventions.interventions import BASELINE
from pipeline.measure.extraction import SCHEMES, TRIES, out_within
from pipeline.measure.metrics import METRICS, Metric

CELLS = 1 << 23
"""Number of values whose differences are tested at once, 64 MB; it takes about five times that."""


def of_memorization(model: ModelTables, seed: int) -> list[pl.DataFrame]:
    """The rows of one model's memorization table, a frame per split and kind of estimate."""
    names = model.interventions["intervention"].to_list()
    return [
        rows.with_columns(pl.lit(split).alias("split"))
        for split, grid in grids(model).items()
        for rows in _split(model, names, grid, k_values(grid.suffix_length), seed)
    ]


def k_values(suffix_length: int) -> list[int]:
    """The lengths at which exact match is reported: 1, 2, 4, … below S, and S itself."""
    return [1 << i for i in range(suffix_length.bit_length()) if 1 << i < suffix_length] + [
        suffix_length
    ]


def _split(
    model: ModelTables, names: Sequence[str], grid: Grid, lengths: Sequence[int], seed: int
) -> Iterator[pl.DataFrame]:
    """The rows of one split, a frame per kind of estimate."""
    groups, exact, right = grid.groups, grid.values("exact_match"), grid.values("correct_length")
    shown = [each for each in METRICS if each.aggregate and grid.known(each.name)]
    decoded = [each for each in shown if each.needs == "greedy continuation"]
    some = bool(decoded) and not grid.decoded.all()
    whole = [each for each in shown if not (some and each in decoded)]
    log_probs = {metric: grid.values(column) for metric, column in SCHEMES.items()}
    measures = [
        *(
            Measure("exact_match_at_k", right >= k, groups, rate=True, labels={"k": k})
            for k in lengths
        ),
        *(_measure(each, grid.values(each.name), groups) for each in whole),
        *(
            Measure(metric, out_within(values, n), groups, rate=True, labels={"k": n})
            for metric, values in log_probs.items()
            for n in TRIES
        ),
    ]
    yield from _estimated(model, names, measures, seed)
    if some and grid.decoded.any():
        known = grid.decoded
        measures = [
            _measure(each, grid.values(each.name)[known], groups[known]) for each in decoded
        ]
        yield from _estimated(model, names, measures, seed)
    for metric, values in log_probs.items():
        yield from _hidden(model, names, metric, exact, values, groups)
    for copies in np.unique(grid.copies[~np.isnan(grid.copies)]):
        chosen = grid.copies == copies
        labels = {"copies": int(copies)}
        by_copies = Measure(
            "exact_match_by_copies", exact[chosen], groups[chosen], rate=True, labels=labels
        )
        yield from _estimated(model, names, [by_copies], seed)
    if "twin_exact_match" in model.memorization.columns:
        beyond = exact.astype(np.float64) - grid.values("twin_exact_match")
        yield from twins.by_copies(model, names, beyond, grid.copies, groups, seed)


def _measure(metric: Metric, values: NDArray[Any], groups: NDArray[np.integer]) -> Measure:
    bounded = (metric.least, metric.most) == (0, 1)
    return Measure(metric.name, values, groups, rate=metric.aggregate == "rate", bounded=bounded)


def _hidden(
    model: ModelTables,
    names: Sequence[str],
    metric: str,
    exact: NDArray[np.bool_],
    log_probs: NDArray[np.float64],
    groups: NDArray[np.integer],
) -> Iterator[pl.DataFrame]:
    """The share of samples that sampling still extracts although an intervention ends the recital.

    Args:
        model: of the rows.
        names: of the V interventions.
        metric: of `extraction.SCHEMES`.
        exact: (N, V) exact match.
        log_probs: (N, V) nats, those of the metric.
        groups: (N,) of the samples.
    """
    whole = names.index(BASELINE.name)
    for v, name in enumerate(names):
        hidden = exact[:, whole] & ~exact[:, v]
        if not hidden.any():
            continue
        for n in TRIES:
            out = out_within(log_probs[hidden, v, None], n)
            measure = Measure(f"hidden_{metric}", out, groups[hidden], rate=True, labels={"k": n})
            yield rows_of(model, [name], measure, clustered_rates(out, measure.groups))


def _estimated(
    model: ModelTables,
    names: Sequence[str],
    measures: Sequence[Measure],
    seed: int,
) -> Iterator[pl.DataFrame]:
    """A frame per measure of the same samples.

    Measures that fit into memory together share the draws of the differences, which take long.
    """
    whole, n, groups = names.index(BASELINE.name), len(names), measures[0].groups
    at_once = max(1, CELLS // (len(groups) * n))
    if len(measures) > at_once:
        for start in range(0, len(measures), at_once):
            yield from _estimated(model, names, measures[start : start + at_once], seed)
        return
    stacked = np.concatenate([m.values.astype(np.float64) for m in measures], axis=1)
    columns = [slice(i * n, (i + 1) * n) for i in range(len(measures))]
    unmodified = np.repeat(np.arange(len(measures)) * n + whole, n)
    scale = np.repeat([float(m.bounded) for m in measures], n)
    differences = paired_differences(stacked, stacked[:, unmodified], groups, seed, scale=scale)
    mean = np.repeat([not m.rate for m in measures], n)
    means = clustered_means(stacked[:, mean], groups, scale=scale[mean]) if mean.any() else None
    done = 0  # columns of `means`
    for measure, here in zip(measures, columns, strict=True):
        if measure.rate or means is None:
            estimates = clustered_rates(measure.values.astype(np.bool_), groups)
        else:
            estimates = means[done : done + n]
            done += n
        yield rows_of(model, names, measure, estimates, differences[here])
