"""How many memorized samples come out within n tries of sampling. Not in the paper.

The curves are of the block of a range whose bypass leaves the median exact match, the lower of two
and the first of several that leave the same; so no block is picked by its extraction curve. The
sentence is about all late blocks.

Source: (n, p)-discoverable extraction, arXiv 2410.19482.
"""

from collections.abc import Iterator
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.report import style
from pipeline.report.numbers import across
from pipeline.report.plots.plot import NUMBERS, Plot, count, extent, shares

TOP_40 = "extractable_top_40"
TRIES = 1_000
"""The number of tries in the sentence."""

LEAST = 10
"""Hidden samples of a block, below which no share of them is told."""

WHOLE, EARLY, LATE, QUARTILE = "baseline", "an early block", "a late block", "last quarter"


def extractions(summary: pl.DataFrame) -> Iterator[Plot]:
    """The share of memorized samples extracted within n tries, under one block of each range."""
    chosen = drawn(summary)
    models = pl.Enum(summary["model"].unique(maintain_order=True))
    labels = pl.Enum([WHOLE, EARLY, LATE, QUARTILE])
    data = (
        views.memorization(summary, TOP_40)
        .join(chosen.drop("block"), on=["model", "intervention"])
        .select(*NUMBERS, "k", "label")
        .sort(pl.col("model").cast(models), pl.col("label").cast(labels), "k")
    )
    if not data.height:
        return
    whole = data.filter(label=WHOLE)
    edited = chosen.join(data, on="model", how="semi", maintain_order="left")
    edited = edited.drop_nulls("block")
    blocks = edited.group_by("model", maintain_order=True).agg(pl.col("block").cast(pl.String))
    values = {
        "once": extent(whole.filter(k=1)["value"]),
        "often": extent(whole.filter(k=1000)["value"]),
        "tries": count(TRIES),
        "least": count(LEAST),
        "recited": (views.baseline(views.memorization(summary, "exact_match"))["value"] > 0).any(),
        **_hidden(summary),
        "blocks": dict(blocks.iter_rows()),
    }
    yield Plot("extraction", data, draw_extractions, values)


def _hidden(summary: pl.DataFrame) -> dict[str, Any]:
    """What sampling extracts in `TRIES` tries of the samples that the bypass of a late block hides.

    Of each late block that hides `LEAST` samples or more.
    """
    rows = views.memorization(summary, f"hidden_{TOP_40}").filter(pl.col("n") >= LEAST, k=TRIES)
    single = views.single_blocks(views.memorization(summary, "exact_match"))
    late = views.in_range(single, "late")
    rows = rows.join(late, on=["model", "intervention"], how="semi", maintain_order="left")
    return {
        "hidden": across("", shares(rows)),
        "models": count(rows["model"].n_unique()),
        "hiding": count(rows.height),
        "samples": extent(rows["n"], "samples"),
    }


def drawn(summary: pl.DataFrame) -> pl.DataFrame:
    """The interventions that are drawn: (model, intervention, block, label), in drawing order.

    Block 0 is left out: the paper warns that its bypass may look spuriously good.
    """
    exact = views.memorization(summary, "exact_match")
    single = views.single_blocks(exact)

    early, late = (
        views.in_range(single, name)
        .sort("value", "block")
        .filter((pl.int_range(pl.len()) == (pl.len() - 1) // 2).over("model"))
        for name in ("early", "late")
    )
    parts = {
        WHOLE: views.baseline(exact),
        EARLY: early,
        LATE: late,
        QUARTILE: views.quartiles(exact).filter(quartile=4),
    }
    return pl.concat(
        part.select("model", "intervention", "block", label=pl.lit(label))
        for label, part in parts.items()
    )


def draw_extractions(data: pl.DataFrame) -> Figure:
    """Share extracted by tries; one panel per model, one line per intervention."""
    looks = data["label"].unique(maintain_order=True).to_list()

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
