"""Exact match by copies in the training data, alone and beyond that of a twin. Not in the paper.

The twin never saw the samples (see `analysis.memorized`).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import polars as pl
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.memorized import COUNTERFACTUAL
from pipeline.report import style
from pipeline.report.numbers import across
from pipeline.report.plots.plot import (
    BLOCKS_LABEL,
    NUMBERS,
    UNMODIFIED_OR_ONE_BLOCK,
    Plot,
    count,
    later_blocks,
    shares,
)

WIDEST = 16
"""Most columns whose cells have room for a number."""


def doses(summary: pl.DataFrame) -> Iterator[Plot]:
    """Exact match of the unmodified models by copies in the training data."""
    data = views.baseline(summary.filter(metric="exact_match_by_copies")).select(
        *NUMBERS, "copies", "split"
    )
    if not data.height:
        return
    falling = data.group_by("copies").agg(pl.min("value")).sort("copies", descending=True)
    most, fewest = falling["copies"][0], falling["copies"][-1]
    enough = falling.filter((pl.col("value") > 0.5).cum_prod().cast(pl.Boolean))["copies"]
    values = {
        "fewest": count(fewest),
        "most": count(most),
        "least": across("", shares(data.filter(copies=fewest))),
        "largest": across("", shares(data.filter(copies=most))),
        "half": count(enough[-1]) if enough.len() else None,
    }
    yield Plot("copies", data, draw_doses, values)


def draw_doses(data: pl.DataFrame) -> Figure:
    """Exact match by copies; one panel per family, one line per model."""
    copies = sorted(data["copies"].unique())
    places = pl.col("copies").replace_strict(copies, range(len(copies)), return_dtype=pl.Int64)
    return style.facets(
        data.with_columns(place=places),
        partial(style.lines, x="place", hollow=pl.col("split") != "memorized"),
        "family",
        labels=("copies in the training data", "exact match"),
        ticks={place: str(count) for place, count in enumerate(copies)},
        scale_y=style.whole_percent_axis,
        key="upper left",
        height=2.4,
    )


def counterfactual(summary: pl.DataFrame) -> Iterator[Plot]:
    """One figure: a surface of copies by blocks for each model with a twin."""
    data = summary.filter(pl.col("metric") == COUNTERFACTUAL, UNMODIFIED_OR_ONE_BLOCK).select(
        *NUMBERS, "copies"
    )
    names = data["model"].unique(maintain_order=True)
    twins = {name: _beyond(data.filter(model=name)) for name in names}
    yield Plot("twins", data, draw_twins, {"twins": twins})


def _beyond(rows: pl.DataFrame) -> dict[str, Any]:
    """What one model recites beyond its twin, unmodified and without the most harmful block."""
    unmodified = rows.filter(pl.col("block").is_null()).sort("copies")
    fewest, most = unmodified["copies"][0], unmodified["copies"][-1]
    of_most = later_blocks(rows.filter(copies=most)).sort("value", "block")
    known = shares(unmodified)
    return {
        "most": count(most),
        "fewest": count(fewest) if fewest else None,
        "block": str(of_most["block"][0]) if of_most.height else None,
        "seen": known[-1],
        "unseen": known[0],
        "harmed": shares(of_most)[0] if of_most.height else None,
    }


def draw_twins(data: pl.DataFrame) -> Figure:
    """One panel per model: copies by rows, the unmodified model and each block by columns."""
    rows = data["copies"].n_unique()
    figure = style.facets(
        data, _surface, labels=(BLOCKS_LABEL, "copies"), height=0.9 + 0.3 * rows, columns=1
    )
    colours = colormaps["viridis"]
    label = "exact match beyond the twin's"
    bar = style.scale(figure, figure.axes, Normalize(0, 1), colours, label)
    style.percent_axis(bar.ax.yaxis)
    return figure


def _surface(axes: Axes, rows: pl.DataFrame) -> None:
    copies = sorted(rows["copies"].unique())
    blocks = sorted(rows["block"].drop_nulls().unique())
    placed = rows.with_columns(
        x=pl.col("block").cast(pl.Float64).fill_null(-1.5),  # the baseline stands apart
        y=pl.col("copies").replace_strict({n: i for i, n in enumerate(copies)}),
    )
    shades = colormaps["viridis"](style.finite(rows["value"]))
    style.cells(axes, placed, "x", "y", shades)
    room = len(blocks) < WIDEST
    for cell, shade in zip(placed.rows(named=True), shades, strict=True) if room else ():
        unclear = {"color": "#9a9a9a"} if cell["low"] <= 0 <= cell["high"] else {}
        style.percent_on(axes, cell, cell["value"], shade, fontsize=8, **unclear)
    step = max(1, -(-len(blocks) // 16))
    axes.set_xticks([-1.5, *blocks[::step]], ["none", *map(str, blocks[::step])])
    axes.set_yticks(range(len(copies)), [str(n) for n in copies])
