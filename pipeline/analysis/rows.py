"""The summary: its columns, and the rows of estimates."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.measured import ModelTables
from pipeline.analysis.statistics import Differences, Estimates
from pipeline.analysis.views import MEMORIZATION
from pipeline.interventions.interventions import BASELINE, EACH
from pipeline.workflow import tables
from pipeline.workflow.tables import boolean, float64, string, uint16, uint16s, uint32, uint64

BY_CATEGORY = "acc_by_category"
"""The metric of a benchmark's accuracy on the documents of one category."""

DIFFERENCE = ("difference", "difference_low", "difference_high", "p_value")

SUMMARY: tables.Schema = {
    "model": string("name"),
    "family": string("name"),
    "intervention": string("as in the interventions table"),
    "split": string("of the samples; null for benchmarks", nullable=True),
    "task": string("memorization, or the benchmark's name"),
    "metric": string("exact_match, acc, word_perplexity, …"),
    "k": uint32("tokens, for exact match at k; tries, for extractable; else null", nullable=True),
    "value": float64("the estimate"),
    "low": float64("lower end of the 95% interval", nullable=True),
    "high": float64("upper end of the 95% interval", nullable=True),
    "n": uint32("samples or documents"),
    "edit": string("of the intervention; null for the baseline", nullable=True),
    "group": string("the set of blocks that are edited together"),
    "blocks": uint16s("that are edited, 0-based"),
    "block": uint16("where one is edited alone (group each); else null", nullable=True),
    "copies": uint32("in the training data, for metrics by copies; else null", nullable=True),
    "category": string("of a benchmark's documents, for acc_by_category; else null", nullable=True),
    "higher_is_better": boolean("of a benchmark; else null", nullable=True),
    "chance": float64("of a benchmark, where known; else null", nullable=True),
    "parameters": uint64("of the model; null where unknown", nullable=True),
    "recipe": string("the first model that differs from it at most in its seed"),
    "difference": float64(
        "value minus the baseline's, on the same samples or documents; null for the baseline, and "
        "where the documents do not reproduce lm-eval's value",
        nullable=True,
    ),
    "difference_low": float64("lower end of its 95% interval; null where unknown", nullable=True),
    "difference_high": float64("upper end, likewise", nullable=True),
    "p_value": float64("of no difference, two-sided", nullable=True),
    "p_holm": float64(
        "p_value with Holm's adjustment over the single blocks under one edit, for one model, "
        "split and metric (and k, or copies); null for other groups, which are in no such family",
        nullable=True,
    ),
}


@dataclass(frozen=True)
class Measure:
    """One metric of N samples or documents under V interventions.

    Args:
        metric: as in `SUMMARY`, and so is `task`.
        values: (N, V).
        groups: (N,) of near-duplicates.
        rate: whether the values are 0 or 1.
        labels: further columns of `SUMMARY`, such as k.
        floor: the value at which nothing is left.
        floor_error: its standard error.
        bounded: whether values lie between 0 and 1.
    """

    metric: str
    values: NDArray[Any]
    groups: NDArray[np.integer]
    task: str = MEMORIZATION
    rate: bool = False
    labels: Mapping[str, object] = field(default_factory=dict)
    floor: float = 0.0
    floor_error: float = 0.0
    bounded: bool = True


def rows_of(
    names: Sequence[str],
    measure: Measure,
    estimates: Estimates,
    differences: Differences | None = None,
) -> pl.DataFrame:
    """One row per intervention, for `finish`."""
    told = {"task": measure.task, "metric": measure.metric, "n": len(measure.values)}
    numbers = vars(estimates) | (difference_columns(differences) if differences else {})
    return pl.DataFrame({"intervention": names, **told, **measure.labels, **numbers})


def difference_columns(differences: Differences) -> dict[str, pl.Series]:
    """The columns of the differences."""
    return dict(zip(DIFFERENCE, map(pl.Series, vars(differences).values()), strict=True))


def finish(parts: Iterable[pl.DataFrame], model: ModelTables) -> pl.DataFrame:
    """The rows of a model with all columns of the summary; NaN ends of intervals are null."""
    of_list = ("edit", "group", "blocks")
    whole = pl.concat([tables.empty(SUMMARY).drop(of_list), *parts], how="diagonal_relaxed")
    listed = model.interventions.select("intervention", *of_list)
    whole = whole.join(listed, on="intervention", how="left", maintain_order="left")
    whole = whole.with_columns(
        pl.when(pl.col("intervention") != BASELINE.name).then(pl.col(DIFFERENCE)).fill_nan(None),
        pl.col("low", "high").fill_nan(None),
        block=pl.when(group=EACH).then(pl.col("blocks").list.first()),
        **model.constants,
    )
    return tables.cast(whole, SUMMARY)
