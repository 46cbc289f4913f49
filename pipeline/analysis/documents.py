"""A benchmark's documents as a matrix, and how lm-eval computes its score from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.statistics import Link


def by_document(
    documents: pl.DataFrame, task: object, metric: object, names: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """The documents' values (N, V) and their weights (N,); None if the table is incomplete."""
    if not documents.height:
        return None
    rows = documents.filter(pl.col("intervention").is_in(names), task=task, metric=metric).sort(
        pl.col("intervention").cast(pl.Enum(names)), "doc_id"
    )
    count = rows.height // len(names)
    if not count or rows.height % len(names):
        return None
    shape = (len(names), count)
    ids = rows["doc_id"].to_numpy().reshape(shape)
    who = rows["intervention"].cast(pl.Enum(names)).to_physical().to_numpy().reshape(shape)
    if (ids != ids[0]).any() or (who != np.arange(len(names))[:, None]).any():
        return None
    weights = rows["weight"].to_numpy()[:count] if "weight" in rows.columns else np.ones(count)
    return rows["value"].to_numpy().reshape(shape).T, weights


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
