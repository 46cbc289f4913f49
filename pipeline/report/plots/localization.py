"""How often each scorer names the block that learned the memorized samples. Not in the paper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.analysis.localization import grades
from pipeline.report import colours, style
from pipeline.report.localization import PARTS, SCORERS, SECTION, called
from pipeline.report.plots.plot import Plot, count, share


def found_first(scores: pl.DataFrame) -> Iterator[Plot]:
    """Recall at 1 of each scorer, a panel for each part that learned."""
    data = grades(scores)
    named = [called(row) for row in data.iter_rows(named=True)]
    data = data.with_columns(pl.Series("called", named))
    best = data.sort("recall", "reciprocal", descending=True, maintain_order=True).row(
        0, named=True
    )
    equal = data.filter(recall=best["recall"]).height
    values = {
        "equal": count(equal) if equal > 1 else None,
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

    def panel(axes: Axes, rows: pl.DataFrame) -> None:
        axes.axvline(rows["recall_chance"][0], color=colours.MUTED, linestyle="--", linewidth=0.9)
        above = pl.col("recall_low") > pl.col("recall_chance")
        for shown, fill in ((above, colours.BLUE), (~above, colours.PAPER)):
            part = rows.filter(shown)
            at = [names.index(name) for name in part["called"]]
            reach = style.reach(part, "recall", "recall_low", "recall_high")
            look: Any = {"color": colours.BLUE, "markerfacecolor": fill, "linewidth": 1.1}
            axes.errorbar(part["recall"], at, xerr=reach, fmt="o", **look)
        axes.set_yticks(range(len(names)), names)
        axes.grid(visible=True, axis="x")
        style.whole_percent_axis(axes.xaxis)

    figure = style.facets(
        data.with_columns(title=pl.col("part").replace(PARTS)),
        panel,
        "title",
        labels=("names the block that learned", ""),
        order=[PARTS[part] for part in parts],
        height=0.9 + 0.23 * len(names),
        columns=len(parts),
    )
    figure.axes[0].invert_yaxis()
    return figure
