"""The claims for a reader: the frame of verdicts joined with the words of claims.yaml."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
from ruamel.yaml import YAML

from pipeline.analysis.schema import Thresholds
from pipeline.analysis.text import MISSING, number, percent, plural
from pipeline.analysis.verdicts import MAIN, SUPPORTED, VALUES

OURS = "ours"
"""The source of claims that are not the paper's."""


def points(share: float) -> str:
    """A difference of shares in percentage points: 0.123 is ``+12.3 points``."""
    return f"{100 * share:+.1f} points"


def change(share: float) -> str:
    """A change of a share in percent: -0.123 is ``-12.3%``."""
    return f"{100 * share:+.1f}%"


def growth(log_ratio: float) -> str:
    """The logarithm of a ratio as a change in percent: log 1.1 is ``+10.0%``."""
    return f"{100 * math.expm1(min(log_ratio, 50.0)):+.1f}%"


def correlation(value: float) -> str:
    """A rank correlation: 0.5 is ``+0.50``; a dash where one of the two does not vary."""
    return f"{value:+.2f}" if math.isfinite(value) else MISSING


FORMATS: Mapping[str, Callable[[float], str]] = {
    "percent": percent,
    "change": change,
    "growth": growth,
    "points": points,
    "correlation": correlation,
}


@dataclass(frozen=True)
class Judged:
    """A condition as it was judged: a row of the frame with the words for it.

    Args:
        row: of the frame of verdicts, by column.
        label: the compared quantity.
        write: formats a number of it.
    """

    row: Mapping[str, Any]
    label: str
    write: Callable[[float], str]

    @property
    def value(self) -> float:
        """The estimate; NaN where it is not defined."""
        return math.nan if self.row["estimate"] is None else float(self.row["estimate"])

    @property
    def interval(self) -> str:
        """``[4.5%, 20.1%]``, a question mark where it has no end; ``(p = 0.02)``; or nothing."""
        if self.row["compare"] == "above" and self.row["condition"] in _RANKED:
            p_value = self.row["p_value"]
            return f"(p = {p_value:.2g})" if self.row["estimate"] is not None else ""
        ends = (self.row[end] for end in ("low", "high"))
        return f"[{', '.join('?' if end is None else self.write(end) for end in ends)}]"

    @property
    def written(self) -> str:
        """``12.3% [4.5%, 20.1%]``."""
        return f"{self.write(self.value)} {self.interval}".strip()

    @property
    def zone(self) -> tuple[float, float]:
        """The range in which the whole interval must lie to support the claim."""
        threshold = self.row["threshold"]
        if self.row["compare"] == "at_most":
            return -math.inf, threshold
        return threshold, math.inf


@dataclass(frozen=True)
class Finding:
    """One claim and how it fared.

    Args:
        id: as in the frame of verdicts.
        title: what is claimed.
        source: where the paper claims it, or `OURS`.
        figures: the paper's first figure of it; empty where it has none of its own.
        opening: the start of the sentence on the result.
        unmeasured: the sentence where nothing could be judged.
        rule: when it counts as supported, with the thresholds.
        noun: the plural name of the units of a model, for their counts.
        case: the kind of the cases: ``model`` or ``family``.
        word: supported, contradicted, undecided or not measured: the claim as a whole.
        cases: model or family -> verdict.
        units: model or family -> the verdicts of its units.
        conditions: all of them.
        changes: setup -> the cases' verdicts with it, where they differ.
    """

    id: str
    title: str
    source: str
    figures: str
    opening: str
    unmeasured: str
    rule: str
    noun: str
    case: str
    word: str
    cases: Mapping[str, str]
    units: Mapping[str, Sequence[str]]
    conditions: Sequence[Judged]
    changes: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """``supported in 3 of 4 models, undecided in 1`` or ``not measured``."""
        return counted(list(self.cases.values()), self.case)

    @property
    def degree(self) -> str:
        """``all``, ``some`` or ``none`` of those measured; ``undecided``; ``unmeasured``."""
        verdicts = set(self.cases.values())
        if not verdicts:
            return "unmeasured"
        if SUPPORTED in verdicts:
            return "all" if verdicts == {SUPPORTED} else "some"
        return "none" if "contradicted" in verdicts else "undecided"

    @property
    def ranges(self) -> list[tuple[str, str]]:
        """Label of each compared quantity -> its numbers, from the smallest to the largest."""
        labels = dict.fromkeys(condition.label for condition in self.conditions)
        return [(label, self._range(label)) for label in labels]

    def _range(self, label: str) -> str:
        among = [condition for condition in self.conditions if condition.label == label]
        values = [c.value for c in among if math.isfinite(c.value)] or [math.nan]
        low, high = (among[0].write(end(values)) for end in (min, max))
        return low if low == high else f"{low} to {high}"

    @property
    def counts(self) -> list[tuple[str, str]]:
        """Each model and the counts of its units; empty where each has one unit."""
        if all(len(units) == 1 for units in self.units.values()):
            return []
        return [(model, counted(units)) for model, units in self.units.items()]


def counted(verdicts: Sequence[str], noun: str = "") -> str:
    """``supported in 3 of 4 models, undecided in 1``; without a noun ``3 of 4 supported, …``."""
    if not verdicts:
        return "not measured"
    counts = [(value, verdicts.count(value)) for value in VALUES if value in verdicts]
    (first, count), *others = counts
    if not noun:
        parts = [f"{verdicts.count(SUPPORTED)} of {len(verdicts)} {SUPPORTED}"]
        parts += [f"{n} {value}" for value, n in counts if value != SUPPORTED]
        return ", ".join(parts)
    nouns = noun if len(verdicts) == 1 else {"family": "families"}.get(noun, f"{noun}s")
    told = [f"{first} in {count} of {len(verdicts)} {nouns}"]
    return ", ".join(told + [f"{value} in {n}" for value, n in others])


def findings(
    verdicts: pl.DataFrame, evidence: pl.DataFrame, limits: Thresholds | None = None
) -> list[Finding]:
    """The claims in the order of the page.

    Args:
        verdicts: as `verdicts.verdicts` gives them.
        evidence: from which they were judged, for the sizes of the models.
        limits: the thresholds with which they were judged.
    """
    limits = limits or Thresholds()
    words = _words()
    fills = {name: f"{100 * value:g}%" for name, value in limits.model_dump().items()}
    fills["resists_points"] = f"{number(100 * limits.resists)} percentage points"
    made = []
    for name, said in words["claims"].items():
        rows = verdicts.filter(claim=name)
        main = rows.filter(setup=MAIN)
        cases = _cases(main)
        conditions = [
            Judged(row, label.format(**fills), FORMATS[unit])
            for row in main.filter(pl.col("condition").is_not_null()).iter_rows(named=True)
            for label, unit in [words["conditions"][row["condition"]]]
        ]
        units = main.filter(pl.col("unit").is_not_null(), pl.col("condition").is_null())
        rule = said["rule"].format(**fills)
        if conditions:
            level, intervals = conditions[0].row["level"], plural(len(conditions), "interval")
            rule += f" Judged by {intervals} at {100 * level:.6g}% each, which hold together with "
            rule += f"{100 * (1 - limits.significance):g}%."
        case = said.get("cases", "model")
        overall = main.filter(pl.col("model").is_null())["verdict"].to_list()
        made.append(
            Finding(
                id=name,
                title=said["title"],
                source=said["source"],
                figures=said.get("figures", ""),
                opening=said.get("opening", "").format(ratio=_ratio(evidence, cases)),
                unmeasured=said.get("unmeasured")
                or f"No {case} of this study can tell: it takes {said['needs']}.",
                rule=rule,
                noun=said.get("units", "Late blocks"),
                case=case,
                word=next(iter(overall), None) or "not measured",
                cases=cases,
                units={model: units.filter(model=model)["verdict"].to_list() for model in cases},
                conditions=conditions,
                changes={
                    sentence: counted(list(other.values()), case)
                    for setup, sentence in words["setups"].items()
                    if (other := _cases(rows.filter(setup=setup))) != cases
                },
            )
        )
    return made


def _cases(rows: pl.DataFrame) -> dict[str, str]:
    """Model or family -> its verdict."""
    models = rows.filter(pl.col("model").is_not_null(), pl.col("unit").is_null())
    return dict(models.select("model", "verdict").iter_rows())


def _ratio(evidence: pl.DataFrame, families: Mapping[str, str]) -> str:
    """How many times the parameters of its smallest model the largest of each family has."""
    sized = evidence.filter(pl.col("family").is_in(list(families)))
    parameters = pl.col("parameters")
    ratios = sized.group_by("family").agg((parameters.max() / parameters.min()).alias("ratio"))
    ends = sorted(ratios["ratio"].to_list())
    return " to ".join(dict.fromkeys(f"{end:.2f}" for end in (*ends[:1], *ends[-1:])))


@cache
def _words() -> dict[str, Any]:
    words: dict[str, Any] = YAML(typ="safe").load(Path(__file__).with_name("claims.yaml"))
    return words


_RANKED = {name for name, (_, unit) in _words()["conditions"].items() if unit == "correlation"}
