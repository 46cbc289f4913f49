"""Whether sampling still extracts texts that a bypass hides from greedy decoding.

Gives the rows of both. A typical block of a range is the one whose bypass leaves the
median exact match, the lower of two; so no block is picked by its extraction curve.
"""

from __future__ import annotations

import polars as pl

from pipeline.analysis import views

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


def hidden(summary: pl.DataFrame) -> pl.DataFrame:
    """The rows of the summary that tell what sampling extracts of the texts a bypass hides.

    The bypass is that of each model's typical late block, the number of tries is `TRIES`. A model
    of which no text is hidden has no row.
    """
    late = typical(summary).filter(label=LATE)
    rows = views.memorization(summary, f"hidden_{TOP_40}").filter(k=TRIES)
    return rows.join(late, on=["model", "intervention"], how="semi", maintain_order="left")
