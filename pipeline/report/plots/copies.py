"""Dose and response: exact match by copies in the training data. Not in the paper."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.text import times
from pipeline.report import style
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
            f"seen {times(fewest['copies'][0])} and {extent(most['value'])} of those seen "
            f"{times(most['copies'][0])}{_half(data)}."
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
    if not enough.height:
        return ""
    count = enough["copies"][-1]
    return f"; all recite more than half from {count} {'copy' if count == 1 else 'copies'} on"


def draw_doses(data: pl.DataFrame) -> Figure:
    """Exact match by copies; one panel per family, one line per model."""
    copies = sorted(data["copies"].unique())
    places = pl.col("copies").replace_strict(copies, range(len(copies)), return_dtype=pl.Int64)
    figure, grid = style.lines(
        data.with_columns(place=places),
        panel="family",
        x="place",
        hollow=pl.col("split") != "memorized",
        height=2.4,
    )
    for axes in grid.values():
        axes.set_xticks(range(len(copies)), [str(count) for count in copies])
        axes.legend(loc="upper left")
        style.percent_axis(axes.yaxis, whole=True)
    figure.supxlabel("copies in the training data")
    figure.supylabel("exact match")
    return figure


def _ends(column: pl.Series) -> tuple[object, object]:
    return column.min(), column.max()
