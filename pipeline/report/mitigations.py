"""The page of mitigations: what each method removes and costs, and whether it lasts."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from ruamel.yaml import YAML

from pipeline.analysis.mitigations import CLAIMS, DURABILITY, MITIGATIONS
from pipeline.report import style
from pipeline.report.appendices import shared
from pipeline.report.colours import CATEGORIES, GREY, INK, MUTED
from pipeline.report.markup import CODE_PATH, template
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


def write_page(study: str, data: Path, path: Path) -> None:
    """Write ``mitigations.html``.

    Args:
        study: its name.
        data: the study's folder, with the three tables of mitigations.
        path: of the page.

    Raises:
        InputError: a table is missing or does not fit its schema.
    """
    found = tables.read(data / "mitigations.parquet", MITIGATIONS)
    probes = tables.read(data / "durability.parquet", DURABILITY)
    judged = tables.read(data / "mitigation_claims.parquet", CLAIMS)
    words = YAML(typ="safe").load(CODE_PATH / "mitigations.yaml")
    tasks = found.filter(pl.col("metric") == "acc_change")["split"].unique(maintain_order=True)
    with rc_context(style.RC):
        curves, points = drawn(frontier(found, words), "frontier"), drawn(prices(found), "prices")
    html = template("mitigations.html.jinja").render(
        **shared(),
        study=study,
        title="Forgotten, or only hidden?",
        frontier=curves,
        prices=points,
        costs=[_costs(found, method) for method in _methods(found)],
        tasks=tasks.to_list(),
        accuracies=[
            [method, *(_number(_chosen(found, method), t, "acc_change", "points") for t in tasks)]
            for method in _methods(found)
            if method != "none" and len(tasks)
        ],
        probes=list(PROBES.values()),
        durable=[_durable(probes, method) for method in _methods(found)],
        claims=[_claim(row, words["claims"]) for row in judged.iter_rows(named=True)],
    )
    write_text(path, html)


def frontier(found: pl.DataFrame, words: dict[str, Any]) -> Figure:
    """Recitation kept against the change of the loss on unseen text, a curve a method."""
    names = words["panels"]
    figure, axes = style.panels(len(names), height=2.6)
    for ax, (title, methods) in zip(axes, names.items(), strict=True):
        ax.set_title(title)
        for method in words["controls"]:
            _curve(ax, found, method, GREY, "o")
        for i, method in enumerate(methods):
            _curve(ax, found, method, CATEGORIES[i], style.MARKERS[i])
        for method, marker in (("twin", "*"), ("oracle", "P"), ("none", "x")):
            x, y = _points(found, method)
            ax.plot(x["value"], y["value"], marker, color=INK, label=method, markersize=8)
        ax.set_xscale("symlog", linthresh=LINEAR)
        _cost_axis(ax.xaxis)
        ax.set_ylim(-0.03, 1.03)
        ax.legend(fontsize=7, loc="upper right")
    figure.supxlabel("change of the loss on unseen text, nats a token")
    figure.supylabel("held-out records recited still")
    return figure


def prices(found: pl.DataFrame) -> Figure:
    """Predicted against measured change of loss, a point for each method and dose."""
    figure, (ax,) = style.panels(1, height=3.4)
    of_text = found.filter(pl.col("split") == "text")
    both = of_text.filter(pl.col("metric") == "loss_change").join(
        of_text.filter(pl.col("metric") == "price"), on=["method", "dose"], suffix="_predicted"
    )
    for i, (method, points) in enumerate(both.group_by("method", maintain_order=True)):
        colour, marker = CATEGORIES[i % len(CATEGORIES)], style.MARKERS[i // len(CATEGORIES)]
        where = points["value"], points["value_predicted"]
        ax.plot(*where, marker, color=colour, label=str(method[0]))
    ends = [float(end(both["value"].to_numpy())) for end in (min, max)]
    ax.plot(ends, ends, color=MUTED, linewidth=0.8)
    for axis, set_scale in ((ax.xaxis, ax.set_xscale), (ax.yaxis, ax.set_yscale)):
        set_scale("symlog", linthresh=LINEAR)
        _cost_axis(axis)
    ax.set_xlabel("measured change of loss, nats a token")
    ax.set_ylabel("predicted")
    ax.legend(fontsize=6.5, ncols=2)
    return figure


def _cost_axis(axis: Axis) -> None:
    """Plain numbers at powers of ten."""
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


def _curve(ax: Axes, found: pl.DataFrame, method: str, colour: str, marker: str) -> None:
    x, y = _points(found, method)
    if len(x):
        across, up = (
            [(t["value"] - t["low"]).to_list(), (t["high"] - t["value"]).to_list()] for t in (x, y)
        )
        ax.errorbar(
            x["value"].to_list(),
            y["value"].to_list(),
            xerr=across,
            yerr=up,
            fmt=f"{marker}-",
            color=colour,
            elinewidth=0.6,
            label=method,
        )


def _points(found: pl.DataFrame, method: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Cost and recitation of each dose, ascending; the cost of no change is 0."""
    own = found.filter(pl.col("method") == method).sort("dose")
    recited = own.filter((pl.col("split") == "forget_held_out") & (pl.col("metric") == "kept"))
    cost = own.filter((pl.col("split") == "text") & (pl.col("metric") == "loss_change"))
    if method == "none":
        cost = recited.with_columns(value=pl.lit(0.0), low=pl.lit(0.0), high=pl.lit(0.0))
    return cost, recited


def _methods(found: pl.DataFrame) -> list[str]:
    return found["method"].unique(maintain_order=True).to_list()


def _chosen(found: pl.DataFrame, method: str) -> pl.DataFrame:
    return found.filter((pl.col("method") == method) & pl.col("chosen"))


def _costs(found: pl.DataFrame, method: str) -> list[object]:
    own = _chosen(found, method)
    seen = own.filter((pl.col("split") == "forget_seen") & (pl.col("metric") == "kept"))
    reached = method == "none" or (len(seen) == 1 and seen["value"][0] <= 0.1)
    dose = Number(f"mitigations/{method}/dose", own["dose"][0], table="mitigations")
    cells = [_number(own, split, metric, unit) for split, metric, unit in COSTS]
    return [method if reached else f"{method} †", dose, *cells]


def _number(own: pl.DataFrame, split: str, metric: str, unit: str) -> object:
    rows = own.filter((pl.col("split") == split) & (pl.col("metric") == metric))
    if rows.is_empty():
        return ""
    row = rows.row(0, named=True)
    name = f"mitigations/{row['method']}/{split}/{metric}"
    return Number(name, row["value"], row["low"], row["high"], unit, "mitigations")


def _durable(probes: pl.DataFrame, method: str) -> list[object]:
    own = probes.filter(pl.col("method") == method)
    rows = {_probe(row): row for row in own.iter_rows(named=True)}
    cells: list[object] = [method, rows["all"]["verdict"]]
    for probe in PROBES:
        row = rows.get(probe)
        unit = "ratio" if probe == "relearning area" else SHARE
        name = f"durability/{method}/{probe}"
        cells.append(
            Number(name, row["value"], row["low"], row["high"], unit, "durability") if row else ""
        )
    return cells


def _probe(row: dict[str, Any]) -> str:
    """A probe with its variant, or what it took, as in `PROBES`."""
    if row["probe"] in ("edited", "undone", "all"):
        return str(row["probe"])
    return f"{row['probe']} {row['variant'] or format(row['x'], 'g')}"


def _claim(row: dict[str, Any], words: dict[str, str]) -> list[object]:
    name = f"mitigation_claims/{row['claim']}/{row['contrast']}"
    value = Number(name, row["value"], row["low"], row["high"], "", "mitigation_claims")
    bound = Number(f"{name}/bound", row["bound"], table="mitigation_claims")
    return [f"{row['claim']}: {words[row['claim']]}", row["verdict"], row["contrast"], value, bound]
