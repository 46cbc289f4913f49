"""Cuts of the summary that the figures and the findings share."""

from __future__ import annotations

import polars as pl

from pipeline.bypass.interventions import BASELINE

MEMORIZATION = "memorization"
"""What stands in the column ``task`` where no benchmark does."""

PREFERRED_METRICS = ("acc", "word_perplexity")
"""Of a benchmark's metrics the first of these is shown, as in the paper; else the first by name."""


def memorization(summary: pl.DataFrame, metric: str, split: str = "memorized") -> pl.DataFrame:
    """The rows of one memorization metric on one split."""
    return summary.filter(task=MEMORIZATION, metric=metric, split=split)


def benchmarks(summary: pl.DataFrame) -> pl.DataFrame:
    """The benchmark rows, one metric a task: see `PREFERRED_METRICS`."""
    rows = summary.filter(pl.col("task") != MEMORIZATION)
    rank = pl.col("metric").replace_strict(
        {metric: i for i, metric in enumerate(PREFERRED_METRICS)},
        default=len(PREFERRED_METRICS),
        return_dtype=pl.Int32,
    )
    chosen = (
        rows.select("task", "metric", rank.alias("rank"))
        .unique()
        .sort("task", "rank", "metric")
        .unique("task", keep="first", maintain_order=True)
    )
    return rows.join(chosen, on=["task", "metric"], how="semi", maintain_order="left")


def accuracies(summary: pl.DataFrame) -> pl.DataFrame:
    """The benchmark rows whose metric is an accuracy: higher is better."""
    return benchmarks(summary).filter("higher_is_better")


def losses(summary: pl.DataFrame) -> pl.DataFrame:
    """The benchmark rows whose metric is better when lower, such as word_perplexity."""
    return benchmarks(summary).filter(~pl.col("higher_is_better"))


def baseline(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of the unmodified models."""
    return rows.filter(intervention=BASELINE.name)


def single_blocks(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows where exactly one block is bypassed, by block."""
    return rows.filter(pl.col("block").is_not_null()).sort("block", maintain_order=True)


def models(summary: pl.DataFrame) -> list[tuple[str, str]]:
    """(name, family) of each model, in the summary's order."""
    return summary.select("model", "family").unique(maintain_order=True).rows()


def tasks(rows: pl.DataFrame) -> list[str]:
    """The tasks in `rows`, by name."""
    return sorted(rows["task"].unique())


def kept(summary: pl.DataFrame) -> pl.DataFrame:
    """How much of the baseline is left when one block is bypassed.

    ``(value - floor) / (baseline - floor)``: 1 is all of it, 0 is nothing. The floor is chance for
    a benchmark that has one, else 0. A benchmark whose baseline is not above chance (its interval
    reaches down to it) has nothing to lose and is left out, and so is exact match where the
    baseline has none. The ends of the intervals are the bypassed model's own, on the same scale;
    the baseline's uncertainty is not in them.

    Returns:
        model, family, block, measure (``exact_match``, ``teacher_forced_accuracy``, or a task's
        name), kind (``memorization`` or ``benchmark``), kept, low, high.
    """
    parts = [
        memorization(summary, metric).with_columns(
            pl.lit(metric).alias("measure"), pl.lit("memorization").alias("kind")
        )
        for metric in ("exact_match", "teacher_forced_accuracy")
    ]
    parts.append(
        accuracies(summary).with_columns(
            pl.col("task").alias("measure"), pl.lit("benchmark").alias("kind")
        )
    )
    rows = pl.concat(parts).with_columns(pl.col("chance").fill_null(0.0).alias("floor"))
    whole = baseline(rows).select(
        "model",
        "measure",
        "kind",
        pl.col("value").alias("baseline"),
        pl.coalesce("low", "value").alias("baseline_low"),
    )
    share = [
        ((pl.col(name) - pl.col("floor")) / (pl.col("baseline") - pl.col("floor"))).alias(alias)
        for name, alias in (("value", "kept"), ("low", "low"), ("high", "high"))
    ]
    return (
        single_blocks(rows)
        .join(whole, on=["model", "measure", "kind"], maintain_order="left")
        .filter(pl.col("baseline_low") > pl.col("floor"))
        .select("model", "family", "block", "measure", "kind", *share)
    )
