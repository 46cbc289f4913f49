"""The page of mitigations: what each method removes and costs, and whether it lasts."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from pipeline.analysis.mitigations import TABLES
from pipeline.mitigations.schema import CONTROLS, PANELS, REMOVED
from pipeline.report import style
from pipeline.report.appendices import shared
from pipeline.report.colours import CATEGORIES, GREY, INK, MUTED
from pipeline.report.markup import template
from pipeline.report.numbers import SHARE, Number
from pipeline.workflow import tables
from pipeline.workflow.files import write_text

LINEAR = 0.01
COST_TICKS = (-1, -0.1, 0, 0.01, 0.1, 1, 10)
"""Nats around 0 that the axes of cost show on a linear scale, and their ticks."""
COSTS = (
    ("forget_held_out", "kept", SHARE),
    ("keep_held_out", "kept", SHARE),
    ("keep_matched", "kept", SHARE),
    ("text", "loss_change", "difference"),
    ("control", "loss_change", "difference"),
)
"""Split, metric and unit of the columns of the table of costs."""
PROBES = {
    "edited": "edited",
    "sampling 1": "1 try",
    "sampling 100": "100 tries",
    "sampling 10000": "10,000 tries",
    "int8 8": "8 bits",
    "int4 4": "4 bits",
    "relearning area": "area of relearning",
    "prefix longer": "longer prefix",
    "prefix shorter": "shorter prefix",
    "prefix shifted": "shifted prefix",
    "prefix one token changed": "one token changed",
    "undone": "undone",
}
"""Probe with its x or variant -> heading."""
CLAIMS = {
    "A": "Deletion of the flat block, the same in the basis of the identity, and noise of the same "
    "norm cost equally much",
    "B": "A coherent step in the flat block costs a tenth of the deletion",
    "B, same kind": "It costs unseen records of the same kinds less, too",
    "order": "Deletion in the curvature's basis costs less than BalancedSubnet",
    "C": "Two Taylor orders predict the price within 10% at most doses",
    "D": "The share of activation in flat directions tells recited windows from others",
}
"""Claim -> its words."""


def write_page(study: str, data: Path, path: Path) -> None:
    """Write ``mitigations.html``.

    Args:
        study: its name.
        data: the study's folder, with the three tables of mitigations.
        path: of the page.

    Raises:
        InputError: a table is missing or does not fit its schema.
    """
    found, probes, judged = (
        tables.read(data / f"{name}.parquet", schema) for name, (_, schema) in TABLES.items()
    )
    tasks = found.filter(metric="acc_change")["split"].unique(maintain_order=True).to_list()
    groups = found.filter("chosen").group_by("method", maintain_order=True)
    chosen = {str(method): own for (method,), own in groups}
    with rc_context(style.RC):
        curves, points = drawn(frontier(found), "frontier"), drawn(prices(found), "prices")
    html = template("mitigations.html.jinja").render(
        **shared(),
        study=study,
        title="Forgotten, or only hidden?",
        frontier=curves,
        prices=points,
        costs=[_costs(method, own) for method, own in chosen.items()],
        tasks=tasks,
        accuracies=[
            [method, *(_shown(own, task, "acc_change", "points") for task in tasks)]
            for method, own in chosen.items()
            if method != "none" and tasks
        ],
        probes=list(PROBES.values()),
        durable=[_durable(method, probes.filter(method=method)) for method in chosen],
        claims=[_claim(row) for row in judged.iter_rows(named=True)],
    )
    write_text(path, html)


def frontier(found: pl.DataFrame) -> Figure:
    """Recitation kept against the change of the loss on unseen text, a curve a method."""
    recited = found.filter(split="forget_held_out", metric="kept")
    free = recited.filter(method="none").with_columns(value=0.0, low=0.0, high=0.0)
    cost = pl.concat([found.filter(split="text", metric="loss_change"), free])
    both = recited.join(cost, on=["method", "dose"], suffix="_cost").sort("dose")
    figure, axes = style.panels(len(PANELS), height=2.6)
    for ax, (title, methods) in zip(axes, PANELS.items(), strict=True):
        ax.set_title(title)
        looks = [(control, GREY, "o") for control in CONTROLS]
        looks += zip(methods, CATEGORIES, style.MARKERS, strict=False)
        for method, colour, marker in looks:
            if len(points := both.filter(method=method)):
                ax.errorbar(
                    points["value_cost"],
                    points["value"],
                    xerr=style.reach(points, "value_cost", "low_cost", "high_cost"),
                    yerr=style.reach(points, "value", "low", "high"),
                    fmt=f"{marker}-",
                    color=colour,
                    elinewidth=0.6,
                    label=method,
                )
        for method, marker in (("twin", "*"), ("oracle", "P"), ("none", "x")):
            at = both.filter(method=method).select("value_cost", "value").get_columns()
            ax.plot(*at, marker, color=INK, label=method, markersize=8)
        _cost_axis(ax.xaxis)
        ax.set_ylim(-0.03, 1.03)
        ax.legend(fontsize=7, loc="upper right")
    figure.supxlabel("change of the loss on unseen text, nats a token")
    figure.supylabel("held-out records recited still")
    return figure


def prices(found: pl.DataFrame) -> Figure:
    """Predicted against measured change of loss, a point for each method and dose."""
    figure, (ax,) = style.panels(1, height=3.4)
    measured, predicted = (
        found.filter(split="text", metric=metric) for metric in ("loss_change", "price")
    )
    both = measured.join(predicted, on=["method", "dose"], suffix="_predicted")
    for i, (method, points) in enumerate(both.group_by("method", maintain_order=True)):
        colour, marker = CATEGORIES[i % len(CATEGORIES)], style.MARKERS[i // len(CATEGORIES)]
        where = points["value"], points["value_predicted"]
        ax.plot(*where, marker, color=colour, label=str(method[0]))
    ends = [float(end(both["value"].to_numpy())) for end in (min, max)]
    ax.plot(ends, ends, color=MUTED, linewidth=0.8)
    for axis in (ax.xaxis, ax.yaxis):
        _cost_axis(axis)
    ax.set_xlabel("measured change of loss, nats a token")
    ax.set_ylabel("predicted")
    ax.legend(fontsize=6.5, ncols=2)
    return figure


def _cost_axis(axis: Any) -> None:
    """A scale that is linear around 0, with plain numbers at powers of ten."""
    set_scale = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale
    set_scale("symlog", linthresh=LINEAR)
    axis.axes.autoscale_view()
    shown = axis.get_view_interval()
    axis.set_ticks([tick for tick in COST_TICKS if shown[0] <= tick <= shown[1]])
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def drawn(figure: Figure, name: str) -> str:
    """A figure as the text of an SVG file."""
    with TemporaryDirectory(prefix="mitigations-") as folder:
        style.save(figure, Path(folder), name)
        return (Path(folder) / f"{name}.svg").read_text(encoding="utf-8")


def _estimate(name: str, row: dict[str, Any], unit: str) -> Number:
    return Number(name, row["value"], row["low"], row["high"], unit, name.partition("/")[0])


def _shown(own: pl.DataFrame, split: str, metric: str, unit: str) -> Number | str:
    """The number of a method's split and metric; empty where it was not measured."""
    for row in own.filter(split=split, metric=metric).iter_rows(named=True):
        return _estimate(f"mitigations/{row['method']}/{split}/{metric}", row, unit)
    return ""


def _costs(method: str, own: pl.DataFrame) -> list[object]:
    [seen] = own.filter(split="forget_seen", metric="kept")["value"]
    reached = method == "none" or seen <= REMOVED
    dose = Number(f"mitigations/{method}/dose", own["dose"][0], table="mitigations")
    return [method if reached else f"{method} †", dose, *(_shown(own, *each) for each in COSTS)]


def _durable(method: str, own: pl.DataFrame) -> list[object]:
    rows = {_probe(row): row for row in own.iter_rows(named=True)}
    cells: list[object] = [method, rows["all"]["verdict"]]
    for probe in PROBES:
        unit = "ratio" if probe == "relearning area" else SHARE
        name = f"durability/{method}/{probe}"
        cells.append(_estimate(name, rows[probe], unit) if probe in rows else "")
    return cells


def _probe(row: dict[str, Any]) -> str:
    """A probe with its variant, or what it took, as in `PROBES`."""
    if row["probe"] in ("edited", "undone", "all"):
        return str(row["probe"])
    return f"{row['probe']} {row['variant'] or format(row['x'], 'g')}"


def _claim(row: dict[str, Any]) -> list[object]:
    name = f"mitigation_claims/{row['claim']}/{row['contrast']}"
    value, words = _estimate(name, row, ""), f"{row['claim']}: {CLAIMS[row['claim']]}"
    bound = Number(f"{name}/bound", row["bound"], table="mitigation_claims")
    return [words, row["verdict"], row["contrast"], value, bound]
