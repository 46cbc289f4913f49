"""Draws a claim as strips: one mark per block, its interval, and the zone that counts."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeline.analysis.text import visible
from pipeline.analysis.verdicts import CONTRADICTED, SUPPORTED, UNDECIDED, VALUES
from pipeline.report.claims import Finding, Judged
from pipeline.report.marks import Told, as_json
from pipeline.report.markup import plain
from pipeline.report.numbers import Sentence

WIDTH, NAMES = 300, 84
"""Units of a strip, and of the room for names at its left."""

ROW, ABOVE, BELOW = 11, 2, 12
"""Units of a model's row, and above and below all rows."""

LETTER = 5.8
"""Units that a letter of a label takes, at most."""

APART = 70
"""Units between the threshold and a label beside its own, at least."""

_CLASSES = {SUPPORTED: "yes", CONTRADICTED: "no", UNDECIDED: "open"}

_ONE_BLOCK = re.compile(r"block (\d+)(, .*)?")


@dataclass(frozen=True)
class Strip:
    """One strip.

    Args:
        label: the comparison that it shows, as text.
        says: the same for the page.
        alt: the label and the counts of its verdicts.
        height: units.
        names: y and name of each model.
        paths: class -> its path; of the marks the class is the verdict's.
        axis: x, anchor and text of each label below.
        marks: for the script.
    """

    label: str
    says: Sentence
    alt: str
    height: str
    names: Sequence[tuple[str, str]]
    paths: Mapping[str, Markup]
    axis: Sequence[tuple[str, str, str]]
    marks: Markup


def strips(finding: Finding) -> list[Strip]:
    """The strips of a claim, one for each comparison."""
    by_label: dict[str, list[Judged]] = {}
    for judged in finding.conditions:
        if math.isfinite(judged.value):
            by_label.setdefault(plain(judged.says), []).append(judged)
    return [_strip(label, conditions) for label, conditions in by_label.items()]


def _strip(label: str, conditions: Sequence[Judged]) -> Strip:
    by_model: dict[str, list[Judged]] = {}
    for judged in conditions:
        by_model.setdefault(judged.row["model"], []).append(judged)
    # of numbers and thresholds; an interval may reach beyond
    ends = [e for each in conditions for e in (each.value, *each.zone) if math.isfinite(e)]
    least, most = min(ends), max(ends)
    room = 0.08 * (most - least) or 0.1
    low, high = least - room, most + room

    def across(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low)
        return NAMES + share * (WIDTH - NAMES - 6)

    paths = dict.fromkeys(("zone", "edge", "reach", *(_CLASSES[value] for value in VALUES)), "")
    marks = []
    for line, of_model in enumerate(by_model.values()):
        top = ABOVE + ROW * line
        left, right = map(across, of_model[0].zone)  # the threshold may differ from row to row
        paths["zone"] += f"M{left:.1f} {top}H{right:.1f}v{ROW}H{left:.1f}z"
        paths["edge"] += f"M{across(of_model[0].row['threshold']):.1f} {top}v{ROW}"
        for i, judged in enumerate(of_model):
            row, x = judged.row, across(judged.value)
            y = ABOVE + ROW * (line + (i + 1) / (len(of_model) + 1))
            # line ends: a line of no length is a dot (round), a square, or invisible (flat)
            dot = "m0-2.5v5" if row["verdict"] == UNDECIDED else "h0"
            paths[_CLASSES[row["verdict"]]] += f"M{x:.1f} {y:.1f}{dot}"
            left = across(-math.inf if row["low"] is None else row["low"])
            right = across(math.inf if row["high"] is None else row["high"])
            paths["reach"] += f"M{left:.1f} {y:.1f}H{right:.1f}"
            marks.append(_told((x, y), judged))
    counts = Counter(judged.row["verdict"] for judged in conditions)
    counted = ", ".join(f"{counts[value]} {value}" for value in VALUES if counts[value])
    return Strip(
        label,
        conditions[0].says,
        visible(f"{label}: {counted}"),
        str(ABOVE + ROW * len(by_model) + BELOW),
        [
            (str(ABOVE + ROW * i + 9), visible(name if len(name) < 18 else f"{name[:16]}…"))
            for i, name in enumerate(by_model)
        ],
        {name: Markup(path) for name, path in paths.items()},  # noqa: S704  however long
        list(_axis(least, most, conditions[0], across)),
        as_json(marks),
    )


def _axis(
    least: float, most: float, judged: Judged, across: Callable[[float], float]
) -> Iterator[tuple[str, str, str]]:
    """Labels the threshold, and the least and the largest number where there is room."""
    threshold = judged.row["threshold"]
    at = across(threshold)
    for value, anchor in ((least, "start"), (threshold, "middle"), (most, "end")):
        x, words = across(value), judged.write(value)
        if anchor == "middle":
            half = LETTER * len(words) / 2
            x = min(max(x, NAMES + half), WIDTH - half)
        elif abs(x - at) < APART:
            continue
        yield f"{x:.1f}", anchor, words


def _told(place: tuple[float, float], judged: Judged) -> Told:
    unit = judged.row["unit"]
    block = _ONE_BLOCK.fullmatch(unit)
    words = dict.fromkeys([judged.row["part"], ((block and block[2]) or "").removeprefix(", ")])
    return Told(
        [round(each, 1) for each in place],
        int(block[1]) if block else None,
        visible(unit),
        visible(judged.row["model"]),
        visible(" ".join(filter(None, (*words, plain(judged.says))))),
        f"{visible(judged.written)}: {judged.row['verdict']}",
    )
