"""The page of mitigations: what each method removes and costs, and whether it lasts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib import rc_context
from matplotlib.figure import Figure

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
UNITS = {"kept": SHARE, "loss_change": "difference", "acc_change": "points"}
"""Metric -> its unit."""
COSTS = (
    *[(split, "kept") for split in ("forget_held_out", "keep_held_out", "keep_matched")],
    *[(split, "loss_change") for split in ("text", "control")],
)
"""Split and metric of the columns of the table of costs."""
PROBES = {
    "edited 0": "edited",
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
    "undone 0": "undone",
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
    """Write ``mitigations.html`` from the three tables of mitigations in a study's folder.

    Raises:
        InputError: a table is missing or does not fit its schema.
    """
    found, probes, judged = (
        tables.read(data / f"{name}.parquet", schema) for name, (_, schema) in TABLES.items()
    )
    chosen = found.filter("chosen")
    tasks = chosen.filter(metric="acc_change")["split"].unique(maintain_order=True).to_list()
    shown = {}
    for row in chosen.filter(pl.col("metric").is_in(list(UNITS))).iter_rows(named=True):
        key = (row["method"], row["split"], row["metric"])
        shown[key] = _estimate("/".join(("mitigations", *key)), row, UNITS[row["metric"]])
    with rc_context(style.RC):
        figures = {"frontier": frontier(found), "prices": prices(found)}
    html = template("mitigations.html.jinja").render(
        **shared(),
        **{name: style.as_svg(figure, name) for name, figure in figures.items()},
        study=study,
        title="Forgotten, or only hidden?",
        costs=[
            [*_dose(row), *(shown.get((row["method"], *each), "") for each in COSTS)]
            for row in chosen.filter(split="forget_seen", metric="kept").iter_rows(named=True)
        ],
        tasks=tasks,
        accuracies=[
            [method, *(shown.get((method, task, "acc_change"), "") for task in tasks)]
            for method in chosen["method"].unique(maintain_order=True)
            if method != "none" and tasks
        ],
        probes=list(PROBES.values()),
        durable=[
            _durable(str(method), own)
            for (method,), own in probes.group_by("method", maintain_order=True)
        ],
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
                errors = (
                    style.reach(points, "value", "low", "high"),
                    style.reach(points, "value_cost", "low_cost", "high_cost"),
                )
                where = points["value_cost"], points["value"]
                look: Any = {"fmt": f"{marker}-", "color": colour, "elinewidth": 0.6}
                ax.errorbar(*where, *errors, **look, label=method)
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
    axis.minorticks_off()
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def _estimate(name: str, row: Mapping[str, Any], unit: str) -> Number:
    return Number(name, row["value"], row["low"], row["high"], unit, name.partition("/")[0])


def _dose(row: Mapping[str, Any]) -> list[object]:
    """A method and its chosen dose; marked, if it leaves too much of what the method has seen."""
    method = row["method"]
    mark = " †" if row["value"] > REMOVED and method != "none" else ""
    return [method + mark, Number(f"mitigations/{method}/dose", row["dose"], table="mitigations")]


def _durable(method: str, own: pl.DataFrame) -> list[object]:
    rows = {
        f"{r['probe']} {r['variant'] or format(r['x'], 'g')}": r for r in own.iter_rows(named=True)
    }
    cells: list[object] = [method, rows["all 0"]["verdict"]]
    for probe in PROBES:
        unit = "ratio" if probe == "relearning area" else SHARE
        name = f"durability/{method}/{probe}"
        cells.append(_estimate(name, rows[probe], unit) if probe in rows else "")
    return cells


def _claim(row: Mapping[str, Any]) -> list[object]:
    name = f"mitigation_claims/{row['claim']}/{row['contrast']}"
    value, words = _estimate(name, row, ""), f"{row['claim']}: {CLAIMS[row['claim']]}"
    bound = Number(f"{name}/bound", row["bound"], table="mitigation_claims")
    return [words, row["verdict"], row["contrast"], value, bound]
