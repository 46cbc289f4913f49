"""Counterfactual memorization: what a model recites because the samples were in its training data.

A baseline may recite a text that it never saw, since the text is easy, or famous. Its twin was
trained on the same text without the samples. What the model recites and its twin does not is due to
the samples, and so is what a bypass leaves of that.

Source: Zhang et al. (2021), arXiv 2112.12938, who take the difference of expected accuracies over
many models; here it is the difference of exact match between two, as in Hubble, arXiv 2510.19811.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.measured import ModelTables
from pipeline.analysis.rows import Measure, rows_of
from pipeline.analysis.statistics import (
    LEVEL,
    Estimates,
    clustered_errors,
    effective_number,
    paired_differences,
    reach,
)
from pipeline.interventions.interventions import BASELINE

METRIC = "counterfactual_by_copies"
"""Exact match of a model minus its twin's, of the samples with one number of copies; -1 to 1."""


def by_copies(
    model: ModelTables,
    names: Sequence[str],
    beyond: NDArray[np.float64],
    copies: NDArray[np.float64],
    groups: NDArray[np.integer],
    seed: int,
) -> Iterator[pl.DataFrame]:
    """The rows of `METRIC`, a frame for each number of copies.

    The intervals are those of `statistics.reach`, which have a width even where no sample differs
    between the two: few samples cannot show that nothing is memorized.

    Args:
        model: of the rows.
        names: of the V interventions.
        beyond: (N, V) exact match of the model minus its twin's: -1, 0 or 1.
        copies: (N,) of each sample; NaN where unknown.
        groups: (N,) samples with the same number belong together.
        seed: of the bootstrap of the differences to the baseline.
    """
    whole = names.index(BASELINE.name)
    for count in np.unique(copies[~np.isnan(copies)]):
        chosen = copies == count
        values, of = beyond[chosen], groups[chosen]
        mean, stderr = clustered_errors(values, of)
        n = effective_number(of)
        half = np.array([reach(each, n, 1.0, LEVEL) for each in stderr])
        estimates = Estimates(mean, np.maximum(mean - half, -1.0), np.minimum(mean + half, 1.0))
        differences = paired_differences(values, values[:, [whole]], of, seed)
        measure = Measure(METRIC, values, of, labels={"copies": int(count)})
        yield rows_of(model, names, measure, estimates, differences)
