"""Draws a claim as strips: one mark per block, its interval, and the zone that counts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeline.analysis.findings import Finding
from pipeline.analysis.text import visible
from pipeline.analysis.verdicts import Condition, Judged, Verdict
from pipeline.report.marks import Told, as_json

WIDTH, NAMES = 300, 84
"""Units of a strip, and of the room for names at its left."""

ROW, ABOVE, BELOW = 11, 2, 12
"""Units of a model's row, and above and below all rows."""

LETTER = 5.8
"""Units that a letter of a label takes, at most."""

_CLASSES = {Verdict.SHOWN: "yes", Verdict.NOT_SHOWN: "no", Verdict.UNDECIDED: "open"}
_DOTS = {
    Verdict.SHOWN: "M{:.1f} {:.1f}h0",
    Verdict.NOT_SHOWN: "M{:.1f} {:.1f}h0",
    Verdict.UNDECIDED: "M{:.1f} {:.1f}m0-2.5v5",
}
"""Line ends: a line of no length is a dot (round), a square (square), or invisible (flat)."""

_ONE_BLOCK = re.compile(r"block (\d+)(, .*)?")

Cell = tuple[str, str, Condition, Judged]
"""Model or family, unit such as a block, and the judgement of it."""


@dataclass(frozen=True)
class Strip:
    """One strip.

    Args:
        label: the comparison that it shows.
        svg: the drawing.
        marks: for the script.
    """

    label: str
    svg: Markup
    marks: Markup


def strips(finding: Finding) -> list[Strip]:
    """The strips of a claim, one for each comparison."""
    by_label: dict[str, list[Cell]] = {}
    for case in finding.cases:
        for unit, condition, judged in case.cells:
            if math.isfinite(judged.value):
                by_label.setdefault(condition.label, []).append(
                    (case.name, unit, condition, judged)
                )
    return [_strip(label, cells) for label, cells in by_label.items()]


def _strip(label: str, cells: Sequence[Cell]) -> Strip:
    names = list(dict.fromkeys(name for name, *_ in cells))
    least, most = _extent([judged for *_, judged in cells])
    room = 0.08 * (most - least) or 0.1
    low, high = least - room, most + room

    def across(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low)
        return NAMES + share * (WIDTH - NAMES - 6)

    dots: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    reaches, marks = [], []
    for row, name in enumerate(names):
        own = [cell for cell in cells if cell[0] == name]
        for i, (_, unit, condition, judged) in enumerate(own):
            y = ABOVE + ROW * (row + (i + 1) / (len(own) + 1))
            x = across(judged.value)
            dots[judged.verdict].append(_DOTS[judged.verdict].format(x, y))
            if judged.estimate is not None:
                ends = (across(judged.estimate.low), across(judged.estimate.high))
                reaches.append(f"M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}")
            marks.append(_told((x, y), name, unit, condition, judged))
    bottom = ABOVE + ROW * len(names)
    # the threshold may differ from row to row
    zones = [next(judged.zone for each, *_, judged in cells if each == name) for name in names]
    tops = [ABOVE + ROW * row for row in range(len(names))]
    zone = "".join(
        f"M{across(left):.1f} {top}H{across(right):.1f}v{ROW}H{across(left):.1f}z"
        for (left, right), top in zip(zones, tops, strict=True)
    )
    thresholds = [next((e for e in each if math.isfinite(e)), 0.0) for each in zones]
    edge = "".join(
        f"M{across(each):.1f} {top}v{ROW}" for each, top in zip(thresholds, tops, strict=True)
    )
    write = cells[0][2].write
    counts = [(verdict, len(found)) for verdict, found in dots.items() if found]
    alt = f"{label}: {', '.join(f'{n} {verdict.value}' for verdict, n in counts)}"
    parts = [
        Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            WIDTH, bottom + BELOW, visible(alt)
        ),
        Markup('<path class="zone" d="{}"/>').format(zone),
        Markup('<path class="edge" d="{}"/>').format(edge),
        *(
            Markup('<text x="0" y="{}">{}</text>').format(ABOVE + ROW * i + 9, _short(n))
            for i, n in enumerate(names)
        ),
        Markup('<path class="reach" d="{}"/>').format("".join(reaches)) if reaches else Markup(),
        *(
            Markup('<path class="{}" d="{}"/>').format(_CLASSES[verdict], "".join(found))
            for verdict, found in dots.items()
            if found
        ),
        *_axis((least, most), thresholds[0], across, write, bottom + 10),
        Markup("</svg>"),
    ]
    return Strip(label, Markup().join(parts), as_json(marks))


def _short(name: str) -> str:
    return visible(name if len(name) < 18 else f"{name[:16]}…")


def _extent(judged: Sequence[Judged]) -> tuple[float, float]:
    """The least and the largest number or threshold; an interval may reach beyond."""
    ends = [end for each in judged for end in (each.value, *each.zone) if math.isfinite(end)]
    return min(ends), max(ends)


def _axis(
    ends: tuple[float, float],
    threshold: float,
    across: Callable[[float], float],
    write: Callable[[float], str],
    y: float,
) -> Iterator[Markup]:
    """Labels the threshold, and the least and the largest number where there is room."""
    at = across(threshold)
    least, most = ends
    for value, anchor, room in ((least, "start", 70), (threshold, "middle", 0), (most, "end", 70)):
        words = write(value)
        x = across(value)
        if anchor == "middle":
            half = LETTER * len(words) / 2
            x = min(max(x, NAMES + half), WIDTH - half)
        if abs(x - at) >= room:
            yield Markup('<text x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                x, y, anchor, words
            )


def _told(
    place: tuple[float, float], name: str, unit: str, condition: Condition, judged: Judged
) -> Told:
    block = _ONE_BLOCK.fullmatch(unit)
    words = [condition.part, block[2].removeprefix(", ") if block and block[2] else ""]
    return Told(
        [round(each, 1) for each in place],
        int(block[1]) if block else None,
        visible(unit),
        visible(name),
        visible(" ".join(filter(None, (*words, condition.label)))),
        f"{visible(judged.written)}: {judged.verdict.value}",
    )
