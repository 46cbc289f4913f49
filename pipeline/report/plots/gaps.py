"""Memory loss minus ability loss by the number of tokens that memory is measured by."""

from collections.abc import Iterator
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.analysis import gaps as analysis
from pipeline.analysis.displacement import SURVIVAL_GAP
from pipeline.analysis.evidence import LOG_PROB
from pipeline.interventions.interventions import edit_order
from pipeline.report import style
from pipeline.report.plots.plot import Plot, extent, panels

_APART = {LOG_PROB: "log p", SURVIVAL_GAP: "equal p"}
"""Measure -> its label, right of the lengths."""


def gaps(evidence: pl.DataFrame, summary: pl.DataFrame) -> Iterator[Plot]:
    """Memory loss minus ability loss with one late block edited, one panel per model."""
    data = analysis.gaps(evidence, summary)
    exact = data.filter(measure=analysis.EXACT)
    if not exact.height:
        return
    edits = sorted(data["edit"].unique(), key=edit_order)
    first, whole = exact.filter(k=1), exact.filter(pl.col("k").is_null())
    equal = data.filter(measure=SURVIVAL_GAP)

    def by_edit(rows: pl.DataFrame) -> dict[str, Any]:
        return {edit: extent(rows.filter(edit=edit)["gap"], unit="points") for edit in edits}

    values = {
        "first": by_edit(first),
        "whole": by_edit(whole),
        "equal": by_edit(equal) if equal.height else {},
        "panels": panels(data),
    }
    yield Plot("gap", data, draw_gaps, values)


def draw_gaps(data: pl.DataFrame) -> Figure:
    """The difference by length; a line per edit, and at the right what has no length."""
    edits = sorted(data["edit"].unique(), key=edit_order)
    exact = pl.col("measure") == analysis.EXACT

    def panel(axes: Axes, rows: pl.DataFrame) -> None:
        lengths = rows.filter(exact)["k"].unique().sort(nulls_last=True).to_list()
        places = {k: float(place) for place, k in enumerate(lengths)}
        apart = dict(enumerate(_APART.items(), len(lengths) + 1))
        by_length = rows.filter(exact).with_columns(place=pl.col("k").replace_strict(places))
        style.lines(axes, by_length, line="edit", x="place", y="gap", looks=edits, hollow=None)
        for index, edit in enumerate(edits):
            colour, marker, _ = style.category(index)
            for place, (measure, _) in apart.items():
                point = rows.filter(edit=edit, measure=measure)
                at = [place + 0.1 * (index - 1.5)] * point.height
                reach = style.reach(point, "gap", "low", "high")
                axes.errorbar(at, point["gap"], reach, color=colour, linewidth=1, fmt="none")
                style.tell(axes.plot(at, point["gap"], color=colour, marker=marker), point)
        labels = [str(k) if k is not None else "all" for k in lengths]
        labels += [label for _, label in apart.values()]
        axes.set_xticks([*range(len(lengths)), *apart], labels)

    return style.facets(
        data,
        panel,
        labels=(
            "first tokens of the suffix by which memory is measured",
            "memory loss minus ability loss",
        ),
        scale_y=style.percent_axis,
        bounds=(-1.1, 1.1),
        level=0,
    )
