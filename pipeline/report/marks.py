"""The meaning of each mark of a figure: the text of its tooltip, and its bypassed block.

`style.marks` records the places while a figure is drawn; nothing is parsed from a finished drawing.
The page holds them once, as JSON, and its script draws tooltips and the chosen block's rings from
them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from markupsafe import Markup

from pipeline.analysis.text import percent, visible
from pipeline.interventions.interventions import IDENTITY
from pipeline.report.numbers import SHARE, Number, estimate

_DRAWN = ("kept", "drop", "gap", "value")
"""The columns that hold a drawn number; a figure with such data draws one of them."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Told:
    """A mark and its tooltip.

    Args:
        place: x and y of its centre, and of a bar its width and height, in the drawing's units.
        block: the bypassed block, which may be chosen on the page; None if it is not one block.
        what: the label of a mark that is not of one block: ``quartile-1``, ``4 copies``.
        model: its name.
        measure: what is measured.
        level: the number with its interval.
        edit: what was done to the block.
    """

    place: Sequence[float]
    block: int | None
    what: str
    model: str
    measure: str
    level: str
    edit: str = IDENTITY


def told(marks: Iterable[Sequence[float]], data: pl.DataFrame) -> list[Told]:
    """The marks of a figure, as `style.marks` gives them, with their tooltips."""
    rows = data.rows(named=True)
    if not set(_DRAWN) & set(data.columns):  # several numbers of a row are drawn
        return []
    return [_told(place, rows[int(row)]) for row, *place in marks if "model" in rows[int(row)]]


def as_json(marks: Sequence[Told]) -> Markup:
    """The marks as JSON that is safe inside a script element.

    An object with ``models``, ``edits``, ``measures`` and ``marks``. Each mark lists the indices of
    its model, edit and measure, its block or other label, the level, and the place.
    """
    models, edits, measures = (
        list(dict.fromkeys(getattr(mark, name) for mark in marks))
        for name in ("model", "edit", "measure")
    )
    return embedded(
        {
            "models": models,
            "edits": edits,
            "measures": measures,
            "marks": [
                [
                    models.index(mark.model),
                    edits.index(mark.edit),
                    measures.index(mark.measure),
                    mark.what if mark.block is None else mark.block,
                    mark.level,
                    *(int(each) if each == int(each) else each for each in mark.place),
                ]
                for mark in marks
            ],
        }
    )


def embedded(value: object) -> Markup:
    """`value` as JSON, escaped so that no text in it can end the script element."""
    text = json.dumps(value, separators=(",", ":"))
    # JSON stays equivalent with these escaped
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(text)  # noqa: S704  escaped above


def _told(place: Sequence[float], row: Row) -> Told:
    block = row.get("block")
    what = str(row.get("intervention") or "")
    if row.get("copies") is not None:
        what = "1 copy" if row["copies"] == 1 else f"{row['copies']} copies"
    measure = str(row.get("measure") or row.get("metric") or "").replace("_", " ")
    if "drop" in row:
        measure = f"{row.get('ability')}, lost"
    if row.get("task") not in (None, "memorization"):
        measure = f"{row['task']}, {measure}"
    if measure.startswith("extractable"):
        measure = f"out within {row['k']:,} tries"
    elif row.get("k") is not None:
        measure = f"{measure} (k = {row['k']})"
    if row.get("split"):
        measure = f"{row['split']}, {measure}"
    drawn = next((row[column] for column in _DRAWN if column in row), None)
    unit = SHARE if "value" not in row or _is_share(row) else ""
    level = estimate(Number("", drawn, row.get("low"), row.get("high"), unit))
    if row.get("memorized") is not None:
        level += f"; exact match {percent(row['memorized'])}"
    edit = str(row.get("edit") or IDENTITY)
    names = visible(what or edit), visible(str(row["model"])), visible(measure)
    return Told(place, block, *names, level, edit)


def _is_share(row: Row) -> bool:
    metric = str(row.get("metric"))
    return not any(part in metric for part in ("perplexity", "entropy", "log_prob", "bits", "byte"))
