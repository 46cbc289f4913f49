"""Memorization against each benchmark, one point per bypassed block.

Source: Figures 1 and A7–A11 of arXiv 2501.05078.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.estimates import Measured, measured_models
from pipeline.analysis.statistics import LEVEL
from pipeline.analysis.text import slug, visible
from pipeline.report import colours, style
from pipeline.report.plots.plot import (
    MEMORIZED_LABEL,
    NUMBERS,
    UNMODIFIED_OR_ONE_BLOCK,
    Plot,
    by_block,
    count,
    extent,
)


def scatters(summary: pl.DataFrame, evidence: pl.DataFrame) -> Iterator[Plot]:
    """Every benchmark against exact match on memorized samples, one figure per model."""
    key = ("model", "intervention")
    exact = {"memorized": "value", "memorized_low": "low", "memorized_high": "high"}
    x = views.memorization(summary, "exact_match").select(*key, **exact)
    y = views.benchmarks(summary).filter(UNMODIFIED_OR_ONE_BLOCK)
    joined = y.join(x, on=key, maintain_order="left")
    joined = joined.select(*NUMBERS, "higher_is_better", "chance", *exact)
    measured = {model.shown: model for model in measured_models(evidence)}
    for name, _ in views.models(summary):
        data = joined.filter(model=name)
        if not by_block(data).height:
            continue
        values = {
            "model": name,
            "panels": count(data["task"].n_unique()),
            "exact": extent(by_block(data)["memorized"]),
            **(_apart(measured[name]) if name in measured else {"blocks": None}),
        }
        yield Plot(f"scatter-{slug(name)}", data, draw_scatter, values, "scatter", name)


def _apart(model: Measured) -> dict[str, Any]:
    """At how many blocks memory loses more than ability, and less, by whole intervals."""
    blocks = [over for over in model.blocks.values() if model.has(model.gap(over, k=1))]
    counts: dict[str, Any] = {"blocks": count(len(blocks)) if blocks else None}
    for end, k in (("", None), ("_of_first", 1)):
        gaps = [model.estimate(model.gap(over, k=k), LEVEL) for over in blocks]
        counts[f"more{end}"] = count(sum(gap.low > 0 for gap in gaps))
        counts[f"less{end}"] = count(sum(gap.high < 0 for gap in gaps))
    return counts


def draw_scatter(data: pl.DataFrame) -> Figure:
    """Benchmarks of one model by exact match, one point per block, one panel per task."""
    depth = style.depth(int(by_block(data)["block"].max() or 0) + 1)  # type: ignore[arg-type]
    figure = style.facets(
        data.sort("task", maintain_order=True),
        partial(_panel, depth=depth),
        "task",
        labels=(MEMORIZED_LABEL, ""),
        height=2.3,
        share_y=False,
    )
    style.depth_bar(figure, figure.axes, depth)
    return figure


def _panel(axes: Axes, rows: pl.DataFrame, depth: ListedColormap) -> None:
    blocks, whole = by_block(rows), views.baseline(rows)
    x, y = style.finite(blocks["memorized"]), style.finite(blocks["value"])
    reaches = (
        style.reach(blocks, "value", "low", "high"),
        style.reach(blocks, "memorized", "memorized_low", "memorized_high"),
    )
    axes.errorbar(x, y, *reaches, fmt="none", ecolor=colours.GREY, elinewidth=0.7, zorder=1)
    axes.plot(x, y, color=colours.GREY, linewidth=0.7, zorder=1)

    def points(own: pl.DataFrame, label: str, **look: Any) -> None:
        at = style.finite(own["memorized"]), style.finite(own["value"])
        drawn = axes.scatter(*at, label=label, edgecolors=colours.INK, **look)
        style.tell([drawn], own)

    later, first = blocks.filter(pl.col("block") > 0), blocks.filter(block=0)
    points(later, "one block", c=depth(later["block"].to_numpy()), s=34, linewidths=0.6, zorder=3)
    points(first, "block 0", c=colours.PAPER, marker="D", s=34, linewidths=1.2, zorder=3)
    for value, memorized, chance in whole.select("value", "memorized", "chance").iter_rows():
        dashed: Any = {"color": colours.MUTED, "linestyle": (0, (6, 3)), "linewidth": 0.9}
        axes.axhline(value, zorder=0, **dashed)
        axes.axvline(memorized, zorder=0, **dashed)
        star: Any = {"marker": "*", "s": 120, "color": colours.VERMILION, "linewidths": 0.6}
        points(whole, "baseline", zorder=4, **star)
        if chance is not None:
            axes.axhline(chance, color=colours.INK, linestyle=":", linewidth=1, label="chance")
    style.whole_percent_axis(axes.xaxis)
    axes.set_ylabel(visible(rows["metric"][0]))
    (style.percent_axis if rows["higher_is_better"][0] else style.log_axis)(axes.yaxis)
