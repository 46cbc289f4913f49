"""The change that a bypass makes inside a model, the theorems' bounds on it, and its cost.

Source: Theorems 1 and 2 of arXiv 2501.05078, which prints no such figures.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from pipeline.analysis import link
from pipeline.analysis.text import visible
from pipeline.analysis.theory import THEOREMS_TITLE, Theory, per_block
from pipeline.report import colours, style
from pipeline.report.plots.plot import BLOCKS_LABEL, Plot, count, extent, later_blocks, panels

SPLITS = ("memorized", "control")

_SHORT = {
    "exact_match": ("exact match", 0, "●"),
    "benchmarks": ("benchmarks, mean lead over chance", 2, "▲"),
}
"""Loss -> label, index of its colour and marker, and that marker as a character."""

_LINES = (
    ("printed", "bound as printed", 1),
    ("coarse", "bound of norms and spread", 3),
    ("corrected", "corrected bound", 2),
    ("change", "measured change, median and quartiles", 0),
)


def triangles(theory: Theory) -> Iterator[Plot]:
    """Relative change by bypassed block and by the block after which it is measured."""
    if not theory.triangle.height:
        return
    data = theory.triangle.filter(pl.col("split").is_in(SPLITS))
    rows = later_blocks(data.filter(split="memorized"))
    values = {
        "after": extent(rows.filter(pl.col("after") == pl.col("block"))["relative"]),
        "logits": extent(rows.filter(pl.col("after") == pl.col("n_blocks"))["relative"]),
        "models": panels(data),
        "relative": extent(data["relative"], unit=""),
    }
    yield Plot("divergence-triangle", data, draw_triangles, values, section=THEOREMS_TITLE)


def draw_triangles(data: pl.DataFrame) -> Figure:
    """One panel per model and split; bypassed block by rows, block of measurement by columns."""
    data = data.with_columns(panel=pl.format("{}\n{}", "model", "split"))
    count = data["panel"].n_unique()
    positive = data.filter(pl.col("relative") > 0)["relative"]
    low, high = (float(positive.min()), float(positive.max())) if len(positive) else (0.1, 1.0)  # type: ignore[arg-type]
    norm = LogNorm(low, high if high > low else 2 * low)
    labels = "block after which the change is measured", "bypassed block"
    look: Any = {"height": 2.3, "columns": 4 if count > 2 else count, "share_y": False}
    figure = style.facets(data, partial(_triangle, norm=norm), "panel", labels=labels, **look)
    label = "change / length without a bypass"
    bar = style.scale(figure, figure.axes, norm, colormaps["viridis"], label)
    style.log_axis(bar.ax.yaxis)
    return figure


def _triangle(axes: Axes, rows: pl.DataFrame, norm: LogNorm) -> None:
    n_blocks = int(rows["n_blocks"][0])
    cells = np.full((n_blocks, n_blocks + 1), np.nan)
    cells[rows["block"].to_numpy(), rows["after"].to_numpy()] = style.finite(rows["relative"])
    edges = np.arange(n_blocks + 1) - 0.5
    apart = max(1.0, n_blocks / 8)
    look: dict[str, Any] = {"norm": norm, "cmap": "viridis", "edgecolors": "face", "linewidth": 0.1}
    shown = np.ma.masked_invalid(cells)
    # draws only existing cells: an empty cell would still add a path without colour to the file
    for block in range(n_blocks):
        side = edges[block : block + 2]
        axes.pcolormesh(edges[block:], side, shown[block : block + 1, block:-1], **look)
    logits = n_blocks + apart + np.array([-1, 1]) * apart / 2
    axes.pcolormesh(logits, edges, shown[:, -1:], **look)
    axes.set_ylim(n_blocks - 0.5, -0.5)
    axes.grid(False)
    step = max(1, -(-n_blocks // 5))
    ticks = [*range(0, n_blocks - step // 2, step)]
    axes.set_xticks([*ticks, float(logits.mean())], [*map(str, ticks), "logits"])
    axes.set_yticks(ticks)


def bounded(theory: Theory) -> Iterator[Plot]:
    """Measured change against the bounds, block by block; one figure per theorem."""
    for theorem, what, title in (
        (1, "right after the bypassed block", "Theorem 1: right after the bypassed block"),
        (2, "one block after the bypassed one", "Theorem 2: one block later"),
    ):
        data = per_block(theory.bounds, theorem)
        if not data.height:
            continue
        sums = pl.sum("printed_violated", "corrected_violated", "n")
        printed, corrected, n = data.select(sums).row(0)
        values = {
            "theorem": str(theorem),
            "n": count(n),
            "printed": count(printed),
            "corrected": count(corrected),
            "exceeded": printed + corrected > 0,
            "where": what,
            "panels": panels(data),
            "change": extent(data["change"], unit=""),
            "printed_bound": extent(data["printed"], unit=""),
            "corrected_bound": extent(data["corrected"], unit=""),
        }
        name = f"theorem-{theorem}"
        yield Plot(name, data, draw_bounded, values, "theorem", title, THEOREMS_TITLE)


def draw_bounded(data: pl.DataFrame) -> Figure:
    """Change and bounds by block; one panel per model."""
    labels = BLOCKS_LABEL, "change of the last token, length"
    figure = style.facets(data.sort("block", maintain_order=True), _bounded, labels=labels)
    style.log_axis(figure.axes[0].yaxis)
    for axes in figure.axes[1:]:
        axes.yaxis.set_minor_formatter(NullFormatter())
    return figure


def _bounded(axes: Axes, rows: pl.DataFrame) -> None:
    for column, label, index in _LINES:
        band = rows if column == "change" else rows.with_columns(low=None, high=None)
        band = band.with_columns(line=pl.lit(label))
        style.lines(axes, band, line="line", y=column, looks={label: index})
    for bound in ("printed", "corrected"):
        over = rows.filter(pl.col(f"{bound}_violated") > 0)
        exceeded = "exceeded by a sample" if over.height else None
        look: Any = {"marker": "x", "s": 60, "color": colours.INK, "zorder": 5}
        axes.scatter(over["block"], style.finite(over[bound]), label=exceeded, **look)


def damage(paired: pl.DataFrame) -> Iterator[Plot]:
    """Loss against change, one point per bypassed block."""
    if not paired.height:
        return
    data = paired.filter(
        pl.col("quantity").is_in(["printed", "logits"]), pl.col("measure").is_in(list(_SHORT))
    )
    ranks = link.correlations(data).filter(measure="exact_match")
    logits, printed = (ranks.filter(quantity=name) for name in ("logits", "printed"))
    values = {
        "logits": extent(logits["value"], "correlation"),
        "printed": extent(printed["value"], "correlation"),
        "beyond": extent(logits["beyond"], "correlation"),
        "panels": panels(data),
    }
    yield Plot("damage", data, draw_damage, values, section=THEOREMS_TITLE)


def draw_damage(data: pl.DataFrame) -> Figure:
    """Loss by change of the logits, and by the bound; one column per model, at most three."""
    names = data["model"].unique(maintain_order=True).to_list()
    columns = min(len(names), 4 if len(names) == 4 else 3)
    places = list[tuple[str, str] | None]()
    for i in range(0, len(names), columns):
        row = names[i : i + columns]
        for quantity in _ROWS:
            places += [(name, quantity) for name in row] + [None] * (columns - len(row))
    figure, grid = style.panels(len(places), height=2.1, columns=columns)
    found = link.correlations(data)
    for axes, place in zip(grid, places, strict=True):
        if place is None:  # the last row has fewer models
            axes.remove()
            continue
        name, quantity = place
        part = data.filter(model=name, quantity=quantity)
        _points(axes, part, found.filter(model=name, quantity=quantity))
        axes.set_title(f"{visible(name)}\n")
        axes.set_xlabel(_ROWS[quantity])
        style.percent_axis(axes.yaxis)
    style.bound(grid[0], -0.35, 1.35)
    figure.supylabel("lost of the baseline")
    style.legend(figure)
    return figure


_ROWS = {"logits": "change of the logits, relative", "printed": "bound as printed"}


def _points(axes: Axes, rows: pl.DataFrame, found: pl.DataFrame) -> None:
    for measure, (label, index, sign) in _SHORT.items():
        part = rows.filter(measure=measure).sort("block")
        if not part.height:
            continue
        colour, marker, _ = style.category(index)
        x, y = style.finite(part["mean"]), style.finite(part["lost"])
        axes.errorbar(
            x,
            y,
            np.abs(style.reach(part, "lost", "lost_low", "lost_high")),
            style.reach(part, "mean", "low", "high"),
            fmt="none",
            ecolor=colours.GREY,
            elinewidth=0.7,
            zorder=1,
        )
        first = part["block"].to_numpy() == 0
        look: dict[str, Any] = {"marker": marker, "s": 30, "edgecolors": colour, "linewidths": 1.2}
        axes.scatter(x[~first], y[~first], facecolors=colour, label=label, zorder=3, **look)
        axes.scatter(x[first], y[first], facecolors=colours.PAPER, zorder=4, **look)
        for value in found.filter(measure=measure)["value"]:
            axes.annotate(
                f"{sign} ρ = {value:.2f}".replace("-", "−"),
                (0, 1),
                xytext=(0 if index == 0 else 62, 5),
                xycoords="axes fraction",
                textcoords="offset points",
                fontsize=8,
                color=colour,
            )
    if rows.height and (rows["mean"] > 0).all():
        style.log_axis(axes.xaxis)
        # the labels of shorter ticks in line with those of longer ones
        axes.tick_params(axis="x", which="minor", pad=5)
