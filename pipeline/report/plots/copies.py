"""Dose and response: exact match by copies in the training data. Not in the paper."""

from collections.abc import Iterator
from functools import partial

import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.report import style
from pipeline.report.numbers import across
from pipeline.report.plots.plot import NUMBERS, Plot, count, shares


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
