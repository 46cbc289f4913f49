"""Selections from the summary that the figures and the findings share."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from pipeline.analysis.statistics import pooled
from pipeline.interventions.interventions import BASELINE, EACH, IDENTITY, QUARTILE, RANDOM

ONE_BLOCK = (pl.col("group") == EACH) & (pl.col("edit") == IDENTITY)
"""Selects the rows of the summary, or of a table of interventions, where one block is bypassed."""

CONTROL = (pl.col("group") == EACH) & (pl.col("edit") != IDENTITY)
"""Likewise where one block is edited otherwise: zero, noise, skip, …"""

RANDOM_SET = (pl.col("group") == RANDOM) & (pl.col("edit") == IDENTITY)
"""Likewise where a random set of blocks is bypassed."""

ONE_QUARTILE = (pl.col("group") == QUARTILE) & (pl.col("edit") == IDENTITY)
"""Likewise where a quarter of the blocks is bypassed."""

MEMORIZATION = "memorization"
"""The value of the column ``task`` in rows that are not of a benchmark."""

WORD_PERPLEXITY = "word_perplexity"

PREFERRED_METRICS = ("acc", WORD_PERPLEXITY)
"""The first of these that a benchmark has is shown, as in the paper; else the first by name."""

ABILITIES = {"reasoning": ("piqa", "arc_easy"), "language": ("hellaswag", "lambada_openai")}
"""The paper's two kinds of tasks (section 4.2.4); tasks of a generated world have a prefix."""

MEAN = "benchmarks, mean lead over chance"
"""The measure of `kept` that is the mean over the benchmarks."""

CONTROLS = "control edits"
"""The measure of `controls` where one block is edited."""

SCALES = ("raw", "corrected")
"""A drop as a share of the score, as in the paper, and as a share of its lead over chance."""

GENERATED = "tiny_"


def memorization(summary: pl.DataFrame, metric: str, split: str = "memorized") -> pl.DataFrame:
    """The rows of one memorization metric on one split."""
    return summary.filter(task=MEMORIZATION, metric=metric, split=split)


def benchmarks(summary: pl.DataFrame) -> pl.DataFrame:
    """The benchmark rows, one metric per task: see `PREFERRED_METRICS`."""
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
    """The rows where one block alone is bypassed, by block."""
    return rows.filter(ONE_BLOCK).sort("block", maintain_order=True)


def quartiles(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows where a quarter of the blocks is bypassed, by quarter.

    Returns:
        `rows` and the column ``quartile`` (1 to 4, from the input on).
    """
    numbered = rows.with_columns(quartile=quartile_number())
    return numbered.filter(ONE_QUARTILE).sort("quartile", maintain_order=True)


def quartile_number() -> pl.Expr:
    """Which quarter of its model's blocks is bypassed, 1 to 4; null where none is."""
    first = pl.when(ONE_QUARTILE).then(pl.col("blocks").list.first())
    return first.rank("dense").over("model").cast(pl.UInt8)


def models(summary: pl.DataFrame) -> list[tuple[str, str]]:
    """(name, family) of each model, in the summary's order."""
    return summary.select("model", "family").unique(maintain_order=True).rows()


def tasks(rows: pl.DataFrame) -> list[str]:
    """The tasks in `rows`, by name."""
    return sorted(rows["task"].unique())


SUMMARY_KEY = ("recipe", "intervention", "split", "task", "metric", "k", "copies")
"""The columns that name a row of the summary, for one seed of each recipe."""

ESTIMATES = (("value", "low", "high"), ("difference", "difference_low", "difference_high"))
"""The estimates in a row of the summary, each with the ends of its interval."""


def over_seeds(
    rows: pl.DataFrame,
    key: Sequence[str] = SUMMARY_KEY,
    estimates: Sequence[tuple[str, str, str]] = ESTIMATES,
) -> pl.DataFrame:
    """The seeds of one recipe as one model, named after the recipe and the number of its seeds.

    Estimates are pooled by `statistics.pooled`; p-values are the largest of the seeds'; all other
    columns are those of the first seed.

    Args:
        rows: the summary, or other rows with model and recipe.
        key: the columns that name a row, for one seed.
        estimates: columns: an estimate and the ends of its interval.
    """
    count = pl.col("model").n_unique().over("recipe")
    counted = rows.with_row_index("row").with_columns(seeds=count)
    several = counted.filter(pl.col("seeds") > 1)
    if not several.height:
        return rows
    columns = [name for names in estimates for name in names]
    largest = [name for name in ("p_value", "p_holm") if name in rows.columns]
    together = several.group_by(key, maintain_order=True).agg(
        pl.format("{} ({} seeds)", pl.first("recipe"), pl.first("seeds")).alias("model"),
        pl.col(columns),
        pl.max(*largest) if largest else pl.len().alias("rows"),
        pl.exclude(*key, "model", *columns, *largest).first(),
    )
    for names in estimates:
        ends = [pooled(*lists) for lists in together.select(names).iter_rows()]
        together = together.with_columns(
            pl.Series(name, end, dtype=pl.Float64).fill_nan(None)
            for name, end in zip(names, zip(*ends, strict=True), strict=True)
        )
    rest = counted.filter(pl.col("seeds") == 1)
    return pl.concat([rest, together.select(rest.columns)]).sort("row").drop("row", "seeds")


def kept(summary: pl.DataFrame) -> pl.DataFrame:
    """How much of the baseline is left when one block is bypassed.

    ``(value - floor) / (baseline - floor)``: 1 is all of it, 0 is nothing. The floor of a benchmark
    is chance where it is known, else 0. The floor of memorization is the unmodified model's score
    on control samples, as in `evidence`, or 0 without control samples. A benchmark whose baseline
    is not above chance (its interval includes chance) has nothing to lose and is left out, and so
    is exact match where the baseline has none. The ends of the intervals are those of the paired
    difference to the baseline, whose own level is taken as known; where no sample differs, those of
    the bypassed model.

    Returns:
        model, family, intervention, block, measure (``exact_match``, ``teacher_forced_accuracy``, a
        task's name, or `MEAN`), kind (``memorization``, ``benchmark``, or ``mean`` over the
        benchmarks), kept, low, high.
    """
    parts = [
        memorization(summary, metric)
        .join(_control(summary, metric), on="model", how="left", maintain_order="left")
        .with_columns(pl.lit(metric).alias("measure"), pl.lit("memorization").alias("kind"))
        for metric in ("exact_match", "teacher_forced_accuracy")
    ]
    parts.append(
        accuracies(summary).with_columns(
            pl.col("chance").alias("floor"),
            pl.col("task").alias("measure"),
            pl.lit("benchmark").alias("kind"),
        )
    )
    shares = _shares(pl.concat(parts).with_columns(pl.col("floor").fill_null(0.0)))
    block = ("model", "family", "intervention", "block")
    mean = mean_over_tasks(shares.filter(kind="benchmark"), *block).with_columns(
        pl.lit(MEAN).alias("measure"), pl.lit("mean").alias("kind")
    )
    return pl.concat([shares.select(_KEPT), mean.select(_KEPT)])


_KEPT = ("model", "family", "intervention", "block", "measure", "kind", "kept", "low", "high")


def controls(summary: pl.DataFrame) -> pl.DataFrame:
    """The share of exact match kept under control interventions, for comparison with a curve.

    The controls of a block are all other edits of that block alone, including each draw of noise.
    Random sets of bypassed blocks have no block; they are controls for sets of the same size.

    Returns:
        As `kept`: measure is `CONTROLS`, or names the random sets, whose ``block`` is null; kind is
        ``control``; intervention lists them; kept is the mean over them, low and high are the
        smallest and the largest, not an interval. Empty where a study has none.
    """
    rows = memorization(summary, "exact_match")
    floor = _control(summary, "exact_match")
    rows = rows.join(floor, on="model", how="left", maintain_order="left").with_columns(
        pl.col("floor").fill_null(0.0), measure=pl.lit("exact_match"), kind=pl.lit("control")
    )
    size = pl.format("random sets of {} blocks", pl.col("blocks").list.len())
    parts = [
        _shares(rows, CONTROL).with_columns(measure=pl.lit(CONTROLS)),
        _shares(rows, RANDOM_SET).with_columns(measure=size),
    ]
    kept = pl.col("kept")
    return (
        pl.concat(parts)
        .group_by("model", "family", "block", "measure", "kind", maintain_order=True)
        .agg(
            pl.col("intervention").str.join(", "),
            kept.mean(),
            kept.min().alias("low"),
            kept.max().alias("high"),
        )
        .select(*_KEPT)
    )


def _control(summary: pl.DataFrame, metric: str) -> pl.DataFrame:
    """model, floor: the score of each unmodified model on control samples."""
    rows = baseline(memorization(summary, metric, "control"))
    return rows.select("model", pl.col("value").alias("floor"))


def drops(summary: pl.DataFrame) -> pl.DataFrame:
    """How much of its score each kind of task loses when one block is bypassed (Fig. 6).

    It is the mean over the tasks of a kind of 1 minus the share kept, see `kept`.

    Returns:
        model, family, intervention, block, scale (of `SCALES`), ability (of `ABILITIES`), drop,
        low, high, tasks.
    """
    ability = {name: kind for kind, names in ABILITIES.items() for name in names}
    rows = accuracies(summary).with_columns(
        pl.col("task")
        .str.strip_prefix(GENERATED)
        .replace_strict(ability, default=None, return_dtype=pl.String)
        .alias("ability")
    )
    floors = {"raw": pl.lit(0.0), "corrected": pl.col("chance").fill_null(0.0)}
    lost = pl.concat(
        _shares(
            rows.filter(pl.col("ability").is_not_null()).with_columns(
                pl.col("task").alias("measure"),
                pl.lit("benchmark").alias("kind"),
                pl.lit(scale).alias("scale"),
                floors[scale].alias("floor"),
            )
        )
        for scale in SCALES
    )
    mean = mean_over_tasks(lost, "model", "family", "intervention", "block", "scale", "ability")
    return mean.select(
        "model",
        "family",
        "intervention",
        "block",
        "scale",
        "ability",
        (1 - pl.col("kept")).alias("drop"),
        (1 - pl.col("high")).alias("low"),
        (1 - pl.col("low")).alias("high"),
        "tasks",
    )


def mean_over_tasks(shares: pl.DataFrame, *by: str) -> pl.DataFrame:
    """The mean of kept over measures, for each `by`, with low and high from independent errors.

    Benchmarks have different documents, so their errors are independent.

    Returns:
        `by`, kept, low, high, tasks (the measures, joined by commas).
    """
    kept, low, high = pl.col("kept"), pl.col("low"), pl.col("high")
    return shares.group_by(by, maintain_order=True).agg(
        kept.mean(),
        (kept.mean() - ((kept - low) ** 2).sum().sqrt() / pl.len()).alias("low"),
        (kept.mean() + ((high - kept) ** 2).sum().sqrt() / pl.len()).alias("high"),
        pl.col("measure").sort().str.join(", ").alias("tasks"),
    )


def _shares(rows: pl.DataFrame, which: pl.Expr = ONE_BLOCK) -> pl.DataFrame:
    """`rows` where `which` holds; kept, low, high are shares of the baseline above ``floor``."""
    whole = baseline(rows).select(
        "model",
        "measure",
        "kind",
        pl.col("value").alias("baseline"),
        pl.coalesce("low", "value").alias("baseline_low"),
    )
    lead = pl.col("baseline") - pl.col("floor")
    kept = (pl.col("value") - pl.col("floor")) / lead
    ends = [  # a share of samples or documents lies between 0 and 1
        pl.coalesce((pl.col("baseline") + pl.col(f"difference_{end}")).clip(0, 1), end)
        .sub(pl.col("floor"))
        .truediv(lead)
        .alias(end)
        for end in ("low", "high")
    ]
    return (
        rows.filter(which)
        .sort("block", maintain_order=True)
        .join(whole, on=["model", "measure", "kind"], maintain_order="left")
        .filter(pl.col("baseline_low") > pl.col("floor"))
        .with_columns(kept.alias("kept"), *ends)
    )
