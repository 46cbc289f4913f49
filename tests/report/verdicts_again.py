"""The claims judged once more from the table of evidence, to compare the page with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from scipy import stats

from pipeline.analysis.correlation import partial_rank_correlation, rank_correlation

Interval = tuple[float, float, float]
"""Value, low, high."""
Estimate = Callable[[float], Interval]
"""From a level to an interval."""
Row = tuple[str, str, str, str, str, str]
"""Case, unit, condition, estimate, interval, verdict."""

SHOWN, NOT_SHOWN, UNDECIDED = "supported", "contradicted", "undecided"
MEMORY = ("memorization", "exact_match")
KINDS = {"reasoning": ("piqa", "arc_easy"), "language": ("hellaswag", "lambada_openai")}


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def growth(value: float) -> str:
    return f"{100 * math.expm1(min(value, 50.0)):+.1f}%"


def correlation(value: float) -> str:
    return f"{value:+.2f}" if math.isfinite(value) else "–"


def late_blocks(n_blocks: int, *, half: bool = False) -> range:
    return range(max(1, (n_blocks + 1) // 2 if half else 3 * n_blocks // 4), n_blocks)


def combined(
    parts: Sequence[tuple[float, Estimate]], offset: float = 0.0, *, related: bool = False
) -> Estimate:
    """A sum of multiples of estimates; see `pipeline.analysis.verdicts.combined`."""

    def of(level: float) -> Interval:
        each = [(f, *estimate(level)) for f, estimate in parts]
        value = offset + sum(f * v for f, v, _, _ in each)
        below = [abs(f) * (v - low if f > 0 else high - v) for f, v, low, high in each]
        above = [abs(f) * (high - v if f > 0 else v - low) for f, v, low, high in each]
        total = sum if related else (lambda distances: math.hypot(*distances))
        return value, value - total(below), value + total(above)

    return of


class Model:
    """The evidence of one model."""

    def __init__(self, rows: pl.DataFrame, metric: str = "acc", *, half: bool = False) -> None:
        self.name, self.family, self.n_blocks, self.parameters = rows.select(
            "model", "family", "n_blocks", "parameters"
        ).row(0)
        key = ("task", "metric", "quantity", "over")
        numbers = ("value", "stderr", "n_effective", "scale", "least", "most")
        self.rows = {row[:4]: row[4:] for row in rows.select(*key, *numbers).iter_rows()}
        blocks = rows.filter(kind="block").select("block", "over").unique().sort("block")
        self.blocks = {block: over for block, over in blocks.iter_rows() if block > 0}
        self.late = {b: self.blocks[b] for b in late_blocks(self.n_blocks, half=half)}
        early = range(1, min(self.n_blocks, max(2, self.n_blocks // 4)))
        self.early = {b: self.blocks[b] for b in early}
        self.quartiles = sorted(rows.filter(kind="quartile")["over"].unique())
        accuracies = rows.filter(pl.col("task") != MEMORY[0], quantity="kept")
        self.metric = {
            task: metric if (task, metric, "kept", "all") in self.rows else "acc"
            for task in sorted(accuracies["task"].unique())
        }
        self.perplexities = sorted(rows.filter(quantity="log_ratio")["task"].unique())

    def row(self, *key: str) -> Estimate:
        value, stderr, n, scale, least, most = self.rows[key]

        def of(level: float) -> Interval:
            half = math.inf
            if n >= 2 and stderr is not None:
                t = stats.t.ppf((1 + level) / 2, n - 1)
                half = t * math.hypot(stderr, t * scale / n)
            low = value - half if least is None else max(value - half, least)
            high = value + half if most is None else min(value + half, most)
            return value, min(low, value) + 0.0, max(high, value)  # no -0.0

        return of

    def memory(self, over: str, quantity: str = "kept", metric: str = "exact_match") -> Estimate:
        return self.row(MEMORY[0], metric, quantity, over)

    def ability(self, over: str, task: str, quantity: str = "kept") -> Estimate:
        return self.row(task, self.metric[task], quantity, over)

    def abilities(self, over: str, quantity: str = "kept", of: str = "") -> Estimate:
        tasks = [t for t in self.metric if not of or t.removeprefix("tiny_") in KINDS[of]]
        return combined([(1 / len(tasks), self.ability(over, t, quantity)) for t in tasks])

    def has_kinds(self) -> bool:
        """Whether there are benchmarks of reasoning and of language understanding."""
        tasks = {task.removeprefix("tiny_") for task in self.metric}
        return all(tasks & set(names) for names in KINDS.values())

    def gap(self, over: str) -> Estimate:
        return combined(
            [(1, self.abilities(over, "retained")), (-1, self.memory(over, "retained"))]
        )


@dataclass(frozen=True)
class Cell:
    """One condition: where, what, and how it is judged."""

    case: str
    unit: str
    label: str
    estimate: Estimate
    compare: str = "at least"
    threshold: float = 0.0
    write: Callable[[float], str] = points
    part: str = ""
    correlated: Sequence[Sequence[float]] = ()

    def judged(self, level: float) -> tuple[float, Row]:
        """The value, and the row of the table of intervals."""
        what = f"{self.label} ({self.part})" if self.part else self.label
        if self.correlated:
            one, other, *given = map(np.array, self.correlated)
            if given:
                found = partial_rank_correlation(one, other, given[0], 0, 9_999)
                level = (1 + level) / 2
            else:
                found = rank_correlation(one, other, 0, 9_999)
            sure = SHOWN if found.value > 0 else NOT_SHOWN
            verdict = sure if found.p_value <= 1 - level else UNDECIDED
            value, interval = found.value, f"(p = {found.p_value:.2g})"
            interval = interval if math.isfinite(value) else ""
        else:
            value, low, high = self.estimate(level)
            inside, outside = {
                "at least": (low >= self.threshold, high < self.threshold),
                "at most": (high <= self.threshold, low > self.threshold),
                "above": (low > self.threshold, high <= self.threshold),
            }[self.compare]
            verdict = SHOWN if inside else NOT_SHOWN if outside else UNDECIDED
            ends = [self.write(end) if math.isfinite(end) else "?" for end in (low, high)]
            interval = f"[{', '.join(ends)}]"
        return value, (self.case, self.unit, what, self.write(value), interval, verdict)


def every(found: Sequence[str]) -> str:
    return next((each for each in (NOT_SHOWN, UNDECIDED) if each in found), SHOWN)


def some(found: Sequence[str]) -> str:
    return next((each for each in (SHOWN, UNDECIDED) if each in found), NOT_SHOWN)


def most(found: Sequence[str]) -> str:
    if 2 * found.count(SHOWN) > len(found):
        return SHOWN
    return NOT_SHOWN if 2 * found.count(NOT_SHOWN) >= len(found) else UNDECIDED


@dataclass(frozen=True)
class Claim:
    """A claim as the page has to tell it."""

    name: str
    source: str
    verdict: str
    word: str
    sentence: str | None
    detail: str
    rule: Sequence[str]
    verdicts: Sequence[str] = ()
    rows: Sequence[Row] = field(default_factory=list)


Rule = Callable[[Sequence[str]], str]


def claim(
    name: str,
    source: str,
    opening: str,
    cells: Sequence[Cell],
    rules: tuple[Rule, Rule] = (most, every),
    *,
    noun: str = "Late blocks",
    rule: Sequence[str] = (),
    significance: float,
    unit: str = "model",
) -> Claim:
    """Judge `cells` and put the result in words; `rules`: of the units, and of the cases."""
    if not cells:
        return Claim(name, source, "not measured", "not measured", None, "", rule)
    level = 1 - significance / len(cells)
    judged = [(cell, *cell.judged(level)) for cell in cells]
    cases: dict[str, dict[str, list[str]]] = {}
    values: dict[str, list[float]] = {}
    writes = {cell.label: cell.write for cell in cells}
    for cell, value, row in judged:
        cases.setdefault(cell.case, {}).setdefault(cell.unit, []).append(row[5])
        values.setdefault(cell.label, []).append(value)
    units = {case: [every(found) for found in own.values()] for case, own in cases.items()}
    verdicts = [rules[0](found) for found in units.values()]
    told = []
    for label, found in values.items():
        known = [value for value in found if math.isfinite(value)] or found
        ends = dict.fromkeys(writes[label](end) for end in (min(known), max(known)))
        told.append(f"{label} {' to '.join(ends)}")
    n = len(cells)
    judged_by = f"Judged by {n} interval{'s' if n > 1 else ''} at {100 * level:.6g}% each, which "
    judged_by += f"hold together with {100 * (1 - significance):g}%."
    return Claim(
        name,
        source,
        told_of(verdicts, unit),
        rules[1](verdicts),
        f"{opening}, {'; '.join(told)}.",
        _detail(noun, units),
        [*rule, judged_by],
        verdicts,
        [row for *_, row in judged],
    )


def told_of(verdicts: Sequence[str], unit: str) -> str:
    """``shown in 3 of 4 models, undecided in 1``."""
    counts = [(v, verdicts.count(v)) for v in (SHOWN, NOT_SHOWN, UNDECIDED) if v in verdicts]
    nouns = {"model": "models", "family": "families"}
    noun = unit if len(verdicts) == 1 else nouns[unit]
    first, *others = [f"{v} in {n}" for v, n in counts]
    return ", ".join([f"{first} of {len(verdicts)} {noun}", *others])


def _detail(noun: str, units: Mapping[str, Sequence[str]]) -> str:
    if all(len(found) == 1 for found in units.values()):
        return ""
    told = []
    for case, found in units.items():
        others = [f"{found.count(v)} {v}" for v in (NOT_SHOWN, UNDECIDED) if v in found]
        own = ", ".join([f"{found.count(SHOWN)} of {len(found)} supported", *others])
        told.append(f"{case}: {own}")
    return f"{noun}, model by model: {'; '.join(told)}."
