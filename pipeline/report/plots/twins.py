"""Counterfactual memorization: exact match of a model minus its twin's, by copies and block.

Not in the paper. The twin never saw the samples (see `analysis.twins`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from pipeline.analysis.text import visible
from pipeline.analysis.twins import METRIC
from pipeline.report import style
from pipeline.report.plots.plot import (
    BLOCKS_LABEL,
    NUMBERS,
    Plot,
    count,
    later_blocks,
    share,
    unmodified_or_one_block,
)

WIDEST = 16
"""Most columns whose cells have room for a number."""


def counterfactual(summary: pl.DataFrame) -> Iterator[Plot]:
    """One figure: a surface of copies by blocks for each model with a twin."""
    data = summary.filter(pl.col("metric") == METRIC, unmodified_or_one_block()).select(
        *NUMBERS, "copies"
    )
    if not data.height:
        return
    names = data["model"].unique(maintain_order=True)
    twins = {name: _beyond(data.filter(model=name)) for name in names}
    yield Plot("twins", data, draw, {"twins": twins})


def _beyond(rows: pl.DataFrame) -> dict[str, Any]:
    """What one model recites beyond its twin, unmodified and without the most harmful block."""
    unmodified = rows.filter(pl.col("block").is_null()).sort("copies")
    most, fewest = unmodified.row(-1, named=True), unmodified.row(0, named=True)
    of_most = later_blocks(rows.filter(copies=most["copies"]))
    lowest = of_most.sort("value", "block").row(0, named=True)
    known = {"seen": most, "unseen": fewest, "harmed": lowest}
    return {
        "most": count(most["copies"]),
        "fewest": count(fewest["copies"]) if fewest["copies"] else None,
        "block": str(lowest["block"]),
        **{key: share(row["value"], row["low"], row["high"]) for key, row in known.items()},
    }


def draw(data: pl.DataFrame) -> Figure:
    """One panel per model: copies by rows, the unmodified model and each block by columns."""
    names = data["model"].unique(maintain_order=True).to_list()
    rows = data["copies"].n_unique()
    figure, grid = style.panels(len(names), height=0.9 + 0.3 * rows, columns=1)
    norm = Normalize(0, 1)
    for axes, name in zip(grid, names, strict=True):
        _surface(axes, data.filter(model=name), norm)
        axes.set_title(visible(name))
    bar = style.scale(figure, grid, norm, colormaps["viridis"], "exact match beyond the twin's")
    style.percent_axis(bar.ax.yaxis)
    figure.supxlabel(BLOCKS_LABEL)
    figure.supylabel("copies")
    return figure


def _surface(axes: Axes, rows: pl.DataFrame, norm: Normalize) -> None:
    copies = sorted(rows["copies"].unique())
    blocks = sorted(rows["block"].drop_nulls().unique())
    place = pl.col("block").cast(pl.Float64).fill_null(-1.5)  # the baseline stands apart
    cells = rows.with_columns(
        x=place, y=pl.col("copies").replace_strict({n: i for i, n in enumerate(copies)})
    )
    shown = colormaps["viridis"](norm(style.finite(cells["value"])))
    boxes = axes.bar(
        cells["x"], height=1, width=1, bottom=cells["y"].cast(pl.Float64) - 0.5, color=shown
    )
    style.tell(list(boxes), cells)
    if len(blocks) < WIDEST:
        for cell, colour in zip(cells.iter_rows(named=True), shown, strict=True):
            unclear = cell["low"] <= 0 <= cell["high"]
            bright = colour[:3] @ (0.299, 0.587, 0.114) > 0.5
            axes.text(
                cell["x"],
                cell["y"],
                f"{100 * cell['value']:.0f}",
                ha="center",
                va="center",
                fontsize=8,
                color="#9a9a9a" if unclear else "#000000" if bright else "#ffffff",
            )
    step = max(1, -(-len(blocks) // 16))
    axes.set_xticks([-1.5, *blocks[::step]], ["none", *map(str, blocks[::step])])
    axes.set_yticks(range(len(copies)), [str(n) for n in copies])
    axes.set_ylim(-0.5, len(copies) - 0.5)
    axes.grid(False)
