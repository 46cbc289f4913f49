"""How often each scorer names the block that learned the memorized samples. Not in the paper."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis.localization import grades
from pipeline.report import colours, style
from pipeline.report.localization import PARTS, SCORERS, SECTION, called
from pipeline.report.plots.plot import Plot, share


def found_first(scores: pl.DataFrame) -> Iterator[Plot]:
    """Recall at 1 of each scorer, a panel for each part that learned.

    Args:
        scores: as `localization.scores` makes it.
    """
    data = grades(scores)
    named = [called(row) for row in data.iter_rows(named=True)]
    data = data.with_columns(pl.Series("called", named))
    best = data.sort("recall", "reciprocal", descending=True, maintain_order=True).row(
        0, named=True
    )
    values = {
        "best": share(best["recall"], best["recall_low"], best["recall_high"]),
        "scorer": best["called"],
        "part": PARTS[best["part"]],
        "chance": share(data["recall_chance"][0]),
    }
    yield Plot("localization", data, draw, values, section=SECTION)


def draw(data: pl.DataFrame) -> Figure:
    """A dot with its interval for each scorer, one panel per part."""
    parts = [part for part in PARTS if part in data["part"]]
    names = [name for name in dict.fromkeys(SCORERS.values()) if name in data["called"]]
    figure, grid = style.panels(len(parts), height=0.9 + 0.23 * len(names), columns=len(parts))
    for axes, part in zip(grid, parts, strict=True):
        rows = data.filter(part=part)
        axes.axvline(rows["recall_chance"][0], color=colours.MUTED, linestyle="--", linewidth=0.9)
        for row in rows.iter_rows(named=True):
            above = row["recall_low"] > row["recall_chance"]
            axes.errorbar(
                row["recall"],
                names.index(row["called"]),
                xerr=[[row["recall"] - row["recall_low"]], [row["recall_high"] - row["recall"]]],
                color=colours.CATEGORIES[0],
                marker="o",
                markerfacecolor=colours.CATEGORIES[0] if above else colours.PAPER,
                linewidth=1.1,
            )
        axes.set_title(PARTS[part])
        axes.set_yticks(range(len(names)), names)
        axes.grid(visible=True, axis="x")
        style.percent_axis(axes.xaxis, whole=True)
    grid[0].invert_yaxis()
    figure.supxlabel("names the block that learned")
    return figure
