"""How much attention alone can store: the bounds, and models that were filled.

Source: arXiv 2411.10115 and the slides "Memorization in Attention-only Transformers".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

from pipeline.analysis.theory import ATTENTION_ONLY_TITLE, Theory, over_seeds
from pipeline.report import colours, style
from pipeline.report.numbers import Number
from pipeline.report.plots.plot import Plot, count, extent

STORED_IN = {
    "heads": "in the heads:\nheads trained, no MLP",
    "mlp": "in the MLP:\none random head, frozen",
    "frozen head": "that frozen head\nalone, no MLP",
}
"""A model of the experiment ``routing`` -> its label."""

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


def capacities(theory: Theory) -> Iterator[Plot]:
    """Pairs that an associative memory holds, over its width."""
    rows = theory.experiments.get("associative", pl.DataFrame())
    if not rows.height:
        return
    data = over_seeds(
        rows.filter(pl.col("quantity").str.starts_with("capacity")),
        "experiment",
        "quantity",
        "width",
        log=True,
    )
    widest = data.filter(pl.col("width") == pl.col("width").max().over("experiment", "quantity"))
    values = {
        "ratio": extent(widest["value"] / widest["bound"], unit="ratio"),
        "pairs": extent(data["value"], unit=""),
        "slides": extent(data["bound"], unit=""),
    }
    yield Plot("capacity", data, draw_capacities, values, section=ATTENTION_ONLY_TITLE)


def draw_capacities(data: pl.DataFrame) -> Figure:
    """Pairs by width, a line for each way to fill the memory and share to be right."""
    figure, (axes,) = style.panels(1, height=3)
    words = {"closed": "sum of outer products", "trained": "trained"}
    kinds = data.select("experiment", "quantity").unique(maintain_order=True).rows()
    for index, (experiment, quantity) in enumerate(kinds):
        part = data.filter(experiment=experiment, quantity=quantity).sort("width")
        share = quantity.removeprefix("capacity_")
        _line(axes, part, "width", index, f"{words.get(experiment, experiment)}, {share}% right")
    slides = data.unique("width").sort("width")
    _reference(axes, slides["width"], style.finite(slides["bound"]), "the slides: D")
    style.log_axis(axes.xaxis)
    style.log_axis(axes.yaxis)
    _whole_ticks(axes, slides["width"])
    axes.set_xlabel("width D")
    axes.set_ylabel("pairs")
    style.legend(figure)
    return figure


def low_ranks(theory: Theory) -> Iterator[Plot]:
    """Divergence of the maps of low rank, beside the bounds on it."""
    rows = theory.experiments.get("low_rank", pl.DataFrame())
    if not rows.height:
        return
    wanted = [name for name, *_ in _BOUNDS]
    data = over_seeds(
        rows.filter(pl.col("statement").is_in(wanted)), "experiment", "table", "statement", "rank"
    )
    is_printed = pl.col("statement").str.starts_with("printed")
    values = {
        "printed": _too_low(data.filter(is_printed)),
        "corrected": _too_low(data.filter(~is_printed)),
        "panels": count(data.select("experiment", "table").n_unique()),
        "loss": extent(data["value"], unit="nats"),
    }
    yield Plot("low-rank", data, draw_low_ranks, values, section=ATTENTION_ONLY_TITLE)


def _too_low(rows: pl.DataFrame) -> dict[str, Number]:
    """How often a bound lies below the measured loss."""
    low = rows.filter(pl.col("bound") < pl.col("value"))
    return {"low": count(low.height), "of": count(rows.height)}


def draw_low_ranks(data: pl.DataFrame) -> Figure:
    """Loss and bounds by rank; one panel per map and kind of table."""
    kinds = data.select("experiment", "table").unique().sort("experiment", maintain_order=True)
    order = {table: i for i, table in enumerate(data["table"].unique(maintain_order=True))}
    panels = sorted(kinds.rows(), key=lambda each: (each[0], order[each[1]]))
    figure, grid = style.panels(len(panels), share_y=False, columns=min(4, len(order)))
    for axes, (experiment, table) in zip(grid, panels, strict=True):
        rows = data.filter(experiment=experiment, table=table).sort("rank")
        for statement, label, index in _BOUNDS:
            part = rows.filter(statement=statement).with_columns(low=None, high=None)
            _line(axes, part, "rank", index, label, value="bound")
        measured = rows.unique("rank", maintain_order=True)
        _line(axes, measured, "rank", 0, "measured loss", band=False)
        style.log_axis(axes.yaxis)
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(f"{_MAPS.get(experiment, experiment)}, {table}")
        style.blocks_axis(axes)
    figure.supxlabel("rank d")
    figure.supylabel("divergence, nats")
    style.legend(figure)
    return figure


def trained(theory: Theory) -> Iterator[Plot]:
    """Accuracy of trained models over their shape."""
    rows = theory.experiments.get("attention_only", pl.DataFrame()).clone()
    if not rows.height:
        return
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
    yield Plot("attention-only", data, draw_trained, values, section=ATTENTION_ONLY_TITLE)


def draw_trained(data: pl.DataFrame) -> Figure:
    """Accuracy by shape; one panel per experiment."""
    present = set(data["experiment"])
    experiments = [experiment for experiment in _PANELS if experiment in present]
    figure, grid = style.panels(len(experiments))
    for axes, experiment in zip(grid, experiments, strict=True):
        column, label = _PANELS[experiment]
        rows = data.filter(experiment=experiment).sort(column)
        widths = rows["width"].unique().sort().to_list() if experiment == "square" else [None]
        for architecture, (words, index) in _ARCHITECTURES.items():
            for width in widths:
                part = rows.filter(architecture=architecture)
                part = part.filter(width=width) if width is not None else part
                if not part.height:
                    continue
                _line(axes, part, column, index, words)
                bounded = part.filter(pl.col("bound").is_not_null())
                _reference(axes, bounded[column], style.finite(bounded["bound"]), "lower bound")
                if width is not None:
                    axes.annotate(
                        f"D = {width}",
                        (part[column][-1], part["value"][-1]),
                        xytext=(-3, 5),
                        textcoords="offset points",
                        ha="right",
                        fontsize=8,
                    )
        axes.set_xlabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    style.percent_axis(grid[0].yaxis, whole=True)
    figure.supylabel("accuracy")
    style.legend(figure)
    return figure


def routing(theory: Theory) -> Iterator[Plot]:
    """Two models that store in different places, unmodified and bypassed."""
    rows = theory.experiments.get("attention_only", pl.DataFrame())
    if not rows.height or not (rows["experiment"] == "routing").any():
        return
    place = (
        pl.when(pl.col("architecture") == "attention-only")
        .then(pl.lit("heads"))
        .when(pl.col("hidden") > 0)
        .then(pl.lit("mlp"))
        .otherwise(pl.lit("frozen head"))
    )
    shown = rows.filter(pl.col("quantity").str.ends_with("accuracy"), experiment="routing")
    data = over_seeds(
        shown.with_columns(place.alias("stored_in")),
        "stored_in",
        "hidden",
        "heads",
        "quantity",
        share=True,
    )
    accuracies = {"before": "accuracy", "after": "bypassed_accuracy"}
    places = {
        where: {
            key: extent(rows.filter(quantity=name)["value"]) for key, name in accuracies.items()
        }
        for place, where in (("heads", "heads"), ("mlp", "MLP"))
        if (rows := data.filter(stored_in=place)).height
    }
    yield Plot("routing", data, draw_routing, {"places": places}, section=ATTENTION_ONLY_TITLE)


def draw_routing(data: pl.DataFrame) -> Figure:
    """Two bars per model."""
    figure, (axes,) = style.panels(1, height=2.8)
    places = data["stored_in"].unique(maintain_order=True).to_list()
    looks: Mapping[str, tuple[str, int, dict[str, Any]]] = {
        "accuracy": ("baseline", 0, {}),
        "bypassed_accuracy": ("attention bypassed", 1, {"hatch": "////"}),
    }
    for i, (quantity, (label, index, look)) in enumerate(looks.items()):
        rows = data.filter(quantity=quantity)
        x = np.array([places.index(each) for each in rows["stored_in"]]) + 0.38 * (i - 0.5)
        axes.bar(
            x,
            style.finite(rows["value"]),
            width=0.36,
            yerr=style.reach(rows, "value", "low", "high"),
            color=style.category(index)[0],
            edgecolor=colours.INK,
            linewidth=0.6,
            ecolor=colours.INK,
            error_kw={"elinewidth": 0.9, "capsize": 2},
            label=label,
            **look,
        )
        if quantity == "bypassed_accuracy":
            for at, most in zip(x, style.finite(rows["bound"]), strict=True):
                axes.plot(
                    [at - 0.22, at + 0.22],
                    [most, most],
                    color=colours.INK,
                    linewidth=1.6,
                    label="best accuracy from one token",
                )
    axes.set_xticks(range(len(places)), [STORED_IN[place] for place in places])
    axes.tick_params(axis="x", length=0)
    style.percent_axis(axes.yaxis)
    axes.set_ylim(0, 1.08)
    axes.set_ylabel("accuracy")
    style.legend(figure)
    return figure


def _line(
    axes: Axes,
    rows: pl.DataFrame,
    x: str,
    index: int,
    label: str,
    *,
    value: str = "value",
    band: bool = True,
) -> None:
    colour, marker, dash = style.category(index)
    at = rows[x].to_numpy()
    if band:
        low, high = style.finite(rows["low"]), style.finite(rows["high"])
        axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
    look: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": dash}
    axes.plot(at, style.finite(rows[value]), **look, label=label)


def _reference(axes: Axes, x: pl.Series, y: Any, label: str) -> None:
    if len(x):
        axes.plot(x, y, color=colours.INK, linestyle=(0, (6, 3)), linewidth=1, label=label)


def _whole_ticks(axes: Axes, values: pl.Series) -> None:
    """Ticks only at the widths in the data; a logarithmic axis would add others between them."""
    axes.xaxis.set_major_locator(FixedLocator(values.to_list()))
    axes.xaxis.set_minor_locator(NullLocator())
