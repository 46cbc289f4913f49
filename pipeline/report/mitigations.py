"""The page of mitigations: what each method removes and costs, and whether it lasts."""

from pathlib import Path
from typing import Any

import polars as pl
from matplotlib import rc_context
from matplotlib.figure import Figure

from pipeline.analysis.mitigations import TABLES
from pipeline.mitigations.schema import CONTROLS, PANELS, REMOVED
from pipeline.report import style
from pipeline.report.colours import CATEGORIES, GREY, INK, MUTED
from pipeline.report.markup import template
from pipeline.workflow import tables
from pipeline.workflow.files import write_text

LINEAR = 0.01
COST_TICKS = (-1, -0.1, 0, 0.01, 0.1, 1, 10)
"""Nats around 0 that the axes of cost show on a linear scale, and their ticks."""


def write_page(study: str, data: Path, path: Path) -> None:
    """Write ``mitigations.html`` from the three tables of mitigations in a study's folder.

    Raises:
        InputError: a table is missing or does not fit its schema.
    """
    found, probes, judged = (
        tables.read(data / f"{name}.parquet", schema) for name, (_, schema) in TABLES.items()
    )
    chosen = found.filter("chosen")
    with rc_context(style.RC):
        figures = {"frontier": frontier(found), "prices": prices(found)}
    html = template("mitigations.html.jinja").render(
        **{name: style.as_svg(figure, name) for name, figure in figures.items()},
        study=study,
        title="Forgotten, or only hidden?",
        methods=chosen["method"].unique(maintain_order=True).to_list(),
        tasks=chosen.filter(metric="acc_change")["split"].unique(maintain_order=True).to_list(),
        removed=REMOVED,
        found={(r["method"], r["split"], r["metric"]): r for r in chosen.iter_rows(named=True)},
        probed={
            (row["method"], f"{row['probe']} {row['variant'] or format(row['x'], 'g')}"): row
            for row in probes.iter_rows(named=True)
        },
        claims=judged.to_dicts(),
    )
    write_text(path, html)


def frontier(found: pl.DataFrame) -> Figure:
    """Recitation kept against the change of the loss on unseen text, a curve a method."""
    recited = found.filter(split="forget_held_out", metric="kept")
    free = recited.filter(method="none").with_columns(value=0.0, low=0.0, high=0.0)
    cost = pl.concat([found.filter(split="text", metric="loss_change"), free])
    both = recited.join(cost, on=["method", "dose"], suffix="_cost").sort("dose")
    measured = {*both["method"]}
    shown = {title: of for title, of in PANELS.items() if measured & {*of}} or PANELS
    figure, axes = style.panels(len(shown), height=2.6)
    for ax, (title, methods) in zip(axes, shown.items(), strict=True):
        ax.set_title(title)
        looks = [(control, GREY, "o") for control in CONTROLS]
        looks += zip(methods, CATEGORIES, style.MARKERS, strict=False)
        for method, colour, marker in looks:
            if len(points := both.filter(method=method)):
                up = style.reach(points, "value", "low", "high")
                across = style.reach(points, "value_cost", "low_cost", "high_cost")
                look: Any = {"fmt": f"{marker}-", "color": colour, "elinewidth": 0.6}
                where = points["value_cost"], points["value"]
                ax.errorbar(*where, up, across, **look, label=method)
        for method, marker in (("twin", "*"), ("oracle", "P"), ("none", "x")):
            points = both.filter(method=method)["value_cost", "value"]
            ax.plot(*points, marker, color=INK, label=method, markersize=8)
        _cost_axis(ax.xaxis)
        ax.set_ylim(-0.03, 1.03)
        ax.legend(fontsize=7, loc="upper right")
    figure.supxlabel("change of the loss on unseen text, nats a token")
    figure.supylabel("held-out records recited still")
    return figure


def prices(found: pl.DataFrame) -> Figure:
    """Predicted against measured change of loss, a point for each method and dose."""
    figure, [ax] = style.panels(1, height=3.4)
    measured, predicted = (found.filter(split="text", metric=m) for m in ("loss_change", "price"))
    both = measured.join(predicted, on=["method", "dose"], suffix="_predicted")
    for i, (method, points) in enumerate(both.group_by("method", maintain_order=True)):
        colour, marker = CATEGORIES[i % len(CATEGORIES)], style.MARKERS[i // len(CATEGORIES)]
        ax.plot(*points["value", "value_predicted"], marker, color=colour, label=str(method[0]))
    ends: Any = both["value"].drop_nulls().sort().gather([0, -1]) if both.height else []
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
