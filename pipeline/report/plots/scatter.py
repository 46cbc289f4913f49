"""Memorization against each benchmark, one point per bypassed block.

Source: Figures 1 and A7–A11 of arXiv 2501.05078.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.kept import one_block
from pipeline.analysis.text import slug, visible
from pipeline.report import colours, style
from pipeline.report.plots.plot import (
    MEMORIZED_LABEL,
    NUMBERS,
    Plot,
    by_block,
    count,
    extent,
    later_blocks,
    share,
    unmodified_or_one_block,
)


def scatters(summary: pl.DataFrame, shares: pl.DataFrame) -> Iterator[Plot]:
    """Every benchmark against exact match on memorized samples, one figure per model."""
    single = unmodified_or_one_block()
    x = views.memorization(summary, "exact_match").select(
        "model",
        "intervention",
        pl.col("value").alias("memorized"),
        pl.col("low").alias("memorized_low"),
        pl.col("high").alias("memorized_high"),
    )
    y = views.benchmarks(summary).filter(single)
    joined = y.join(x, on=["model", "intervention"], maintain_order="left").select(
        *NUMBERS,
        "higher_is_better",
        "chance",
        "memorized",
        "memorized_low",
        "memorized_high",
    )
    for name, _ in views.models(summary):
        data = joined.filter(model=name)
        values = {
            "model": name,
            "panels": count(data["task"].n_unique()),
            "exact": extent(by_block(data)["memorized"]),
            **_furthest(name, summary, shares),
        }
        yield Plot(f"scatter-{slug(name)}", data, draw_scatter, values, "scatter", name)


def _furthest(name: str, summary: pl.DataFrame, shares: pl.DataFrame) -> dict[str, Any]:
    """The block whose bypass leaves most of ability in comparison with memory, if one is known."""
    single = later_blocks(one_block(shares).filter(model=name))
    able = single.filter(kind="mean").select("block", able="kept")
    both = single.filter(measure="exact_match").join(able, on="block", maintain_order="left")
    apart = (
        both.filter(pl.col("able").is_not_null())
        .with_columns(apart=pl.col("able") - pl.col("kept"))
        .sort("apart", descending=True, maintain_order=True)
    )
    if not apart.height:
        return {"block": ""}
    block, able_share = apart.select("block", "able").row(0)
    exact = views.memorization(summary.filter(model=name), "exact_match")
    [before] = views.baseline(exact)["value"]
    [after] = views.single_blocks(exact).filter(block=block)["value"]
    shown = {"before": share(before), "after": share(after), "able": share(able_share)}
    return {"block": str(block), **shown}


def draw_scatter(data: pl.DataFrame) -> Figure:
    """Benchmarks of one model by exact match, one point per block, one panel per task."""
    tasks = views.tasks(data)
    figure, grid = style.panels(len(tasks), height=2.3, share_y=False)
    depth = style.depth(int(by_block(data)["block"].max() or 0) + 1)  # type: ignore[arg-type]
    for axes, task in zip(grid, tasks, strict=True):
        _scatter_panel(axes, data.filter(task=task), depth)
        axes.set_title(visible(task))
    figure.supxlabel(MEMORIZED_LABEL)
    style.depth_bar(figure, grid, depth)
    style.legend(figure)
    return figure


def _scatter_panel(axes: Axes, rows: pl.DataFrame, depth: ListedColormap) -> None:
    blocks, whole = by_block(rows), views.baseline(rows)
    x, y = style.finite(blocks["memorized"]), style.finite(blocks["value"])
    x_error = style.reach(blocks, "memorized", "memorized_low", "memorized_high")
    y_error = style.reach(blocks, "value", "low", "high")
    axes.errorbar(x, y, y_error, x_error, fmt="none", ecolor=colours.GREY, elinewidth=0.7, zorder=1)
    axes.plot(x, y, color=colours.GREY, linewidth=0.7, zorder=1)
    first = blocks["block"].to_numpy() == 0
    for hollow, label in ((False, "one block"), (True, "block 0")):
        chosen = first == hollow
        points = axes.scatter(
            x[chosen],
            y[chosen],
            c=colours.PAPER if hollow else depth(blocks["block"].to_numpy()[chosen]),
            marker="D" if hollow else "o",
            s=34,
            edgecolors=colours.INK,
            linewidths=1.2 if hollow else 0.6,
            label=label,
            zorder=3,
        )
        style.tell([points], blocks.filter(pl.Series(chosen)))
    for row in whole.iter_rows(named=True):
        lines: dict[str, Any] = {
            "color": colours.MUTED,
            "linestyle": (0, (6, 3)),
            "linewidth": 0.9,
            "zorder": 0,
        }
        axes.axhline(row["value"], **lines)
        axes.axvline(row["memorized"], **lines)
        star: dict[str, Any] = {
            "marker": "*",
            "s": 120,
            "color": colours.VERMILION,
            "edgecolors": colours.INK,
        }
        point = axes.scatter(
            row["memorized"], row["value"], label="baseline", linewidths=0.6, zorder=4, **star
        )
        style.tell([point], whole)
        if row["chance"] is not None:
            axes.axhline(
                row["chance"], color=colours.INK, linestyle=":", linewidth=1, label="chance"
            )
    style.percent_axis(axes.xaxis, whole=True)
    metric = rows["metric"][0]
    axes.set_ylabel(visible(metric))
    if rows["higher_is_better"][0]:
        style.percent_axis(axes.yaxis)
    else:
        style.log_axis(axes.yaxis)
