"""Whether sampling still extracts texts that a bypass hides from greedy decoding.

Gives a sentence and the rows to draw. A typical block of a range is the one whose bypass leaves the
median exact match, the lower of two; so no block is picked by its extraction curve.
"""

from __future__ import annotations

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.text import percent_interval, percent_range, plural

TOP_40 = "extractable_top_40"
TRIES = 1_000
"""The number of tries in the sentence."""

BASELINE, EARLY, LATE, QUARTILE = (
    "baseline",
    "typical early block",
    "typical late block",
    "last quarter",
)


def typical(summary: pl.DataFrame) -> pl.DataFrame:
    """The interventions that stand for all: (model, intervention, label), in drawing order.

    Block 0 is left out: the paper warns that its bypass may look spuriously good.
    """
    exact = views.memorization(summary, "exact_match")
    single = views.single_blocks(exact).filter(pl.col("block") > 0)
    last = pl.max_horizontal(pl.col("block").max().over("model"), 1)
    depth = pl.col("block") / (last + 1)

    def middle(rows: pl.DataFrame, label: str) -> pl.DataFrame:
        ranked = rows.sort("value", "block").with_columns(
            place=pl.int_range(pl.len()).over("model"), count=pl.len().over("model")
        )
        chosen = ranked.filter(pl.col("place") == (pl.col("count") - 1) // 2)
        return chosen.with_columns(label=pl.lit(label))

    quartiles = views.quartiles(exact).filter(quartile=4)
    parts = [
        views.baseline(exact).with_columns(label=pl.lit(BASELINE)),
        middle(single.filter(depth < 0.25), EARLY),
        middle(single.filter(depth >= 0.75), LATE),
        quartiles.with_columns(label=pl.lit(QUARTILE)),
    ]
    return pl.concat([part.select("model", "intervention", "label") for part in parts])


def sentence(summary: pl.DataFrame) -> str:
    """A sentence: the share of texts hidden by a typical late bypass that sampling extracts.

    Empty where no text is hidden.
    """
    late = typical(summary).filter(label=LATE)
    rows = (
        views.memorization(summary, f"hidden_{TOP_40}")
        .filter(k=TRIES)
        .join(late, on=["model", "intervention"], how="semi", maintain_order="left")
    )
    if not rows.height:
        return ""
    if rows.height == 1:
        [row] = rows.iter_rows(named=True)
        share = percent_interval(row["value"], row["low"], row["high"])
        where = f"of {row['n']}"
    else:
        share = percent_range(rows["value"].to_list())
        where = f"over {plural(rows.height, 'model')}"
    return (
        "Of the memorized samples that the bypass of a typical late block hides from greedy "
        f"decoding, {share} ({where}) still come out within {TRIES:,} tries."
    )
