"""A benchmark's documents as a matrix, and how lm-eval computes its score from them."""

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.measured import Grid, ModelTables
from pipeline.analysis.statistics import Link, same

_Floats = NDArray[np.float64]


class Documents(NamedTuple):
    """N documents of a task under V interventions.

    Args:
        values: (N, V) of one metric.
        weights: (N,) words or bytes, where lm-eval divides by their sum; else 1.
        groups: (N,) documents of one category have the same number, all of them different numbers
            where the task has no categories.
        link: how lm-eval's value follows from their mean, found by trial, not by the metric's
            name; None: in no known way.
    """

    values: _Floats
    weights: _Floats
    groups: NDArray[np.integer]
    link: Link | None


def by_document(model: ModelTables, task: object, metric: object) -> Documents | None:
    """The documents of one metric of a task; None without benchmarks or with documents missing."""
    grid = Grid(model.documents.filter(task=task, metric=metric), model.names, "doc_id")
    if model.benchmarks is None or not grid.complete:
        return None
    first, values = grid.first, grid.values("value")
    weights = first["weight"].to_numpy() if "weight" in first.columns else np.ones(first.height)
    category = first["category"]
    alone = pl.Series(range(first.height))
    groups = (alone if category.null_count() else category.rank("dense")).to_numpy()
    reported = Grid(model.benchmarks.filter(task=task, metric=metric), model.names, "task")
    means = values.sum(axis=0) / weights.sum()
    for link in (same, perplexity, bits):
        if np.allclose(link(means), reported.values("value")[0], rtol=1e-6, atol=1e-9):
            return Documents(values, weights, groups, link)
    return Documents(values, weights, groups, None)


def perplexity(means: _Floats) -> _Floats:
    """The perplexity, from the mean log-likelihood in nats per word or byte."""
    with np.errstate(over="ignore"):
        value: _Floats = np.exp(-means)
    return value


def bits(means: _Floats) -> _Floats:
    """Bits, from the mean log-likelihood in nats."""
    value: _Floats = means / -np.log(2.0)
    return value
