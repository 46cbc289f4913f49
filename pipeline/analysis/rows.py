"""Rows of the summary: the columns that all estimates share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.measured import ModelTables
from pipeline.analysis.statistics import Differences, Estimates
from pipeline.analysis.views import MEMORIZATION
from pipeline.interventions.interventions import BASELINE, EACH
from pipeline.workflow import tables

DIFFERENCE = ("difference", "difference_low", "difference_high", "p_value")

COLUMNS = {name: column.dtype for name, column in tables.SUMMARY.items()} | {
    "edit": pl.String,
    "group": pl.String,
    "blocks": pl.List(pl.UInt16),
    "block": pl.UInt16,
    "copies": pl.UInt32,
    "higher_is_better": pl.Boolean,
    "chance": pl.Float64,
    "parameters": pl.UInt64,
    "recipe": pl.String,
    **dict.fromkeys(DIFFERENCE, pl.Float64),
    "p_holm": pl.Float64,
}


@dataclass(frozen=True)
class Measure:
    """One memorization metric of one split: N samples by V interventions."""

    metric: str
    values: NDArray[Any]
    rate: bool
    labels: Mapping[str, int]


def rows_of(
    model: ModelTables,
    names: Sequence[str],
    measure: Measure,
    estimates: Estimates,
    differences: Differences | None,
    here: slice,
) -> pl.DataFrame:
    """One row per intervention; the split is filled in by the caller."""
    frame = pl.DataFrame(
        {
            "intervention": names,
            "value": estimates.value,
            "low": estimates.low,
            "high": estimates.high,
        }
    )
    n = len(measure.values)
    constants = {"task": MEMORIZATION, "metric": measure.metric, "n": n, **measure.labels}
    return finish(
        frame.with_columns(
            *(pl.lit(value).alias(name) for name, value in constants.items()),
            *difference_columns(differences, here, len(names)),
        ),
        model,
    )


def without_difference(part: pl.DataFrame, model: ModelTables) -> pl.DataFrame:
    """Rows of the summary without a comparison to the baseline."""
    nothing = difference_columns(None, slice(None), part.height)
    return finish(part.with_columns(*nothing, task=pl.lit(MEMORIZATION)), model)


def difference_columns(differences: Differences | None, here: slice, count: int) -> list[pl.Series]:
    """The columns of the differences; NaN without differences."""
    if differences is None:
        return [pl.Series(name, np.full(count, np.nan)) for name in DIFFERENCE]
    fields = (differences.value, differences.low, differences.high, differences.p_value)
    return [pl.Series(name, field[here]) for name, field in zip(DIFFERENCE, fields, strict=True)]


def finish(frame: pl.DataFrame, model: ModelTables) -> pl.DataFrame:
    """All columns of the summary, in order and of their types; NaN ends of intervals are null."""
    listed = model.interventions.select("intervention", "edit", "group", "blocks")
    frame = (
        frame.join(listed, on="intervention", how="left", maintain_order="left")
        .with_columns(
            pl.lit(model.name).alias("model"),
            pl.lit(model.family).alias("family"),
            pl.when(group=EACH).then(pl.col("blocks").list.first()).alias("block"),
            pl.lit(model.parameters).alias("parameters"),
            pl.lit(model.recipe or model.name).alias("recipe"),
            *(
                pl.when(pl.col("intervention") != BASELINE.name).then(pl.col(name)).alias(name)
                for name in DIFFERENCE
            ),
            pl.col("low", "high").fill_nan(None),
        )
        .with_columns(pl.col(DIFFERENCE).fill_nan(None))
    )
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None).alias(name)).cast(dtype)
        for name, dtype in COLUMNS.items()
    )
