"""Draws a claim as strips: one mark per block, its interval, and the zone that counts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeline.analysis.text import visible
from pipeline.analysis.verdicts import CONTRADICTED, SUPPORTED, UNDECIDED, VALUES
from pipeline.report.claims import Finding, Judged
from pipeline.report.marks import Told, as_json
from pipeline.report.numbers import Sentence

WIDTH, NAMES = 300, 84
"""Units of a strip, and of the room for names at its left."""

ROW, ABOVE, BELOW = 11, 2, 12
"""Units of a model's row, and above and below all rows."""

LETTER = 5.8
"""Units that a letter of a label takes, at most."""

_CLASSES = {SUPPORTED: "yes", CONTRADICTED: "no", UNDECIDED: "open"}
_DOTS = {
    SUPPORTED: "M{:.1f} {:.1f}h0",
    CONTRADICTED: "M{:.1f} {:.1f}h0",
    UNDECIDED: "M{:.1f} {:.1f}m0-2.5v5",
}
"""Line ends: a line of no length is a dot (round), a square (square), or invisible (flat)."""

_ONE_BLOCK = re.compile(r"block (\d+)(, .*)?")


@dataclass(frozen=True)
class Strip:
    """One strip.

    Args:
        label: the comparison that it shows, as text.
        says: the same for the page.
        svg: the drawing.
        marks: for the script.
    """

    label: str
    says: Sentence
    svg: Markup
    marks: Markup


def strips(finding: Finding) -> list[Strip]:
    """The strips of a claim, one for each comparison."""
    by_label: dict[str, list[Judged]] = {}
    for judged in finding.conditions:
        if math.isfinite(judged.value):
            by_label.setdefault(judged.label, []).append(judged)
    return [_strip(label, conditions) for label, conditions in by_label.items()]


def _strip(label: str, conditions: Sequence[Judged]) -> Strip:
    by_model: dict[str, list[Judged]] = {}
    for judged in conditions:
        by_model.setdefault(judged.row["model"], []).append(judged)
    least, most = _extent(conditions)
    room = 0.08 * (most - least) or 0.1
    low, high = least - room, most + room

    def across(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low)
        return NAMES + share * (WIDTH - NAMES - 6)

    dots: dict[str, list[str]] = {verdict: [] for verdict in VALUES}
    reaches, marks = [], []
    for line, of_model in enumerate(by_model.values()):
        for i, judged in enumerate(of_model):
            y = ABOVE + ROW * (line + (i + 1) / (len(of_model) + 1))
            x, verdict = across(judged.value), judged.row["verdict"]
            dots[verdict].append(_DOTS[verdict].format(x, y))
            if judged.row["p_value"] is None:
                ends = [judged.row[end] for end in ("low", "high")]
                left = -math.inf if ends[0] is None else ends[0]
                right = math.inf if ends[1] is None else ends[1]
                reaches.append(f"M{across(left):.1f} {y:.1f}H{across(right):.1f}")
            marks.append(_told((x, y), judged))
    bottom = ABOVE + ROW * len(by_model)
    # the threshold may differ from row to row
    zones = [of_model[0].zone for of_model in by_model.values()]
    tops = [ABOVE + ROW * line for line in range(len(by_model))]
    zone = "".join(
        f"M{across(left):.1f} {top}H{across(right):.1f}v{ROW}H{across(left):.1f}z"
        for (left, right), top in zip(zones, tops, strict=True)
    )
    thresholds = [next((e for e in each if math.isfinite(e)), 0.0) for each in zones]
    edge = "".join(
        f"M{across(each):.1f} {top}v{ROW}" for each, top in zip(thresholds, tops, strict=True)
    )
    write = conditions[0].write
    counts = [f"{len(places)} {verdict}" for verdict, places in dots.items() if places]
    alt = f"{label}: {', '.join(counts)}"
    parts = [
        Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            WIDTH, bottom + BELOW, visible(alt)
        ),
        Markup('<path class="zone" d="{}"/>').format(zone),
        Markup('<path class="edge" d="{}"/>').format(edge),
        *(
            Markup('<text x="0" y="{}">{}</text>').format(ABOVE + ROW * i + 9, _short(n))
            for i, n in enumerate(by_model)
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
    return Strip(label, conditions[0].says, Markup().join(parts), as_json(marks))


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


def _told(place: tuple[float, float], judged: Judged) -> Told:
    unit = judged.row["unit"]
    block = _ONE_BLOCK.fullmatch(unit)
    words = [judged.row["part"], block[2].removeprefix(", ") if block and block[2] else ""]
    return Told(
        [round(each, 1) for each in place],
        int(block[1]) if block else None,
        visible(unit),
        visible(judged.row["model"]),
        visible(" ".join(filter(None, (*words, judged.label)))),
        f"{visible(judged.written)}: {judged.row['verdict']}",
    )
