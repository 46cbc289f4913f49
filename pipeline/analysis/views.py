"""Selections from the summary that the figures and the findings share."""

from collections.abc import Sequence

import polars as pl

from pipeline.analysis.statistics import pooled
from pipeline.interventions.interventions import BASELINE, EACH, IDENTITY, QUARTILE

ONE_BLOCK = (pl.col("group") == EACH) & (pl.col("edit") == IDENTITY)
"""Selects the rows of the summary, or of a table of interventions, where one block is bypassed."""

ONE_QUARTILE = (pl.col("group") == QUARTILE) & (pl.col("edit") == IDENTITY)
"""Likewise where a quarter of the blocks is bypassed."""

MEMORIZATION = "memorization"
"""The value of the column ``task`` in rows that are not of a benchmark."""

MEASURE = pl.when(pl.col("task") == MEMORIZATION).then("metric").otherwise("task")
"""The metric of memorization, or the task of a benchmark."""

WORD_PERPLEXITY = "word_perplexity"

PREFERRED_METRICS = ("acc", WORD_PERPLEXITY)
"""The first of these that a benchmark has is shown, as in the paper; else the first by name."""

ABILITIES = {"reasoning": ("piqa", "arc_easy"), "language": ("hellaswag", "lambada_openai")}
"""The paper's two kinds of tasks (section 4.2.4); tasks of a generated world have a prefix."""

GENERATED = "tiny_"


def memorization(summary: pl.DataFrame, metric: str, split: str = "memorized") -> pl.DataFrame:
    """The rows of one memorization metric on one split."""
    return summary.filter(task=MEMORIZATION, metric=metric, split=split)


def benchmarks(summary: pl.DataFrame) -> pl.DataFrame:
    """The benchmark rows, one metric per task: see `PREFERRED_METRICS`."""
    rows = summary.filter(pl.col("task") != MEMORIZATION)
    preferred = [pl.col("metric") != metric for metric in PREFERRED_METRICS]
    first = pl.col("metric").sort_by(*preferred, "metric").first().over("task")
    return rows.filter(pl.col("metric") == first)


def accuracies(summary: pl.DataFrame) -> pl.DataFrame:
    """The benchmark rows whose metric is an accuracy: higher is better."""
    return benchmarks(summary).filter("higher_is_better")


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


def edits(rows: pl.DataFrame) -> list[str]:
    """The edits in `rows` as they come, after the bypass."""
    found = rows["edit"].drop_nulls().unique(maintain_order=True)
    return [IDENTITY, *(edit for edit in found if edit != IDENTITY)]


def seeds_name(recipe: str, seeds: int) -> str:
    """The name of the seeds of one recipe as one model."""
    return _SEEDS.format(recipe, seeds) if seeds > 1 else recipe


def tasks(rows: pl.DataFrame) -> list[str]:
    """The tasks in `rows`, by name."""
    return sorted(rows["task"].unique())


def block_range(n_blocks: int, name: str) -> range:
    """The blocks of a range, 0-based; the paper warns against block 0, so but one range has it.

    It is ``all``; ``early``, the first quarter, or block 1 where that holds none but block 0;
    ``from block 0``, these and block 0; ``middle``, the second and third quarter; ``late``, the
    last (section 4.2.1 of the paper); ``second half``.
    """
    quarter = max(1, n_blocks // 4)
    last = max(1, 3 * n_blocks // 4)
    return {
        "all": range(1, n_blocks),
        "early": range(1, min(n_blocks, max(2, quarter))),
        "from block 0": range(min(n_blocks, max(2, quarter))),
        "middle": range(quarter, last),
        "late": range(last, n_blocks),
        "second half": range(max(1, (n_blocks + 1) // 2), n_blocks),
    }[name]


def in_range(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """The rows of the blocks of a range; see `block_range`.

    `rows` have every model's last block; the block is null where several or none are edited.
    """
    last = pl.col("block").max().over("model")
    among = [
        (last == n) & pl.col("block").is_in(block_range(n + 1, name))
        for n in rows["block"].drop_nulls().unique()
    ]
    return rows.filter(pl.any_horizontal(pl.lit(value=False), *among))


_SEEDS = "{} ({} seeds)"

SUMMARY_KEY = ("recipe", "intervention", "split", "task", "metric", "k", "copies", "category")
"""The columns that name a row of the summary, for one seed of each recipe."""

ESTIMATES = (("value", "low", "high"), ("difference", "difference_low", "difference_high"))
"""The estimates in a row of the summary, each with the ends of its interval."""


def over_seeds(
    rows: pl.DataFrame,
    key: Sequence[str] = SUMMARY_KEY,
    estimates: Sequence[tuple[str, str, str]] = ESTIMATES,
) -> pl.DataFrame:
    """The seeds of one recipe as one model, named after the recipe and the number of its seeds.

    Estimates, each with the ends of its interval, are pooled by `statistics.pooled`; p-values are
    the largest of the seeds'; all other columns are those of the first seed. The rows have model
    and recipe; for one seed the key names a row.
    """
    count = pl.col("model").n_unique().over("recipe")
    counted = rows.with_row_index("row").with_columns(seeds=count)
    several = counted.filter(pl.col("seeds") > 1)
    if not several.height:
        return rows
    columns, p_values = [name for names in estimates for name in names], "^p_(value|holm)$"
    together = several.group_by(key, maintain_order=True).agg(
        pl.format(_SEEDS, pl.first("recipe"), pl.first("seeds")).alias("model"),
        pl.col(columns),
        pl.max(p_values),
        pl.exclude(*key, "model", *columns, p_values).first(),
    )
    for names in estimates:
        ends = [pooled(*lists) for lists in together.select(names).iter_rows()]
        together = together.with_columns(
            pl.Series(name, end, dtype=pl.Float64).fill_nan(None)
            for name, end in zip(names, zip(*ends, strict=True), strict=True)
        )
    rest = counted.filter(pl.col("seeds") == 1)
    return pl.concat([rest, together.select(rest.columns)]).sort("row").drop("row", "seeds")
