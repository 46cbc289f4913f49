"""A benchmark's documents as a matrix, and how lm-eval computes its score from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.measured import Grid
from pipeline.analysis.statistics import Link


class Documents(NamedTuple):
    """N documents of a task under V interventions.

    Args:
        values: (N, V) of one metric.
        weights: (N,) words or bytes, where lm-eval divides by their sum; else 1.
        groups: (N,) documents of one category have the same number, all of them different numbers
            where the task has no categories.
    """

    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    groups: NDArray[np.integer]


def by_document(
    documents: pl.DataFrame, task: object, metric: object, names: Sequence[str]
) -> Documents | None:
    """The values of one metric of a task; None if the table is incomplete."""
    grid = Grid(documents.filter(task=task, metric=metric), names, "doc_id")
    if not grid.complete:
        return None
    weighted = "weight" in documents.columns
    weights = grid.first["weight"].to_numpy() if weighted else np.ones(grid.first.height)
    category = grid.first["category"]
    alone = pl.Series(range(len(category)))
    groups = (alone if category.null_count() else category.rank("dense")).to_numpy()
    return Documents(grid.values("value"), weights, groups)


def same(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean itself."""
    return means


def perplexity(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """The perplexity, from the mean log-likelihood in nats per word or byte."""
    with np.errstate(over="ignore"):
        value: NDArray[np.float64] = np.exp(-means)
    return value


def bits(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bits, from the mean log-likelihood in nats."""
    value: NDArray[np.float64] = means / -np.log(2.0)
    return value


def link_of(
    values: NDArray[np.float64], weights: NDArray[np.float64], reported: NDArray[np.float64]
) -> Link | None:
    """How lm-eval's values follow from the documents', found by trial rather than by metric name.

    Args:
        values: (N, V).
        weights: (N,).
        reported: (V,) lm-eval's values.
    """
    means = values.sum(axis=0) / weights.sum()
    for link in (same, perplexity, bits):
        if np.allclose(link(means), reported, rtol=1e-6, atol=1e-9):
            return link
    return None
