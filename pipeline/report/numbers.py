"""The numbers of a study's pages: each has a name, and the pages show it by that name.

A template formats a `Number` with a filter, such as ``{{ share|percent }}``. The filter writes the
text into ``<data value="INDEX">`` and records the number, so that ``numbers.json`` lists exactly
the numbers that the pages show, in this order. A bare int or float in a template is refused.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup
from ruamel.yaml import YAML

from pipeline.analysis.text import MISSING, number, percent, percent_interval
from pipeline.measure.metrics import METRICS
from pipeline.workflow.files import write_text

SHARE = "share"
"""The unit of shares, 0 to 1, which are shown as percentages."""


WRITE: Mapping[str, Callable[[float], str]] = {
    SHARE: percent,
    "threshold": lambda share: f"{100 * share:.6g}%",
    "change": "{:+.1%}".format,
    "growth": lambda log_ratio: f"{math.expm1(min(log_ratio, 50.0)):+.1%}",
    "points": lambda share: f"{100 * share:+.1f} points",
    "correlation": lambda value: f"{value:+.2f}" if math.isfinite(value) else MISSING,
    "p-value": "{:.2g}".format,
    "ratio": "{:.2f}".format,
    "difference": "{:+.3g}".format,
    "factor": lambda value: f"{value:,.0f}" if value >= 10 else f"{value:.1f}",
}
"""How the numbers of a unit are written; all others as `text.number` does.

``change`` is a signed share, ``growth`` the logarithm of a ratio as a change in percent, ``points``
a difference of shares in percentage points.
"""


_UNITS = {m.name: m.unit for m in METRICS if m.unit not in (SHARE, "truth")}


@dataclass(frozen=True)
class Number:
    """A number that a page shows.

    Args:
        name: unique in the study, such as ``summary/tiny-neo-8/baseline/exact_match``.
        value: in `unit`; None: not known, or a range.
        low, high: ends of its 95% interval; without a value: the ends of a range.
        unit: ``share``, ``tokens``, ``nats``, ``models``, …; empty: none.
        table: the table that it is computed from, such as ``summary``.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    table: str = "summary"

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """Low and high."""
        return self.low, self.high


@dataclass(frozen=True)
class Sentence:
    """A sentence: a Jinja source, and the numbers and names that it formats.

    Args:
        source: such as ``At {{ stopped|count }} of {{ blocks|plural("block") }}.``
        values: by the names in `source`; `Number`, text, or a list of these.
    """

    source: str
    values: Mapping[str, Any]


@cache
def words(name: str) -> Any:
    """The sentences, and parts of sentences, of a YAML file of this folder."""
    return YAML(typ="safe").load(Path(__file__).with_name(name))


def unclaimed(text: str) -> str:
    """`text` about samples that are not known to be memorized: without that word."""
    return re.sub(r", memorized$|\bmemorized (?=sample|token)|^memorized$", "", text) or "samples"


def from_json(entry: dict[str, Any]) -> Any:
    """The `Number` or `Sentence` that json wrote by ``default=vars``; any other object as it is.

    An ``object_hook`` of json.
    """
    for kind in (Number, Sentence):
        if entry.keys() == kind.__dataclass_fields__.keys():
            return kind(**entry)
    return entry


def named(value: Any, place: str, table: str | None = None) -> Any:
    """`value` with each number in it named by its place, such as ``figures/kept/stopped``.

    It is a `Number`, a `Sentence`, a mapping or a list of these; all else stays as it is. The table
    of the numbers is `place` if none is named.
    """
    table = table or place
    if isinstance(value, Number):
        return replace(value, name=place, table=table)
    if isinstance(value, Sentence):
        return replace(value, values=named(value.values, place, table))
    if isinstance(value, Mapping):
        return {key: named(entry, f"{place}/{key}", table) for key, entry in value.items()}
    if isinstance(value, list):
        return [named(entry, f"{place}/{i}", table) for i, entry in enumerate(value)]
    return value


def spread(name: str, values: Iterable[float], unit: str = SHARE, table: str = "summary") -> Number:
    """The range of `values` as one number without a value; for the filter ``span``."""
    known = [value for value in values if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (None, None)
    return Number(name, None, low, high, unit, table)


def across(name: str, numbers: Sequence[Number]) -> list[Number]:
    """One number with its interval; of several their range and that of their intervals.

    The filter ``across`` writes it. Numbers without an interval have only their range.
    """
    if len(numbers) < 2:
        return [replace(number, name=name) for number in numbers]
    unit, table = numbers[0].unit, numbers[0].table
    ends = [end for n in numbers for end in n.ends if end is not None]
    values = [n.value for n in numbers if n.value is not None]
    pairs = ((name, values), (f"{name}/intervals", ends))
    return [spread(place, found, unit, table) for place, found in pairs if found]


def summarized(row: Mapping[str, Any]) -> Number:
    """The number of a row of the summary, with its interval."""
    key = ("model", "intervention", "task", "metric", "split", "k", "copies", "category")
    name = "/".join(["summary", *(str(row[c]) for c in key if row[c] is not None)])
    unit = _UNITS.get(row["metric"], "" if row["higher_is_better"] is False else SHARE)
    return Number(name, row["value"], row["low"], row["high"], unit)


class Numbers:
    """The numbers that the pages of one study show, in the order of their first use."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[int, Number]] = {}

    def write(self, path: Path) -> None:
        """Write ``numbers.json``: a list of name, value, low, high, unit, table."""
        rows = (json.dumps(_finite(vars(shown))) for _, shown in self._shown.values())
        write_text(path, "[\n" + ",\n".join(rows) + "\n]\n")

    def filters(self) -> dict[str, Any]:
        """The filters that format a number; each records it.

        ``percent`` (digits=1), ``number`` (digits=4) and ``value`` (in its unit) without the
        interval, ``interval`` with it, ``ends`` it alone, ``span`` for a range, ``across`` for what
        the function `across` gives, ``count`` and ``plural`` (noun) for counts, ``times`` for
        "once" or "4 times".
        """
        return {
            "percent": lambda n, digits=1: self.mark(n, percent_digits(n.value, digits)),
            "number": lambda n, digits=4: self.mark(n, significant(n.value, digits)),
            "value": lambda n: self.mark(n, "" if n.value is None else write(n.value, n.unit)),
            "ends": lambda n: self.mark(n, ends(n)),
            "interval": lambda n: self.mark(n, estimate(n)),
            "span": lambda n, between="–", digits=None: self.mark(n, span(n, between, digits)),
            "across": self._across,
            "count": lambda n: self.mark(n, count(n)),
            "times": lambda n: (
                "once" if n.value == 1 else Markup("{} times").format(self.mark(n, count(n)))
            ),
            "plural": lambda n, noun, many=None: Markup("{} {}").format(
                self.mark(n, count(n)), noun if 1 in (n.value, n.high) else many or f"{noun}s"
            ),
        }

    def _across(self, numbers: Sequence[Number]) -> Markup:
        if len(numbers) < 2:
            return Markup().join(self.mark(n, estimate(n)) for n in numbers)
        values, ends = (self.mark(n, span(n)) for n in numbers)
        return Markup("{} (intervals {})").format(values, ends)

    def mark(self, shown: Number, text: str) -> Markup:
        """`text`, marked as that of a number."""
        if shown.value is None and shown.low is None:
            return Markup(MISSING)  # noqa: S704  ours
        index, before = self._shown.setdefault(shown.name, (len(self._shown), shown))
        if before != shown:
            message = f"two numbers of the page have the name {shown.name}: {before}, {shown}"
            raise ValueError(message)
        start, bracket, end = text.partition(" [")
        words = Markup('{} <span class="interval">[{}</span>') if bracket else Markup("{}{}")
        return Markup('<data value="{}">{}</data>').format(index, words.format(start, end))


def write(value: float, unit: str = "") -> str:
    """A number in its unit, without an interval."""
    if isinstance(value, int):
        return f"{value:,}"
    return WRITE.get(unit, number)(value)


def estimate(shown: Number) -> str:
    """A value with its interval, if it has one: ``98.4% [94.5, 99.6]``, ``12.3 [10.1, 14]``."""
    if shown.value is None:
        return span(shown, " to ")
    low, high = (end if end is not None and math.isfinite(end) else None for end in shown.ends)
    if shown.unit == SHARE:
        return percent_interval(shown.value, low, high)
    value = write(shown.value, shown.unit)
    if low is None or high is None:
        return value
    return f"{value} [{write(low, shown.unit)}, {write(high, shown.unit)}]"


def percent_digits(value: float | None, digits: int | None) -> str:
    """A share as a percentage: 0.984 is ``98.4%`` with 1 digit, ``98%`` with 0; None: all."""
    if value is None or digits == 1:
        return percent(value)
    return f"{100 * value:.6g}%" if digits is None else f"{value:.{digits}%}"


def significant(value: float | None, digits: int) -> str:
    """A number with at most `digits` significant digits, thousands apart."""
    return number(None if value is None else float(f"{value:.{digits}g}"))


def ends(shown: Number) -> str:
    """The interval alone, with a question mark where it has no end: ``[4.5%, ?]``."""
    return f"[{', '.join('?' if end is None else write(end, shown.unit) for end in shown.ends)}]"


def span(shown: Number, between: str = "–", digits: int | None = None) -> str:
    """``40–75%`` or ``3.2 to 17``; one number where both ends are written alike."""
    low, high = shown.ends
    if low is None or high is None:
        return MISSING
    if shown.unit == SHARE and between == "–":
        first, last = (f"{100 * end:.{digits or 0}f}" for end in (low, high))
        return f"{last}%" if first == last else f"{first}–{last}%"
    if digits is None:
        first, last = write(low, shown.unit), write(high, shown.unit)
    else:
        first, last = (f"{end:,.{digits}f}" for end in (low, high))
    return last if first == last else f"{first}{between}{last}"


def count(shown: Number) -> str:
    """A whole number, thousands apart; of a range ``3 to 5``."""
    return span(shown, " to ", 0) if shown.value is None else f"{shown.value:,.0f}"


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
