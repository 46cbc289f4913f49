"""The parts of a claim, the conditions that several claims share, and their number formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.analysis.cases import Measured, Number
from pipeline.analysis.correlation import partial_rank_correlation, rank_correlation
from pipeline.analysis.text import MISSING, number, percent
from pipeline.analysis.verdicts import (
    Case,
    Condition,
    Estimate,
    Judged,
    Rule,
    Verdict,
    combined,
    every,
    most,
)

_PERMUTATIONS = 9_999


@dataclass(frozen=True)
class Claim:
    """A claim and the cases in which it can be judged.

    Args:
        claim, source, rule, overall, unit: as in `findings.Finding`.
        cases: the cases that can be judged.
        opening: the start of the sentence on the result.
        needs: the sentence where there is no case.
        ranges: label of conditions -> the format of their values in that sentence.
        noun: the plural name of the units of a case, for their counts.
    """

    claim: str
    source: str
    cases: Sequence[Case]
    opening: str
    needs: str
    rule: str
    ranges: Mapping[str, Callable[[float], str]]
    overall: Rule = every
    unit: str = "model"
    noun: str = "Late blocks"


def lost(left: Number) -> Number:
    """The share lost: 1 minus the share kept."""
    return lambda seed, level: combined([(-1, left(seed, level))], offset=1)


def changed(left: Number) -> Number:
    """The change as a share: the share kept minus 1; positive where the bypass improves it."""
    return lambda seed, level: combined([(1, left(seed, level))], offset=-1)


def condition(
    model: Measured,
    label: str,
    number_of: Number,
    compare: Literal["at_least", "at_most", "above"],
    threshold: float,
    write: Callable[[float], str],
    part: str = "",
) -> Condition:
    """A condition on a number that is computed for each seed.

    Args:
        model: the model whose evidence is used.
        label: as in `verdicts.Condition`.
        number_of: gives the number to compare.
        compare: the comparison, a method of `verdicts.Estimate`.
        threshold: the threshold to compare with.
        write: formats the number for a reader.
        part: as in `verdicts.Condition`.
    """

    def judge(level: float) -> Judged:
        estimate = model.pooled(number_of, level)
        verdict = getattr(estimate, compare)(threshold)
        return Judged(verdict, estimate.value, written(estimate, write), estimate, zone)

    zone = (-math.inf, threshold) if compare == "at_most" else (threshold, math.inf)
    return Condition(label, judge, part, write)


def written(estimate: Estimate, write: Callable[[float], str]) -> str:
    """``12.3% [4.5%, 20.1%]``; a question mark where the interval has no end."""
    ends = (write(each) if math.isfinite(each) else "?" for each in (estimate.low, estimate.high))
    return f"{write(estimate.value)} [{', '.join(ends)}]"


def points(share: float) -> str:
    """A difference of shares in percentage points: 0.123 is ``+12.3 points``."""
    return f"{100 * share:+.1f} points"


def change(share: float) -> str:
    """A change of a share in percent: -0.123 is ``-12.3%``."""
    return f"{100 * share:+.1f}%"


def growth(log_ratio: float) -> str:
    """The logarithm of a ratio as a change in percent: log 1.1 is ``+10.0%``."""
    return f"{100 * math.expm1(min(log_ratio, 50.0)):+.1f}%"


def ranked(label: str, pairs: Callable[[float], Sequence[NDArray[np.float64]]]) -> Condition:
    """A condition that two numbers of each block correlate in rank, by permutation of the blocks.

    Args:
        label: as in `verdicts.Condition`.
        pairs: gives, for a level, the two numbers over the blocks; optionally a third, whose
            influence is removed from both (partial correlation).
    """

    def judge(level: float) -> Judged:
        one, other, *given = pairs(level)
        if given:
            found = partial_rank_correlation(one, other, given[0], 0, _PERMUTATIONS)
            level = (1 + level) / 2  # since this test rejects slightly too often; see there
        else:
            found = rank_correlation(one, other, 0, _PERMUTATIONS)
        verdict = Verdict.UNDECIDED
        if found.p_value <= 1 - level:
            verdict = Verdict.SHOWN if found.value > 0 else Verdict.NOT_SHOWN
        told = correlation(found.value)
        if math.isfinite(found.value):
            told += f" (p = {found.p_value:.2g})"
        return Judged(verdict, found.value, told, zone=(0.0, math.inf))

    return Condition(label, judge, write=correlation)


def correlation(value: float) -> str:
    """A rank correlation: 0.5 is ``+0.50``; a dash where one of the two does not vary."""
    return f"{value:+.2f}" if math.isfinite(value) else MISSING


def block_cases(
    models: Sequence[Measured],
    blocks: Callable[[Measured], Mapping[str, str]],
    conditions: Callable[[Measured, str], Sequence[Condition]],
    rule: Rule = most,
) -> list[Case]:
    """The cases of a claim that is judged block by block; models without a block are left out."""
    cases = []
    for model in models:
        units = {
            name: found
            for name, over in blocks(model).items()
            if (found := conditions(model, over))
        }
        if units:
            cases.append(Case(model.name, units, rule))
    return cases


OURS = "ours"
EXACT = "exact match loses"
TASK = "a benchmark’s lead over chance changes by"
PERPLEXITY = "word perplexity changes by"
GAP = "memory loss minus ability loss is"


def reduced(model: Measured, over: str, share: float) -> Condition:
    """Exact match loses at least a share of its baseline."""
    return condition(model, EXACT, lost(model.memory(over)), "at_least", share, percent)


def cheap(model: Measured, over: str, share: float) -> list[Condition]:
    """Every benchmark, and perplexity, within a margin of the baseline."""
    tasks = [
        condition(model, TASK, changed(model.ability(task, over)), "at_least", -share, change, task)
        for task in model.metrics
    ]
    return tasks + cheap_perplexity(model, over, share)


def cheap_perplexity(model: Measured, over: str, share: float) -> list[Condition]:
    """Word perplexity grows by at most a share of the baseline."""
    margin = math.log1p(share)
    return [
        condition(
            model,
            PERPLEXITY,
            model.perplexity(task, over),
            "at_most",
            margin,
            growth,
            task,
        )
        for task in model.perplexities
    ]


def unmeasured(needed: str) -> str:
    """The sentence for a claim that no model of the study can test."""
    return f"No model of this study can tell: it takes {needed}."


def as_share(threshold: float) -> str:
    """A threshold in percent: 0.1 is ``10%``."""
    return f"{100 * threshold:g}%"


def in_points(share: float) -> str:
    """A threshold of a difference: 0.05 is ``5 percentage points``."""
    return f"{number(100 * share)} percentage points"
