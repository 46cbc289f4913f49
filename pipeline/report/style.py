"""The one style of every figure: type, markers, panels, curves, files.

Categories differ by colour and by marker or dash, blocks by their depth's colour. Block 0 is always
hollow: the paper warns that its bypass sometimes looks spuriously good.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PathCollection
from matplotlib.colorbar import Colorbar
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import (
    FuncFormatter,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
)
from numpy.typing import NDArray

from pipeline.analysis.text import number, visible
from pipeline.report.colours import CATEGORIES, INK, MUTED, PAPER, RULE

MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))

ROW = "row"
"""The column with the row number, from 0, of a figure's data; `tell` reads it."""

Mark = list[float]
"""Row of the data; x, y of the centre in points, from the top left; a bar's width and height."""

BRIGHT = 0.5
"""Luminance of a cell above which its number is black."""

WIDTH = 9.3
"""Inches of every figure; text of 9 points is then as large as the page's small print."""

LEGEND = 4.4
"""Inches that a legend may take: a phone shows this much of a figure before it is scrolled."""

RC: Any = {
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "figure.facecolor": "none",
    "figure.labelsize": 9,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",  # keep text as text, to be read aloud, searched and recoloured
    "text.color": INK,
    "text.parse_math": False,  # names come from data and may hold dollar signs
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 8,
}


# without dates and versions, so that the same figure gives the same bytes
_SVG_METADATA = {"Date": None, "Creator": None}
_PDF_METADATA = {"CreationDate": None, "Producer": None}
_PNG_METADATA = {"Software": None}


def panels(
    count: int, *, height: float = 2.05, share_y: bool = True, columns: int | None = None
) -> tuple[Figure, Sequence[Axes]]:
    """A figure of `count` panels, at least 1, in rows, each with its own x axis.

    A panel has this height, inches; `share_y` gives all one scale. Without `columns`, at most three
    are in a row.
    """
    columns = columns or {1: 1, 2: 2, 4: 2}.get(count, 3)
    rows = math.ceil(count / columns)
    width = 5.6 if count == 1 else WIDTH
    figure = Figure(figsize=(width, rows * height + 0.75), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    axes = list(grid.ravel())
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


FIRST_BLOCK = pl.col("block") == 0


def facets(
    data: pl.DataFrame,
    draw: Callable[[Axes, pl.DataFrame], None],
    panel: str = "model",
    *,
    labels: tuple[str, str] = ("", ""),
    order: Sequence[str] | None = None,
    scale_y: Callable[[Any], None] | None = None,
    bounds: tuple[float, float] | None = None,
    ticks: Mapping[float, str] | None = None,
    level: float | None = None,
    key: str = "",
    **layout: Any,
) -> Figure:
    """A figure with one panel for each value of a column.

    Args:
        data: every number that is drawn.
        draw: draws the rows of one panel, such as `lines`.
        panel: column; a panel for each value, which is its title.
        labels: of the horizontal and of the vertical axes.
        order: the values of `panel`; None: as they come.
        scale_y: formats the vertical axis of each panel, such as `percent_axis`.
        bounds: of the vertical axis, as for `bound`.
        ticks: place on the horizontal axis -> its label.
        level: where a horizontal line is drawn.
        key: where each panel has its own legend; empty: one legend above all panels.
        **layout: height, share_y and columns, as for `panels`.
    """
    names = order or data[panel].unique(maintain_order=True).to_list()
    figure, grid = panels(len(names), **layout)
    for axes, name in zip(grid, names, strict=True):
        axes.set_title(visible(name))
        if level is not None:
            axes.axhline(level, color=MUTED, linewidth=0.8)
        draw(axes, data.filter(pl.col(panel) == name))
        if ticks is not None:
            axes.set_xticks(list(ticks), list(ticks.values()))
        if scale_y is not None:
            scale_y(axes.yaxis)
        if key:
            axes.legend(loc=key)  # type: ignore[call-overload]
    if bounds is not None:
        bound(grid[0], *bounds)
    figure.supxlabel(labels[0])
    figure.supylabel(labels[1])
    if not key:
        legend(figure)
    return figure


def lines(
    axes: Axes,
    rows: pl.DataFrame,
    *,
    line: str = "model",
    x: str = "block",
    y: str = "value",
    looks: Mapping[str, int] | Sequence[str] = (),
    hollow: pl.Expr | None = FIRST_BLOCK,
) -> None:
    """Lines with their intervals as bands.

    The columns `line` (a line for each value, which is its label), `x`, `y`, low and high of the
    rows are drawn. Rows without an `x` are of the unmodified model: a dashed line in the colour of
    its curve. The column ``chance``, where there is one, is dotted. `looks` are the index of the
    colour, marker and dash of each line, in the order drawn, or the lines in the order of these;
    empty: as they come. `hollow` selects the points that are drawn hollow.
    """
    names = looks or rows[line].unique(maintain_order=True).to_list()
    ordered = names if isinstance(names, Mapping) else {name: i for i, name in enumerate(names)}
    for label, index in ordered.items():
        points = rows.filter(pl.col(line) == label).sort(x, maintain_order=True)
        if not points.height:
            continue
        known, unmodified = points.drop_nulls(x), points.filter(pl.col(x).is_null())
        colour, marker, dash = category(index)
        at, heights = known[x].to_numpy(), finite(known[y])
        low, high = finite(known["low"]), finite(known["high"])
        axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
        look: Any = {"color": colour, "marker": marker, "markersize": 4.5 if len(at) <= 16 else 3}
        tell(axes.plot(at, heights, **look, linestyle=dash, label=visible(label)), known)
        if hollow is not None:
            open_points = known.select(hollow).to_series().to_numpy()
            look |= {"linestyle": "none", "markerfacecolor": PAPER, "zorder": 4}
            axes.plot(at[open_points], heights[open_points], **look)
        for whole in unmodified[y].head(1).drop_nulls():
            axes.axhline(whole, color=colour, linestyle=(0, (6, 3)), linewidth=1)
    for chance in rows["chance"].drop_nulls().unique() if "chance" in rows.columns else ():
        axes.axhline(chance, color=INK, linestyle=":", linewidth=1)
    if x == "block":
        blocks_axis(axes)


def cells(
    axes: Axes, rows: pl.DataFrame, x: str, y: str, shades: NDArray[np.float64], **look: Any
) -> None:
    """A map: one cell for each row, at the whole numbers of the columns `x` and `y`."""
    at = rows.select(pl.col(x, y).cast(pl.Float64))
    boxes = axes.bar(at[x], 1.0, 1.0, at[y] - 0.5, color=shades, **look)
    tell(boxes.patches, rows)
    axes.margins(0)
    axes.grid(visible=False)


def percent_on(axes: Axes, cell: Mapping[str, Any], value: float, shade: Any, **look: Any) -> None:
    """Write a share, in percent, on a cell at x and y, in black or white as its colour demands."""
    bright = shade[:3] @ (0.299, 0.587, 0.114) > BRIGHT
    look = {"color": "#000000" if bright else "#ffffff", "ha": "center", "va": "center"} | look
    axes.text(cell["x"], cell["y"], f"{100 * value:.0f}", **look)


def tell(artists: Sequence[Artist], rows: pl.DataFrame) -> None:
    """Record which rows of the figure's data the marks of a line or of points show.

    The artists are one line or set of points, or as many bars as rows. There is a row for each
    mark, in the order drawn. Without the column `ROW` nothing is recorded.
    """
    if ROW not in rows.columns:
        return
    numbers = [str(row) for row in rows[ROW]]
    for artist, own in zip(
        artists, [numbers] if len(artists) == 1 else [[n] for n in numbers], strict=True
    ):
        artist.set_gid("-".join(["rows", *own]))


def marks(figure: Figure) -> list[Mark]:
    """Places of the marks that `tell` recorded and that lie inside their panel, after layout."""
    scale = 72 / figure.dpi
    height = figure.get_size_inches()[1] * 72
    found = []
    for axes in figure.axes:
        panel = axes.get_window_extent().padded(1)
        for artist in axes.findobj(lambda each: str(each.get_gid()).startswith("rows-")):
            rows = str(artist.get_gid()).split("-")[1:]
            for row, (x, y, *size) in zip(rows, _places(artist), strict=True):
                if size or panel.contains(x, y):
                    place = (x * scale, height - y * scale, *(each * scale for each in size))
                    found.append([int(row), *(round(each, 1) for each in place)])
    return found


def _places(artist: Artist) -> Iterator[tuple[float, ...]]:
    if isinstance(artist, Rectangle):
        box = artist.get_window_extent()
        yield (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2, box.width, box.height
    elif isinstance(artist, PathCollection):
        yield from artist.get_offset_transform().transform(artist.get_offsets())
    elif isinstance(artist, Line2D):
        yield from artist.get_transform().transform(artist.get_xydata())


def category(index: int) -> tuple[str, str, Any]:
    """Colour, marker and dash of a category; they repeat from the seventh on."""
    return tuple(each[index % len(each)] for each in (CATEGORIES, MARKERS, DASHES))  # type: ignore[return-value]


def finite(column: pl.Series) -> NDArray[np.float64]:
    """The column as floats, NaN (which is not drawn) where it is null or infinite."""
    values = column.cast(pl.Float64).fill_null(float("nan")).to_numpy().copy()
    values[~np.isfinite(values)] = np.nan
    return values


def blocks_axis(axes: Axes) -> None:
    """Ticks at whole blocks."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, steps=[1, 2, 4, 5, 10]))


def percent_axis(axis: Any) -> None:
    """Shares written as percentages."""
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def whole_percent_axis(axis: Any) -> None:
    """Percentages from 0 to 100%."""
    percent_axis(axis)
    (axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim)(-0.04, 1.04)


def bound(axes: Axes, lowest: float, highest: float) -> None:
    """Limit the y axis after all panels that share it are drawn; triangles mark what lies beyond.

    Setting limits ends their automatic choice, so that a panel drawn later might be cut as well.
    """
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, lowest), min(high, highest))
    low, high = axes.get_ylim()
    fills: Any  # colours, one or one for each point
    for panel in axes.get_shared_y_axes().get_siblings(axes):
        for artist in [*panel.lines, *panel.collections]:
            if isinstance(artist, Line2D) and artist.get_marker() != "None":
                places, fills = artist.get_xydata(), [artist.get_color()]
            elif isinstance(artist, PathCollection):
                places, fills = artist.get_offsets(), artist.get_facecolor()
            else:
                continue
            rows = str(artist.get_gid()).split("-")[1:]
            for i, (x, y) in enumerate(np.asarray(places, float)):
                if y < low or y > high:
                    edge, shape = (low, "v") if y < low else (high, "^")
                    look: Any = {"marker": shape, "color": fills[i % len(fills)], "clip_on": False}
                    [mark] = panel.plot([x], [edge], **look)
                    mark.set_gid(f"rows-{rows[i]}" if rows else None)


def log_axis(axis: Any) -> None:
    """A logarithmic scale with plain numbers."""
    (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    low, high = axis.get_view_interval()
    if high / low < 5:  # between two powers of ten, and maybe beside 2 and 5: round numbers then
        axis.set_major_locator(MaxNLocator(nbins=4))
        axis.set_minor_locator(NullLocator())
    elif high / low < 30:  # under one and a half decades powers of ten alone are too few labels
        axis.set_minor_formatter(FuncFormatter(_two_and_five))
        axis.set_tick_params(which="minor", labelsize=mpl.rcParams["ytick.labelsize"])
    else:
        axis.set_minor_formatter(NullFormatter())


def legend(figure: Figure) -> None:
    """One legend above all panels, each label once, in as many columns as a phone shows."""
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    for columns in range(len(handles), 0, -1):
        drawn = figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside upper left",
            ncols=columns,
            handlelength=2.6,
            columnspacing=1.1,
        )
        if columns == 1 or drawn.get_window_extent().width <= LEGEND * figure.dpi:
            break
        drawn.remove()


def depth(count: int) -> ListedColormap:
    """A colour for each of `count` blocks, dark to light from the input to the output."""
    return ListedColormap(mpl.colormaps["viridis"](np.linspace(0.05, 0.95, count)))


def depth_bar(figure: Figure, grid: Sequence[Axes], colours: ListedColormap) -> None:
    """Draw a scale beside the panels that shows which colour is which block."""
    norm = BoundaryNorm(np.arange(colours.N + 1) - 0.5, colours.N)
    bar = scale(figure, grid, norm, colours, "bypassed block")
    step = max(1, -(-colours.N // 12))
    bar.set_ticks(range(0, colours.N, step))
    bar.ax.minorticks_off()


def scale(
    figure: Figure, grid: Sequence[Axes], norm: Normalize, colours: Colormap, label: str
) -> Colorbar:
    """Draw a scale beside the panels that shows which colour is which number."""
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=grid, aspect=40, pad=0.01, label=label)
    bar.ax.grid(False)
    bar.outline.set_visible(False)
    return bar


def reach(rows: pl.DataFrame, value: str, low: str, high: str) -> NDArray[np.float64]:
    """(2, rows): how far the interval reaches below and above; NaN, not drawn, without one."""
    centre = finite(rows[value])
    return np.stack([centre - finite(rows[low]), finite(rows[high]) - centre])


def save(figure: Figure, folder: Path, name: str) -> list[Mark]:
    """Write ``name.svg``, ``name.png`` (300 dpi) and ``name.pdf``, byte for byte reproducible.

    The figure is not to be used afterwards.

    Returns:
        As `marks` gives them.
    """
    with mpl.rc_context({**RC, "svg.hashsalt": name}), warnings.catch_warnings():
        # a model may be named in a script that the font lacks: boxes in the PNG, text in the SVG
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        # Each file from its own canvas: `savefig` would lay out and draw every one of them twice.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        found = marks(figure)
        FigureCanvasSVG(figure).print_svg(folder / f"{name}.svg", metadata=_SVG_METADATA)  # type: ignore[no-untyped-call]
        figure.set_facecolor(PAPER)
        FigureCanvasPdf(figure).print_pdf(folder / f"{name}.pdf", metadata=_PDF_METADATA)  # type: ignore[no-untyped-call]
        figure.dpi = 300
        FigureCanvasAgg(figure).print_png(folder / f"{name}.png", metadata=_PNG_METADATA)  # type: ignore[no-untyped-call]
    return found


def as_svg(figure: Figure, name: str) -> str:
    """The text of the SVG file that `save` writes."""
    with TemporaryDirectory() as folder:
        save(figure, Path(folder), name)
        return Path(folder, f"{name}.svg").read_text(encoding="utf-8")


def _two_and_five(value: float, _: int | None) -> str:
    leading = f"{value:e}"[0]
    return number(value) if leading in "25" else ""
