"""Memory loss minus ability loss by the number of tokens that memory is measured by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis import gaps as analysis
from pipeline.analysis.displacement import SURVIVAL_GAP
from pipeline.analysis.evidence import LOG_PROB
from pipeline.analysis.text import visible
from pipeline.interventions.interventions import EDITS
from pipeline.report import colours, style
from pipeline.report.plots.plot import Plot, extent, panels

_APART = {LOG_PROB: "log p", SURVIVAL_GAP: "equal p"}
"""Measure -> its label, right of the lengths."""


def gaps(evidence: pl.DataFrame, summary: pl.DataFrame) -> Iterator[Plot]:
    """Memory loss minus ability loss with one late block edited, one panel per model.

    Args:
        evidence: schema `evidence.EVIDENCE`.
        summary: seeds pooled.
    """
    data = analysis.gaps(evidence, summary)
    exact = data.filter(measure=analysis.EXACT)
    if not exact.height:
        return
    edits = sorted(data["edit"].unique(), key=EDITS.index)
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
    edits = sorted(data["edit"].unique(), key=EDITS.index)
    names = data["model"].unique(maintain_order=True).to_list()
    figure, grid = style.panels(len(names))
    for axes, name in zip(grid, names, strict=True):
        rows = data.filter(model=name)
        lengths = rows.filter(measure=analysis.EXACT)["k"].unique().sort(nulls_last=True).to_list()
        places = {k: place for place, k in enumerate(lengths)}
        labels = [str(k) if k is not None else "all" for k in lengths]
        axes.axhline(0, color=colours.MUTED, linewidth=0.8)
        for index, edit in enumerate(edits):
            one = rows.filter(edit=edit).with_columns(at=pl.lit(0.1 * (index - 1.5)))
            exact = one.filter(measure=analysis.EXACT).with_columns(
                at=pl.col("k").replace_strict(places, return_dtype=pl.Float64)
            )
            style.curve(axes, exact.sort("at"), index, edit, x="at", value="gap", hollow=None)
            colour, marker, _ = style.category(index)
            for place, measure in enumerate(_APART, len(lengths) + 1):
                point = one.filter(measure=measure)
                if point.height:
                    at = point["at"] + place
                    reach = style.reach(point, "gap", "low", "high")
                    axes.errorbar(at, point["gap"], reach, color=colour, linewidth=1, fmt="none")
                    style.tell(axes.plot(at, point["gap"], color=colour, marker=marker), point)
        ticks = [*range(len(lengths)), *range(len(lengths) + 1, len(lengths) + 1 + len(_APART))]
        axes.set_xticks(ticks, [*labels, *_APART.values()])
        axes.set_title(visible(name))
        style.percent_axis(axes.yaxis)
    style.bound(grid[0], -1.1, 1.1)
    figure.supxlabel("first tokens of the suffix by which memory is measured")
    figure.supylabel("memory loss minus ability loss")
    style.legend(figure)
    return figure
