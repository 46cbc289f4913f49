"""How much attention alone can store: the bounds, and models that were filled.

Source: arXiv 2411.10115 and the slides "Memorization in Attention-only Transformers".
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from pipeline.analysis.theory import ATTENTION_ONLY_TITLE, Theory, over_seeds, stored_in
from pipeline.report import colours, style
from pipeline.report.numbers import Number
from pipeline.report.plots.plot import Plot, count, extent

STORED_IN = {
    "heads": "in the heads:\nheads trained, no MLP",
    "mlp": "in the MLP:\none random head, frozen",
    "frozen head": "that frozen head\nalone, no MLP",
}
"""A model of the experiment ``routing`` -> its label."""

_CEILING = "best accuracy from one token"
_MAPS = {"ls": "f_ls", "wls": "f_wls"}
_BOUNDS = (
    ("printed_conditional", "as printed, largest conditional", 1),
    ("printed_joint", "as printed, largest joint", 3),
    ("spectral", "corrected: all values left out", 2),
    ("variance", "corrected: variance", 4),
)
_ARCHITECTURES = {
    "attention-only": ("attention only", 0),
    "shared-bottleneck": ("heads share one bottleneck", 1),
    "mlp": ("one head and an MLP", 2),
}
_PANELS = {
    "heads": ("heads", "heads H"),
    "head_width": ("head_width", "head width d_h"),
    "width": ("width", "width D"),
    "square": ("heads", "heads H, where d_h = D"),
    "parameters": ("parameters", "parameters"),
    "narrow": ("heads", "heads H, D = d_h = 2"),
}
"""Experiment -> the column on the x axis, its label."""


def experiments(theory: Theory) -> Iterator[Plot]:
    """The figures of those experiments that have tables."""
    makers = (
        ("associative", _capacities),
        ("low_rank", _low_ranks),
        ("attention_only", _trained),
        ("attention_only", _routing),
    )
    for experiment, make in makers:
        rows = theory.experiments.get(experiment, pl.DataFrame())
        if rows.height:
            yield make(rows)


def _capacities(rows: pl.DataFrame) -> Plot:
    """Pairs that an associative memory holds, over its width."""
    held = rows.filter(pl.col("quantity").str.starts_with("capacity"))
    data = over_seeds(held, "experiment", "quantity", "width", log=True)
    widest = data.filter(pl.col("width") == pl.col("width").max().over("experiment", "quantity"))
    values = {
        "ratio": extent(widest["value"] / widest["bound"], unit="ratio"),
        "pairs": extent(data["value"], unit=""),
        "slides": extent(data["bound"], unit=""),
    }
    return Plot("capacity", data, draw_capacities, values, section=ATTENTION_ONLY_TITLE)


def draw_capacities(data: pl.DataFrame) -> Figure:
    """Pairs by width, a line for each way to fill the memory and share to be right."""
    figure, (axes,) = style.panels(1, height=3)
    words = {"closed": "sum of outer products"}
    right = pl.col("quantity").str.strip_prefix("capacity_")
    line = pl.format("{}, {}% right", pl.col("experiment").replace(words), right)
    labelled = data.drop(style.ROW, strict=False).with_columns(line=line)
    style.lines(axes, labelled, line="line", x="width", hollow=None)
    slides = data.unique("width").sort("width")
    _reference(axes, slides, "width", "the slides: D")
    style.log_axis(axes.xaxis)
    style.log_axis(axes.yaxis)
    # ticks only at the widths in the data; a logarithmic axis would add others between them
    axes.xaxis.set_major_locator(FixedLocator(slides["width"].to_list()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("width D")
    axes.set_ylabel("pairs")
    style.legend(figure)
    return figure


def _low_ranks(rows: pl.DataFrame) -> Plot:
    """Divergence of the maps of low rank, beside the bounds on it."""
    shown = rows.filter(pl.col("statement").is_in([name for name, *_ in _BOUNDS]))
    data = over_seeds(shown, "experiment", "table", "statement", "rank")
    is_printed = pl.col("statement").str.starts_with("printed")
    values = {
        "printed": _too_low(data.filter(is_printed)),
        "corrected": _too_low(data.filter(~is_printed)),
        "panels": count(data.select("experiment", "table").n_unique()),
        "loss": extent(data["value"], unit="nats"),
    }
    return Plot("low-rank", data, draw_low_ranks, values, section=ATTENTION_ONLY_TITLE)


def _too_low(rows: pl.DataFrame) -> dict[str, Number]:
    """How often a bound lies below the measured loss."""
    low = rows.filter(pl.col("bound") < pl.col("value"))
    return {"low": count(low.height), "of": count(rows.height)}


def draw_low_ranks(data: pl.DataFrame) -> Figure:
    """Loss and bounds by rank; one panel per map and kind of table."""
    tables = data["table"].unique(maintain_order=True).to_list()
    named = data.with_columns(
        panel=pl.format("{}, {}", pl.col("experiment").replace(_MAPS), "table")
    )
    present = set(named["panel"])
    panels = (f"{name}, {table}" for name, table in product(_MAPS.values(), tables))
    return style.facets(
        named.sort("rank", maintain_order=True),
        _low_rank,
        "panel",
        labels=("rank d", "divergence, nats"),
        order=[panel for panel in panels if panel in present],
        share_y=False,
        columns=min(4, len(tables)),
    )


def _low_rank(axes: Axes, rows: pl.DataFrame) -> None:
    rows = rows.with_columns(low=None, high=None)
    for statement, label, index in _BOUNDS:
        _curve(axes, rows.filter(statement=statement), index, label, x="rank", value="bound")
    measured = rows.unique("rank", maintain_order=True)
    _curve(axes, measured, 0, "measured loss", x="rank")
    style.log_axis(axes.yaxis)
    axes.yaxis.set_minor_formatter(NullFormatter())
    style.blocks_axis(axes)


def _trained(rows: pl.DataFrame) -> Plot:
    """Accuracy of trained models over their shape."""
    # models with an MLP are compared with the models of the experiment `heads`
    rivals = rows.filter(experiment="heads").with_columns(experiment=pl.lit("parameters"))
    shown = pl.concat([rows, rivals]).filter(
        pl.col("experiment").is_in(list(_PANELS)), quantity="accuracy"
    )
    shape = ("vocabulary", "width", "heads", "head_width", "hidden", "parameters")
    data = over_seeds(shown, "experiment", "architecture", *shape, share=True)
    above = (data["value"] > data["bound"]).drop_nulls()
    values = {
        "above": count(int(above.sum())),
        "shapes": count(above.len()),
        "panels": count(data["experiment"].n_unique()),
        "accuracy": extent(data["value"]),
        "bound": extent(data["bound"]),
    }
    return Plot("attention-only", data, draw_trained, values, section=ATTENTION_ONLY_TITLE)


def draw_trained(data: pl.DataFrame) -> Figure:
    """Accuracy by shape; one panel per experiment."""
    present = set(data["experiment"])
    experiments = [experiment for experiment in _PANELS if experiment in present]
    figure, grid = style.panels(len(experiments))
    for axes, experiment in zip(grid, experiments, strict=True):
        column, label = _PANELS[experiment]
        rows = data.filter(experiment=experiment).sort(column)
        square = experiment == "square"
        for architecture, (words, index) in _ARCHITECTURES.items():
            of_architecture = rows.filter(architecture=architecture)
            by = "width" if square else "architecture"
            for _, part in of_architecture.group_by(by, maintain_order=True):
                _curve(axes, part, index, words, x=column)
                _reference(axes, part.drop_nulls("bound"), column, "lower bound")
                if square:
                    axes.annotate(
                        f"D = {part['width'][0]}",
                        (part[column][-1], part["value"][-1]),
                        xytext=(-3, 5),
                        textcoords="offset points",
                        ha="right",
                        fontsize=8,
                    )
        axes.set_xlabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    style.whole_percent_axis(grid[0].yaxis)
    figure.supylabel("accuracy")
    style.legend(figure)
    return figure


def _routing(rows: pl.DataFrame) -> Plot:
    """Models that store in different places, unmodified and bypassed; without them, no data."""
    by = ("stored_in", "hidden", "heads", "quantity")
    data = over_seeds(stored_in(rows), *by, share=True)
    accuracies = {"before": "accuracy", "after": "bypassed_accuracy"}
    places = {
        where: {
            key: extent(part.filter(quantity=name)["value"]) for key, name in accuracies.items()
        }
        for place, where in (("heads", "heads"), ("mlp", "MLP"))
        if (part := data.filter(stored_in=place)).height
    }
    return Plot("routing", data, draw_routing, {"places": places}, section=ATTENTION_ONLY_TITLE)


def draw_routing(data: pl.DataFrame) -> Figure:
    """Two bars per model."""
    figure, (axes,) = style.panels(1, height=2.8)
    places = data["stored_in"].unique(maintain_order=True).to_list()
    looks = (("accuracy", "baseline", ""), ("bypassed_accuracy", "attention bypassed", "////"))
    for i, (quantity, label, hatch) in enumerate(looks):
        rows = data.filter(quantity=quantity)
        x = np.array([places.index(each) for each in rows["stored_in"]]) + 0.38 * (i - 0.5)
        axes.bar(
            x,
            style.finite(rows["value"]),
            width=0.36,
            yerr=style.reach(rows, "value", "low", "high"),
            color=style.category(i)[0],
            hatch=hatch,
            edgecolor=colours.INK,
            linewidth=0.6,
            ecolor=colours.INK,
            error_kw={"elinewidth": 0.9, "capsize": 2},
            label=label,
        )
        if quantity == "bypassed_accuracy":
            for at, most in zip(x, style.finite(rows["bound"]), strict=True):
                line = [at - 0.22, at + 0.22], [most, most]
                axes.plot(*line, color=colours.INK, linewidth=1.6, label=_CEILING)
    axes.set_xticks(range(len(places)), [STORED_IN[place] for place in places])
    axes.tick_params(axis="x", length=0)
    style.percent_axis(axes.yaxis)
    axes.set_ylim(0, 1.08)
    axes.set_ylabel("accuracy")
    style.legend(figure)
    return figure


def _curve(
    axes: Axes, rows: pl.DataFrame, index: int, label: str, x: str, value: str = "value"
) -> None:
    """A line without tooltips, which are for rows of models."""
    rows = rows.drop(style.ROW, strict=False).with_columns(line=pl.lit(label))
    style.lines(axes, rows, line="line", x=x, y=value, looks={label: index}, hollow=None)


def _reference(axes: Axes, rows: pl.DataFrame, x: str, label: str) -> None:
    """The bounds as a dashed line, if there are any."""
    if rows.height:
        look: dict[str, Any] = {"color": colours.INK, "linestyle": (0, (6, 3)), "linewidth": 1}
        axes.plot(rows[x], style.finite(rows["bound"]), label=label, **look)
