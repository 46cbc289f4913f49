"""Verdicts of three values, from intervals, with a stated error rate.

A condition compares an estimate with a threshold, and counts only where the whole interval lies on
one side: *shown* or *not shown*; else it is *undecided*. Every other verdict follows by logic from
those of the conditions: of a block or other unit from its conditions, of a model from its units,
of a claim from the models.

The intervals of all conditions of one claim, over all models, hold together with the stated
probability (Bonferroni: each is taken at the level 1 - error / number of conditions). Where they
all hold no condition is judged wrongly, so nothing that follows from them is: block by block,
model by model, and in the counts of blocks. The rate is one for each claim; it is not shared among
the claims. Bonferroni's bound needs nothing of how the estimates depend on each other.

Models of one recipe that differ in their training seed are one case: see `pooled`.

Source: for equivalence by inclusion of an interval Schuirmann (1987), J. Pharmacokinetics and
Biopharmaceutics 15, 657-680; for sums of independent estimates Zou and Donner (2008), Statistics in
Medicine 27, 1693-1702; the logic of three values is Kleene's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from pipeline.analysis.statistics import student


class Verdict(Enum):
    """The verdict on a statement, from one interval or derived from several."""

    SHOWN = "shown"
    NOT_SHOWN = "not shown"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Estimate:
    """A number and its interval."""

    value: float
    low: float
    high: float

    def at_least(self, threshold: float) -> Verdict:
        """Whether the number is the threshold or more, as far as the interval tells."""
        if self.low >= threshold:
            return Verdict.SHOWN
        return Verdict.NOT_SHOWN if self.high < threshold else Verdict.UNDECIDED

    def at_most(self, threshold: float) -> Verdict:
        """Whether the number is the threshold or less, as far as the interval tells."""
        if self.high <= threshold:
            return Verdict.SHOWN
        return Verdict.NOT_SHOWN if self.low > threshold else Verdict.UNDECIDED

    def above(self, threshold: float) -> Verdict:
        """Whether the number is more than the threshold, as far as the interval tells."""
        if self.low > threshold:
            return Verdict.SHOWN
        return Verdict.NOT_SHOWN if self.high <= threshold else Verdict.UNDECIDED


def combined(
    parts: Sequence[tuple[float, Estimate]], offset: float = 0.0, *, related: bool = False
) -> Estimate:
    """The sum of multiples of some estimates.

    Args:
        parts: factor and estimate.
        offset: added to the sum.
        related: whether the errors may be correlated, as for the same samples: the distances to
            the ends of the intervals are added, which is never too narrow. Otherwise the estimates
            are from unrelated samples or documents, and the squares of the distances are added.
    """
    total = math.fsum if related else _root_of_squares
    value = offset + math.fsum(factor * each.value for factor, each in parts)
    below = total(
        factor * (each.value - (each.low if factor > 0 else each.high)) for factor, each in parts
    )
    above = total(
        factor * ((each.high if factor > 0 else each.low) - each.value) for factor, each in parts
    )
    return Estimate(value, value - below, value + above)


def pooled(seeds: Sequence[Estimate]) -> Estimate:
    """One estimate for several seeds of one recipe: their mean.

    The interval holds two: the mean of the seeds' own intervals, which is about samples and
    documents, and Student's 95% interval between the seeds, which is about trainings. The second
    is not widened for the number of conditions; three seeds could then decide nothing. So the
    stated error rate is about samples and documents; other seeds can only make a verdict undecided
    more often.

    Args:
        seeds: of the same quantity and level; at least one.
    """
    values = np.array([each.value for each in seeds])
    low = float(np.mean([each.low for each in seeds]))
    high = float(np.mean([each.high for each in seeds]))
    if len(seeds) > 1:
        between = student(values)
        low, high = min(low, between[0]), max(high, between[1])
    return Estimate(float(values.mean()), low, high)


def every(verdicts: Iterable[Verdict]) -> Verdict:
    """Shown where all are, not shown where one is not."""
    found = list(verdicts)
    if Verdict.NOT_SHOWN in found:
        return Verdict.NOT_SHOWN
    return Verdict.UNDECIDED if Verdict.UNDECIDED in found else Verdict.SHOWN


def some(verdicts: Iterable[Verdict]) -> Verdict:
    """Shown where one is, not shown where none is."""
    found = list(verdicts)
    if Verdict.SHOWN in found:
        return Verdict.SHOWN
    return Verdict.UNDECIDED if Verdict.UNDECIDED in found else Verdict.NOT_SHOWN


def most(verdicts: Iterable[Verdict]) -> Verdict:
    """Shown where more than half are, not shown where at least half are not."""
    found = list(verdicts)
    if 2 * found.count(Verdict.SHOWN) > len(found):
        return Verdict.SHOWN
    if 2 * found.count(Verdict.NOT_SHOWN) >= len(found):
        return Verdict.NOT_SHOWN
    return Verdict.UNDECIDED


Rule = Callable[[Iterable[Verdict]], Verdict]


@dataclass(frozen=True)
class Judged:
    """A condition as it was judged.

    Args:
        verdict: of the condition.
        value: the estimate, as a number.
        written: with its interval, for a reader.
        estimate: with its interval; None if the verdict did not come from an interval.
        zone: the range in which the whole interval must lie for `Verdict.SHOWN`.
    """

    verdict: Verdict
    value: float
    written: str
    estimate: Estimate | None = None
    zone: tuple[float, float] = (-math.inf, math.inf)


@dataclass(frozen=True)
class Condition:
    """One comparison of an estimate with a threshold.

    Args:
        label: the compared quantity, in a few words; the page groups conditions by label.
        judge: maps the level of the interval, such as 0.999, to the verdict.
        part: identifies it among conditions of the same label, such as a task's name; may be empty.
        write: formats the number for a reader.
    """

    label: str
    judge: Callable[[float], Judged]
    part: str = ""
    write: Callable[[float], str] = str


@dataclass(frozen=True)
class Case:
    """A claim applied to one model, recipe or family.

    Args:
        name: of the model, recipe or family.
        units: unit of judgement, such as a block -> its conditions, all of which must hold.
        rule: maps the verdicts of the units to the verdict of the case.
    """

    name: str
    units: Mapping[str, Sequence[Condition]]
    rule: Rule


@dataclass(frozen=True)
class JudgedCase:
    """A case as it was judged.

    Args:
        name: of the model, recipe or family.
        verdict: of the case.
        units: unit -> verdict.
        cells: unit, condition, and how it was judged.
    """

    name: str
    verdict: Verdict
    units: Mapping[str, Verdict]
    cells: Sequence[tuple[str, Condition, Judged]]


def judged_cases(cases: Sequence[Case], error: float) -> tuple[list[JudgedCase], float]:
    """Judge all cases of one claim.

    Args:
        cases: those that can be judged.
        error: the largest chance that any verdict of them, of their units or conditions is wrong.

    Returns:
        The cases, and the level of the intervals; 1 - error without any condition.
    """
    count = sum(len(conditions) for case in cases for conditions in case.units.values())
    level = 1 - error / max(count, 1)
    judged = []
    for case in cases:
        cells = [
            (unit, condition, condition.judge(level))
            for unit, conditions in case.units.items()
            for condition in conditions
        ]
        units = {
            unit: every(result.verdict for name, _, result in cells if name == unit)
            for unit in case.units
        }
        judged.append(JudgedCase(case.name, case.rule(units.values()), units, cells))
    return judged, level


def _root_of_squares(distances: Iterable[float]) -> float:
    return math.hypot(*distances)
