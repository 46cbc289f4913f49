"""Dose and response: exact match by copies in the training data. Not in the paper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.text import visible
from pipeline.report import colours, style
from pipeline.report.plots.plot import (
    NUMBERS,
    Plot,
    extent,
)


def doses(summary: pl.DataFrame) -> Iterator[Plot]:
    """Exact match of the unmodified models by copies in the training data."""
    data = views.baseline(summary.filter(metric="exact_match_by_copies")).select(
        *NUMBERS, "copies", "split"
    )
    if not data.height:
        return
    fewest, most = (data.filter(pl.col("copies") == end) for end in _ends(data["copies"]))
    yield Plot(
        name="copies",
        section="How often a text must be seen",
        title="",
        finding=(
            f"At baseline, the models recite {extent(fewest['value'])} of the samples "
            f"seen {fewest['copies'][0]} times and {extent(most['value'])} of those seen "
            f"{most['copies'][0]} times{_half(data)}."
        ),
        reading=(
            "Filled where the samples count as memorized in this study, hollow where they do not."
        ),
        caption="0 copies: never trained on. Bands: 95% intervals.",
        alt=(
            "Exact match at baseline by copies in the training data, one line per "
            f"model: {extent(fewest['value'])} at the fewest and {extent(most['value'])} at the "
            "most copies."
        ),
        data=data,
        draw=draw_doses,
    )


def _half(data: pl.DataFrame) -> str:
    """From how many copies on every model recites more than half."""
    lowest = data.group_by("copies").agg(pl.col("value").min()).sort("copies", descending=True)
    enough = lowest.filter((pl.col("value") > 0.5).cum_prod().cast(pl.Boolean))
    return (
        f"; all recite more than half from {enough['copies'][-1]} copies on"
        if enough.height
        else ""
    )


def draw_doses(data: pl.DataFrame) -> Figure:
    """Exact match by copies; one panel per family, one line per model."""
    families = data["family"].unique(maintain_order=True).to_list()
    copies = sorted(data["copies"].unique())
    figure, grid = style.panels(len(families), height=2.4)
    for axes, family in zip(grid, families, strict=True):
        rows = data.filter(family=family)
        for index, name in enumerate(rows["model"].unique(maintain_order=True)):
            one = rows.filter(model=name).sort("copies")
            colour, marker, dash = style.category(index)
            x = np.array([copies.index(c) for c in one["copies"]])
            y = style.finite(one["value"])
            low, high = style.finite(one["low"]), style.finite(one["high"])
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
            look: dict[str, Any] = {"color": colour, "marker": marker}
            style.tell(axes.plot(x, y, **look, linestyle=dash, label=visible(name)), one)
            other = (one["split"] != "memorized").to_numpy()
            hollow: dict[str, Any] = {
                "markerfacecolor": colours.PAPER,
                "linestyle": "none",
                "zorder": 4,
            }
            axes.plot(x[other], y[other], **look, **hollow)
        axes.set_xticks(range(len(copies)), [str(c) for c in copies])
        axes.set_title(visible(family))
        axes.legend(loc="upper left")
        style.percent_axis(axes.yaxis, whole=True)
    figure.supxlabel("copies in the training data")
    figure.supylabel("exact match")
    return figure


def _ends(column: pl.Series) -> tuple[object, object]:
    return column.min(), column.max()
