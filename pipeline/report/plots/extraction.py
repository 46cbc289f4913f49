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
from pipeline.report.plots.plot import NUMBERS, Plot, count, extent, share

TOP_40 = "extractable_top_40"
TRIES = 1_000
"""The number of tries in the sentence."""

LEAST = 10
"""Hidden samples of a block, below which no share of them is told."""

WHOLE, EARLY, LATE, QUARTILE = (
    "baseline",
    "an early block",
    "a late block",
    "last quarter",
)


def extractions(summary: pl.DataFrame) -> Iterator[Plot]:
    """The share of memorized samples extracted within n tries, under one block of each range."""
    chosen = drawn(summary)
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
        "least": count(LEAST),
        "recited": (views.baseline(views.memorization(summary, "exact_match"))["value"] > 0).any(),
        **_out(hidden(summary)),
        "blocks": _blocks(summary, chosen.filter(pl.col("model").is_in(data["model"]))),
    }
    yield Plot("extraction", data, draw_extractions, values)


def _out(rows: pl.DataFrame) -> dict[str, Any]:
    """The share of hidden samples that come out, model by model."""
    shares = [share(*row) for row in rows.select("value", "low", "high").iter_rows()]
    return {
        "hidden": across("", shares),
        "models": count(rows["model"].n_unique()),
        "hiding": count(rows.height),
        "samples": extent(rows["n"], "samples"),
    }


def _blocks(summary: pl.DataFrame, chosen: pl.DataFrame) -> dict[str, list[str]]:
    """Model -> the early and the late block that are drawn, as far as it has them."""
    blocks = summary.select("model", "intervention", "block").unique()
    rows = chosen.filter(pl.col("label").is_in((EARLY, LATE)))
    rows = rows.join(blocks, on=["model", "intervention"], maintain_order="left")
    return {
        str(model): part["block"].cast(pl.String).to_list()
        for [model], part in rows.group_by("model", maintain_order=True)
    }


def drawn(summary: pl.DataFrame) -> pl.DataFrame:
    """The interventions that are drawn: (model, intervention, label), in drawing order.

    Block 0 is left out: the paper warns that its bypass may look spuriously good.
    """
    exact = views.memorization(summary, "exact_match")
    single = views.single_blocks(exact)

    def middle(rows: pl.DataFrame, label: str) -> pl.DataFrame:
        ranked = rows.sort("value", "block").with_columns(
            place=pl.int_range(pl.len()).over("model"), count=pl.len().over("model")
        )
        chosen = ranked.filter(pl.col("place") == (pl.col("count") - 1) // 2)
        return chosen.with_columns(label=pl.lit(label))

    quartiles = views.quartiles(exact).filter(quartile=4)
    parts = [
        views.baseline(exact).with_columns(label=pl.lit(WHOLE)),
        middle(views.in_range(single, "early"), EARLY),
        middle(views.in_range(single, "late"), LATE),
        quartiles.with_columns(label=pl.lit(QUARTILE)),
    ]
    return pl.concat([part.select("model", "intervention", "label") for part in parts])


def hidden(summary: pl.DataFrame) -> pl.DataFrame:
    """The rows of the summary that tell what sampling extracts of the texts a bypass hides.

    One row for each late block whose bypass hides `LEAST` texts or more; the number of tries is
    `TRIES`.
    """
    rows = views.memorization(summary, f"hidden_{TOP_40}").filter(pl.col("n") >= LEAST, k=TRIES)
    single = views.single_blocks(views.memorization(summary, "exact_match"))
    late = views.in_range(single, "late")
    return rows.join(late, on=["model", "intervention"], how="semi", maintain_order="left")


def draw_extractions(data: pl.DataFrame) -> Figure:
    """Share extracted by tries; one panel per model, one line per intervention."""
    data = data.with_columns(pl.col("label", "model").cast(pl.String))
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
