"""Memory and ability over the steps of one training run, and when blocks become necessary.

Each step is a model of the study, so its estimates and differences are those of the summary.
"""

from collections.abc import Sequence

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.statistics import LEVEL
from pipeline.interventions.interventions import BASELINE

MEMORY = ("exact_match", "token_accuracy")
"""Metrics of the memorized samples."""

_COLUMNS = (
    *("run", "step", "model", "intervention", "block", "task", "metric"),
    *("value", "low", "high", "difference", "difference_low", "difference_high", "p_holm", "n"),
)


def over_steps(summary: pl.DataFrame, steps: Sequence[tuple[str, str, int]]) -> pl.DataFrame:
    """The estimates of each step of each run, for the unmodified model and each bypassed block.

    `steps` are model, run and step of each model that is a checkpoint of a training run.

    Returns:
        By step: run, step, model, intervention, block (null for the baseline), task, metric (of
        `MEMORY` on memorized samples, or an accuracy), value, low, high, n; difference to the
        baseline of the same step, difference_low, difference_high, p_holm, as in the summary;
        ``falls``: whether the score is lower than the baseline's with p_holm below 0.05. Empty
        for runs of which the summary has a single step.
    """
    known = pl.DataFrame(
        steps, schema={"model": pl.String, "run": pl.String, "step": pl.UInt32}, orient="row"
    )
    memory = [views.memorization(summary, metric) for metric in MEMORY]
    rows = pl.concat([*memory, views.accuracies(summary)]).filter(
        views.ONE_BLOCK | (pl.col("intervention") == BASELINE.name)
    )
    # the test, which is adjusted for the number of blocks, and not the interval
    falls = (pl.col("difference") < 0) & (pl.col("p_holm") < 1 - LEVEL)
    return (
        rows.join(known, on="model", maintain_order="left")
        .filter(pl.col("step").n_unique().over("run") > 1)
        .sort("step", maintain_order=True)
        .select(*_COLUMNS, falls=falls.fill_null(value=False))
    )


def recitable(rows: pl.DataFrame) -> int | None:
    """The first step whose exact match is above that of the first step, interval above interval.

    Returns:
        The step; None: there is none.
    """
    whole = views.baseline(rows.filter(metric="exact_match"))
    return whole.filter(pl.col("low") > pl.col("high").first())["step"].first()  # type: ignore[return-value]


def necessary(rows: pl.DataFrame, metric: str) -> pl.DataFrame:
    """The step from which on the bypass of a block lowers a score, at all later steps too.

    Returns:
        block, step; a row for each block that is necessary at the last step, by block.
    """
    blocks = rows.filter(pl.col("block").is_not_null(), metric=metric)
    from_here_on = pl.col("falls").cast(pl.UInt8).cum_min(reverse=True).over("block") == 1
    return blocks.filter(from_here_on).group_by("block").agg(pl.col("step").min()).sort("block")
