"""How many memorized samples come out within n tries of sampling. Not in the paper.

A typical block of a range is the one whose bypass leaves the median exact match, the lower of two;
so no block is picked by its extraction curve.

Source: (n, p)-discoverable extraction, arXiv 2410.19482.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.report import style
from pipeline.report.numbers import across
from pipeline.report.plots.plot import NUMBERS, Plot, count, extent, share

TOP_40 = "extractable_top_40"
TRIES = 1_000
"""The number of tries in the sentence."""

WHOLE, EARLY, LATE, QUARTILE = (
    "baseline",
    "typical early block",
    "typical late block",
    "last quarter",
)


def extractions(summary: pl.DataFrame) -> Iterator[Plot]:
    """The share of memorized samples extracted within n tries, under typical interventions."""
    chosen = typical(summary)
    order = [(views.models(summary), "model", 0), (chosen.rows(), "label", 2)]
    ranks = [
        pl.col(name).cast(pl.Enum(list(dict.fromkeys(row[at] for row in rows))))
        for rows, name, at in order
    ]
    data = (
        views.memorization(summary, TOP_40)
        .join(chosen, on=["model", "intervention"])
        .select(*NUMBERS, "k", "label")
        .sort(*ranks, "k")
    )
    if not data.height:
        return
    ends = {n: data.filter(k=n, label=WHOLE)["value"] for n in (1, 1000)}
    values = {
        "once": extent(ends[1]),
        "often": extent(ends[1000]),
        "tries": count(TRIES),
        "recited": (views.baseline(views.memorization(summary, "exact_match"))["value"] > 0).any(),
        **_out(hidden(summary)),
    }
    yield Plot("extraction", data, draw_extractions, values)


def _out(rows: pl.DataFrame) -> dict[str, Any]:
    """The share of hidden samples that come out, model by model."""
    shares = [share(*row) for row in rows.select("value", "low", "high").iter_rows()]
    return {
        "hidden": across("", shares),
        "models": count(rows.height),
        "samples": extent(rows["n"], "samples"),
    }


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
        views.baseline(exact).with_columns(label=pl.lit(WHOLE)),
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


def draw_extractions(data: pl.DataFrame) -> Figure:
    """Share extracted by tries; one panel per model, one line per intervention."""
    data = data.with_columns(pl.col("label", "model").cast(pl.String))
    looks = {label: i for i, label in enumerate(data["label"].unique(maintain_order=True))}

    def panel(axes: Axes, rows: pl.DataFrame) -> None:
        style.lines(axes, rows, line="label", x="k", looks=looks, hollow=None)
        style.log_axis(axes.xaxis)

    return style.facets(
        data,
        panel,
        labels=("tries", "memorized samples extracted"),
        ticks={1: "1", 10: "10", 100: "100", 1000: "1,000", 10**6: "10⁶"},
        scale_y=style.whole_percent_axis,
    )
