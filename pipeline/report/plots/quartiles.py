"""A quarter of the blocks bypassed at once.

Source: Figures A12–A17 of arXiv 2501.05078, section A.3.2.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from matplotlib.figure import Figure

from pipeline.bypass.interventions import BASELINE, QUARTILES
from pipeline.report import colours, style, views
from pipeline.report.plots.plot import (
    NUMBERS,
    Plot,
    extent,
)
from pipeline.report.text import slug, visible

_QUARTILE_NAMES = [f"quartile-{quartile}" for quartile in range(1, QUARTILES + 1)]


def quartiles(summary: pl.DataFrame) -> Iterator[Plot]:
    """Exact match and accuracies with a quarter of the blocks bypassed, a figure a family."""
    memorized = views.memorization(summary, "exact_match")
    rows = pl.concat([memorized, views.accuracies(summary)])
    wanted = [BASELINE.name, *_QUARTILE_NAMES]
    whole = rows.filter(pl.col("intervention").is_in(wanted)).select(*NUMBERS, "chance")
    for family in dict.fromkeys(family for _, family in views.models(summary)):
        data = whole.filter(family=family)
        bypassed = data.filter(pl.col("intervention") != BASELINE.name)
        if not bypassed.height:  # models of fewer than four blocks
            continue
        exact = bypassed.filter(metric="exact_match")
        yield Plot(
            name=f"quartiles-{slug(family)}",
            section="A quarter of the blocks at once",
            title=family,
            caption=(
                f"{family}: nothing bypassed (–), then the first to the last quarter of the "
                "blocks at once (1 to 4). Dotted: chance; bars: 95% intervals. Compare Figures "
                "A12–A17 of the paper."
            ),
            alt=(
                f"{family}: exact match and benchmark accuracies with each quarter of the blocks "
                f"bypassed. Exact match spans {extent(exact['value'])}."
            ),
            data=data,
            draw=draw_quartiles,
        )


def draw_quartiles(data: pl.DataFrame) -> Figure:
    """Exact match and accuracies by quartile; a panel a measure, bars grouped by model."""
    memorized = data["task"][0]
    measures = [memorized, *(task for task in views.tasks(data) if task != memorized)]
    names = data["model"].unique(maintain_order=True).to_list()
    bars = [BASELINE.name, *_QUARTILE_NAMES]
    fills = [colours.GREY, *style.depth(QUARTILES).colors]  # type: ignore[misc]
    figure, grid = style.panels(len(measures))
    for axes, task in zip(grid, measures, strict=True):
        for index, bar in enumerate(bars):
            rows = data.filter(task=task, intervention=bar)
            x = [names.index(name) * (len(bars) + 1) + index for name in rows["model"]]
            axes.bar(
                x,
                style.finite(rows["value"]),
                yerr=style.reach(rows, "value", "low", "high"),
                color=fills[index],
                edgecolor=colours.INK,
                linewidth=0.6,
                width=0.9,
                ecolor=colours.INK,
                error_kw={"elinewidth": 0.9, "capsize": 1.5},
            )
        for chance in data.filter(task=task)["chance"].drop_nulls().unique():
            axes.axhline(chance, color=colours.INK, linestyle=":", linewidth=1)
        every = range(len(names) * (len(bars) + 1) - 1)
        labels = ["–", *map(str, range(1, QUARTILES + 1)), ""] * len(names)
        axes.set_xticks(list(every), labels[: len(every)], fontsize=7)
        axes.tick_params(axis="x", length=0)
        centres = [i * (len(bars) + 1) + (len(bars) - 1) / 2 for i in range(len(names))]
        below = axes.secondary_xaxis("bottom")
        below.set_xticks(centres, [visible(name) for name in names], fontsize=7.5)
        below.tick_params(length=0, pad=13)
        below.spines[:].set_visible(False)
        axes.set_title(
            "exact match, memorized" if task == memorized else f"{visible(task)}, accuracy"
        )
        style.percent_axis(axes.yaxis)
        axes.set_ylim(0, 1.04)
    return figure
