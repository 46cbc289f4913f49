"""What each mark of a figure stands for, found from the figure's file and its data alone.

The labelled ticks of a panel tell where a number lies in the drawing; the rows of the figure's
data are laid out by them, and each drawn mark is that of the nearest row. A mark that no row lies
at is left alone, so a figure that is drawn in another manner loses its tooltips and nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from xml.etree.ElementTree import Element

import polars as pl

from pipeline.analysis.text import MISSING, number, percent, percent_interval, visible

SVG = "{http://www.w3.org/2000/svg}"

MOST_NAMED = 4
"""Rows that one mark names; the others at the same place are counted."""

_NEAR = 0.8
"""Points of the drawing that a mark may lie beside its row."""

_NUMBER = re.compile(r"[-−]?[\d,]+(\.\d+)?(e[-+]?\d+)?%?")

_DRAWN = ("kept", "drop", "value")
"""The columns of which a figure draws one."""

_SCALES = {"of the score": "raw", "of its lead over chance": "corrected"}
"""How a title tells which of two scales its panel has -> the column ``scale``."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Scale:
    """From a number to a place in the drawing.

    Args:
        slope, intercept: of place over number, or over its logarithm.
        log: which of the two.
        places: number -> place, where neither fits and only the ticks themselves are known.
        error: how far the labels themselves lie off, in points; they are rounded.
    """

    slope: float = 0.0
    intercept: float = 0.0
    log: bool = False
    places: Mapping[float, float] | None = None
    error: float = 0.0

    def __call__(self, value: float) -> float | None:
        if self.places is not None:
            return self.places.get(value)
        if self.log:
            return self.intercept + self.slope * math.log(value) if value > 0 else None
        return self.intercept + self.slope * value


@dataclass(frozen=True)
class _Panel:
    """One panel: its title, its extent from top to bottom, its scales, its element."""

    title: str
    extent: tuple[float, float]
    x: _Scale | None
    y: _Scale | None
    element: Element


def describe(root: Element, data: pl.DataFrame) -> Iterator[tuple[Element, str]]:
    """The marks that stand for rows of the data, each with its words.

    Args:
        root: the figure's SVG, as matplotlib wrote it.
        data: the numbers drawn.
    """
    if "model" not in data.columns or not set(_DRAWN) & set(data.columns):
        return
    rows = list(data.iter_rows(named=True))
    models = list(dict.fromkeys(row["model"] for row in rows))
    for panel in _panels(root):
        own = _of_panel(panel.title, rows)
        groups = _groups(panel, models)
        if groups:
            yield from _bars(panel, own, groups)
        laid = list(_laid_out(panel, own, groups))
        if laid:
            yield from _marks(panel, laid)


def _panels(root: Element) -> list[_Panel]:
    found = []
    for axes in root.iter(f"{SVG}g"):
        if not re.fullmatch(r"axes_\d+", axes.get("id", "")):
            continue
        frame = _corners(axes.find(f"{SVG}g/{SVG}path"))
        ticks: dict[str, list[tuple[str, float]]] = {"x": [], "y": []}
        for kind in ticks:
            ticks[kind] = _ticks(axes, kind)
        titles = ["".join(g.itertext()).strip() for g in axes.iterfind(f"{SVG}g") if _is_text(g)]
        if frame:
            ys = [y for _, y in frame]
            scales = _scale(ticks["x"]), _scale(ticks["y"])
            found.append(_Panel(titles[0] if titles else "", (min(ys), max(ys)), *scales, axes))
    # panels that share a scale are labelled once a row
    return [
        panel
        if panel.y
        else replace(panel, y=next((o.y for o in found if o.y and o.extent == panel.extent), None))
        for panel in found
    ]


def _ticks(axes: Element, kind: str) -> list[tuple[str, float]]:
    """Label (empty where it has none) and place of each tick of the x or the y axis."""
    found = []
    for tick in axes.iterfind(f"{SVG}g/{SVG}g"):
        if not re.fullmatch(rf"{kind}tick_\d+", tick.get("id", "")):
            continue
        # a tick of no length has a label alone, which is centred below it
        mark = tick.find(f".//{SVG}use")
        mark = tick.find(f".//{SVG}text") if mark is None and kind == "x" else mark
        if mark is not None:
            found.append(("".join(tick.itertext()).strip(), float(mark.get(kind, "nan"))))
    return found


def _is_text(group: Element) -> bool:
    return group.get("id", "").startswith("text_")


def _corners(path: Element | None) -> list[tuple[float, float]]:
    if path is None:
        return []
    pairs = re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", path.get("d", ""))
    return [(float(x), float(y)) for x, y in pairs]


def _scale(ticks: Sequence[tuple[str, float]]) -> _Scale | None:
    """The scale through labelled ticks: linear, logarithmic, or the ticks alone."""
    known = [(_value(label), place) for label, place in ticks]
    points = [(value, place) for value, place in known if value is not None]
    if len(points) < 2:
        return None
    # only a logarithmic axis has ticks between its labels
    best = _fit(points, log=any(not label for label, _ in ticks))
    return best if best.error < 3 else _Scale(places=dict(points))


def _fit(points: Sequence[tuple[float, float]], *, log: bool) -> _Scale:
    """Least squares."""
    if log and any(value <= 0 for value, _ in points):
        return _Scale(error=math.inf)
    xs = [math.log(value) if log else value for value, _ in points]
    ys = [place for _, place in points]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    if not spread:
        return _Scale(error=math.inf)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread
    intercept = y_mean - slope * x_mean
    error = max(abs(intercept + slope * x - y) for x, y in zip(xs, ys, strict=True))
    return _Scale(slope, intercept, log, error=error)


def _value(label: str) -> float | None:
    if not _NUMBER.fullmatch(label):
        return None
    value = float(label.rstrip("%").replace(",", "").replace("−", "-"))
    return value / 100 if label.endswith("%") else value


def _of_panel(title: str, rows: Sequence[Row]) -> Sequence[Row]:
    """The rows that a panel shows: all where it has no title, else those whose name begins it.

    None where the title names none of them, so that no mark gets the words of another panel.
    """
    if not title:
        return rows
    title = "memorization" if title == "exact match, memorized" else title
    for column in ("model", "task", "family"):
        names = {visible(str(row[column])) for row in rows if row.get(column) is not None}
        begun = [name for name in names if f"{title}, ".startswith(f"{name}, ")]
        if begun:
            name = max(begun, key=len)
            scale = _SCALES.get(title[len(name) + 2 :])
            return [
                row
                for row in rows
                if visible(str(row.get(column))) == name and scale in (None, row.get("scale"))
            ]
    return []


def _drawn(row: Row) -> float | None:
    """The number of a row that is drawn."""
    found: float | None = next((row[column] for column in _DRAWN if column in row), None)
    return found


def _laid_out(
    panel: _Panel, rows: Sequence[Row], groups: Mapping[tuple[str, int | None], float]
) -> Iterator[tuple[float, float, Row]]:
    if panel.x is None or panel.y is None:
        return
    for row in rows:
        y = _drawn(row)
        if y is None or not math.isfinite(y):
            continue
        if groups:
            at_x = groups.get((row["model"], row.get("quartile")))
        else:
            across = ("memorized", "copies", "block", "k")
            values = (row[column] for column in across if row.get(column) is not None)
            x = next(values, None)
            at_x = panel.x(x) if x is not None and math.isfinite(x) else None
        at_y = panel.y(y)
        if at_x is not None and at_y is not None:
            yield at_x, at_y, row


def _marks(
    panel: _Panel, laid: Sequence[tuple[float, float, Row]]
) -> Iterator[tuple[Element, str]]:
    if panel.x is None or panel.y is None:
        return
    # rounded labels shift all rows alike, so the nearest is still the right one
    near_x, near_y = _NEAR + 2 * panel.x.error, _NEAR + 2 * panel.y.error
    for group in panel.element.iterfind(f"{SVG}g"):
        if not group.get("id", "").startswith(("line2d_", "PathCollection_")):
            continue
        for mark in group.iterfind(f"{SVG}g/{SVG}use"):
            x, y = float(mark.get("x", "nan")), float(mark.get("y", "nan"))
            close = [
                (math.hypot(x - at_x, y - at_y), row)
                for at_x, at_y, row in laid
                if abs(x - at_x) <= near_x and abs(y - at_y) <= near_y
            ]
            if close:
                best = min(distance for distance, _ in close)
                yield mark, _together([row for d, row in close if d <= best + 0.1])


def _groups(panel: _Panel, models: Sequence[str]) -> dict[tuple[str, int | None], float]:
    """(model, quartile) -> place, where the ticks are – (0), 1, 2, 3, 4 for each model in turn."""
    found: dict[tuple[str, int | None], float] = {}
    remaining = iter(models)
    model: str | None = None
    for label, x in _ticks(panel.element, "x"):
        model = next(remaining, None) if label == MISSING else model
        if model is not None and label:
            found[model, 0 if label == MISSING else int(label)] = x
    return found


def _bars(
    panel: _Panel, rows: Sequence[Row], groups: Mapping[tuple[str, int | None], float]
) -> Iterator[tuple[Element, str]]:
    for group in panel.element.iterfind(f"{SVG}g"):
        path = group.find(f"{SVG}path")
        corners = _corners(path)
        if path is None or not group.get("id", "").startswith("patch_") or len(corners) != 4:
            continue
        if "fill: none" in path.get("style", ""):
            continue
        centre = (corners[0][0] + corners[1][0]) / 2
        for row in rows:
            if abs(groups.get((row["model"], row["quartile"]), math.inf) - centre) < _NEAR:
                yield path, _words(row)


def _together(rows: Sequence[Row]) -> str:
    words = list(dict.fromkeys(_words(row) for row in rows))
    more = len(words) - MOST_NAMED
    return "\n".join([*words[:MOST_NAMED], *([f"and {more} more here"] if more > 0 else [])])


def _words(row: Row) -> str:
    """``block 7, tiny-neo-8, exact match: 62.1% [53.3, 70.2]``."""
    block = row.get("block")
    what = f"block {block}" if block is not None else str(row.get("intervention") or "")
    measure = str(row.get("measure") or row.get("metric") or "").replace("_", " ")
    if "drop" in row:
        measure = f"{row.get('ability')}, lost"
    if row.get("task") not in (None, "memorization"):
        measure = f"{row['task']}, {measure}"
    if measure.startswith("extractable"):
        measure = f"out within {row['k']:,} tries"
    elif row.get("k") is not None:
        measure = f"{measure} (k = {row['k']})"
    if row.get("copies") is not None:
        what = "1 copy" if row["copies"] == 1 else f"{row['copies']} copies"
    parts = [what, str(row["model"]), *([str(row["split"])] if row.get("split") else []), measure]
    share = "value" not in row or _is_share(row)
    level = percent_interval if share else _interval
    words = f"{', '.join(part for part in parts if part)}: "
    words += level(_drawn(row), row.get("low"), row.get("high"))
    if row.get("memorized") is not None:
        words += f"; exact match {percent(row['memorized'])}"
    return words


def _is_share(row: Row) -> bool:
    metric = str(row.get("metric"))
    return not any(part in metric for part in ("perplexity", "entropy", "log_prob", "bits", "byte"))


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return number(value)
    return f"{number(value)} [{number(low)}, {number(high)}]"
