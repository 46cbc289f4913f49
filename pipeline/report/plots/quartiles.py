"""A quarter of the blocks bypassed at once.

Source: Figures A12–A17 of arXiv 2501.05078, section A.3.2.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.text import slug, visible
from pipeline.interventions.interventions import QUARTILES
from pipeline.report import colours, style
from pipeline.report.plots.plot import NUMBERS, UNMODIFIED, Plot, extent


def quartiles(summary: pl.DataFrame) -> Iterator[Plot]:
    """Exact match and benchmarks with a quarter of the blocks bypassed, one figure per family."""
    memorized = views.memorization(summary, "exact_match")
    rows = pl.concat([memorized, views.benchmarks(summary)])
    numbered = (
        rows.with_columns(quartile=pl.when(UNMODIFIED).then(0).otherwise(views.quartile_number()))
        .drop_nulls("quartile")
        .select(*NUMBERS, "higher_is_better", "chance", "quartile")
    )
    for family in summary["family"].unique(maintain_order=True):
        data = numbered.filter(family=family)
        bypassed = data.filter(pl.col("quartile") > 0)
        if not bypassed.height:  # models of fewer than four blocks
            continue
        scored = bypassed.filter("higher_is_better").group_by("model", "quartile")
        means = scored.agg(pl.col("value").mean())["value"]
        values = {
            "family": family,
            "exact": extent(bypassed.filter(metric="exact_match")["value"]),
            "scores": extent(means) if means.len() else None,
            "chance": data["chance"].count() > 0,
            "perplexity": (~data["higher_is_better"]).any(),
        }
        yield Plot(f"quartiles-{slug(family)}", data, draw_quartiles, values, "quartiles", family)


def draw_quartiles(data: pl.DataFrame) -> Figure:
    """Exact match and benchmarks by quartile; one panel per measure, bars grouped by model."""
    upwards = pl.col("higher_is_better").fill_null(True)
    memorized = pl.col("task") == views.MEMORIZATION
    names = data["model"].unique(maintain_order=True).to_list()
    kind = pl.when(upwards).then(pl.lit("accuracy")).otherwise("metric")
    title = pl.when(memorized).then(pl.lit("exact match, memorized"))
    titled = data.sort(~memorized, ~upwards, "task", maintain_order=True).with_columns(
        title=title.otherwise(pl.format("{}, {}", "task", kind))
    )
    # the names of more than two models need the room
    columns = 2 if len(names) > 2 else None
    draw = partial(_panel, names=names)
    return style.facets(titled, draw, "title", share_y=False, columns=columns)


def _panel(axes: Axes, data: pl.DataFrame, names: Sequence[str]) -> None:
    """One measure: a group per model, with a bar or a point for the baseline and each quartile.

    A logarithmic scale has no zero where a bar could start, so it shows points.
    """
    bars = data["higher_is_better"][0] is not False
    apart = QUARTILES + 2  # from group to group; quartile 0: nothing bypassed
    fills = [colours.GREY, *style.depth(QUARTILES).colors]  # type: ignore[misc]
    for index, fill in enumerate(fills):
        rows = data.filter(quartile=index)
        x = [names.index(model) * apart + index for model in rows["model"]]
        y, reach = style.finite(rows["value"]), style.reach(rows, "value", "low", "high")
        look: Any = {"color": fill, "ecolor": colours.INK}
        whiskers: Any = {"elinewidth": 0.9, "capsize": 1.5}
        if bars:
            look |= {"edgecolor": colours.INK, "linewidth": 0.6, "width": 0.9}
            style.tell([*axes.bar(x, y, yerr=reach, error_kw=whiskers, **look)], rows)
        else:
            look |= {"markeredgecolor": colours.INK, "markeredgewidth": 0.6, "markersize": 6}
            style.tell([axes.errorbar(x, y, reach, fmt="o", **look, **whiskers).lines[0]], rows)
    for chance in data["chance"].drop_nulls().unique():
        axes.axhline(chance, color=colours.INK, linestyle=":", linewidth=1)
    ticks = range(len(names) * apart - 1)
    labels = ["–", *map(str, range(1, QUARTILES + 1)), ""] * len(names)
    axes.set_xticks(list(ticks), labels[: len(ticks)], fontsize=8)
    axes.tick_params(axis="x", length=0)
    below = axes.secondary_xaxis("bottom")
    centres = [i * apart + QUARTILES / 2 for i in range(len(names))]
    below.set_xticks(centres, [visible(name) for name in names], fontsize=8)
    below.tick_params(length=0, pad=13)
    below.spines[:].set_visible(False)
    (style.percent_axis if bars else style.log_axis)(axes.yaxis)
    if bars:
        axes.set_ylim(0, 1.04)
