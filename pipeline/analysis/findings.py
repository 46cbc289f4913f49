"""The findings of a study, as sentences computed from the evidence.

Claims of the paper and of ours are judged, for each model (the one on size for each family) and
then over all of them, by the rules of `verdicts`. The thresholds are older than the results; see
`Thresholds`. *Late* is the last quarter of the blocks, as in section 4.2.1 of the paper; the second
half is a check of whether that matters. Every block of a range is judged and counted, but for block
0, which the paper warns against.

Memory loss minus ability loss is the difference of two retentions on equal terms, see `evidence`:
of the benchmarks' (the mean over the tasks) and of exact match.

Source: sections 4.2 and A.3 of arXiv 2501.05078.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import polars as pl

from pipeline.analysis.cases import Measured, Setup
from pipeline.analysis.claims import CLAIMS
from pipeline.analysis.conditions import OURS, Claim
from pipeline.analysis.schema import Thresholds
from pipeline.analysis.text import plural
from pipeline.analysis.verdicts import JudgedCase, Rule, Verdict, judged_cases

BY_NORM = "With acc_norm in place of acc"
BY_HALF = "With the second half of the blocks as late"


@dataclass(frozen=True)
class Finding:
    """One claim and how it fared.

    Args:
        claim: what would be shown.
        source: where the paper claims it, or `OURS`.
        cases: the models (or families) in which it could be judged.
        overall: from the verdicts of the cases to that of the claim.
        sentence: the result, in one sentence with numbers.
        rule: when it counts as shown, with the thresholds.
        detail: the counts of blocks, model by model; may be empty.
        unit: the kind of the cases: ``model`` or ``family``.
        changes: how the verdicts change with acc_norm, and with the second half as late; empty
            where they do not.
    """

    claim: str
    source: str
    cases: Sequence[JudgedCase]
    overall: Rule
    sentence: str
    rule: str
    detail: str = ""
    unit: str = "model"
    changes: Sequence[str] = ()

    @property
    def measured(self) -> list[str]:
        """The models or families in which it could be judged."""
        return [case.name for case in self.cases]

    @property
    def shown(self) -> list[str]:
        """Those of them in which it is shown."""
        return [case.name for case in self.cases if case.verdict is Verdict.SHOWN]

    @property
    def degree(self) -> str:
        """``all``, ``some`` or ``none`` of those measured; ``undecided``; ``unmeasured``."""
        found = [case.verdict for case in self.cases]
        if not found:
            return "unmeasured"
        if Verdict.SHOWN in found:
            return "all" if set(found) == {Verdict.SHOWN} else "some"
        return "none" if Verdict.NOT_SHOWN in found else "undecided"

    @property
    def word(self) -> str:
        """``shown``, ``not shown``, ``undecided`` or ``not measured``: of the claim as a whole."""
        if not self.cases:
            return "not measured"
        return self.overall(case.verdict for case in self.cases).value

    @property
    def verdict(self) -> str:
        """``shown in 3 of 4 models, undecided in 1`` or ``not measured``."""
        if not self.cases:
            return "not measured"
        count = len(self.cases)
        noun = self.unit if count == 1 else {"family": "families"}.get(self.unit, f"{self.unit}s")
        counts = {each: [c.verdict for c in self.cases].count(each) for each in Verdict}
        first, *others = [(each.value, counts[each]) for each in Verdict if counts[each]]
        told = [f"{first[0]} in {first[1]} of {count} {noun}"]
        return ", ".join(told + [f"{word} in {n}" for word, n in others])


def findings(evidence: pl.DataFrame, thresholds: Thresholds | None = None) -> list[Finding]:
    """Judge the claims.

    Args:
        evidence: schema `tables.EVIDENCE`.
        thresholds: when a claim counts as shown.

    Returns:
        One finding each, those of the paper in its order, then ours.
    """
    limits = thresholds or Thresholds()
    judged = _judged(evidence, limits, Setup())
    other = {
        BY_NORM: _judged(evidence, limits, Setup(metric="acc_norm")),
        BY_HALF: _judged(evidence, limits, Setup(late="second half")),
    }
    return [
        replace(
            finding,
            changes=[
                f"{what}: {again[i].verdict}."
                for what, again in other.items()
                if [c.verdict for c in again[i].cases] != [c.verdict for c in finding.cases]
            ],
        )
        for i, finding in enumerate(judged)
    ]


def in_short(judged: Sequence[Finding]) -> list[str]:
    """The findings in two sentences: the claim on late blocks, and how all claims fared.

    Args:
        judged: as `findings` gives them.
    """
    late = judged[0]
    paper = [each for each in judged if each.source != OURS]
    words = ("shown", "not shown", "undecided", "not measured")
    counts = [(sum(each.word == word for each in paper), word) for word in words]
    parts = [f"{count} {'is' if count == 1 else 'are'} {word}" for count, word in counts if count]
    listed = " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)
    refuted = "not shown" in late.verdict
    against = "; “not shown” means that the numbers speak against it" if refuted else ""
    return [
        "The paper’s main claim, memory lost at little cost to every benchmark, is "
        f"{late.verdict}{against}.",
        f"Of its {len(paper)} claims, {listed}.",
    ]


def by_metric(judged: Sequence[Finding]) -> list[str]:
    """The names of the claims whose verdicts differ between acc and acc_norm."""
    return [each.claim for each in judged if any(BY_NORM in change for change in each.changes)]


def _judged(evidence: pl.DataFrame, limits: Thresholds, setup: Setup) -> list[Finding]:
    models = [Measured(rows, setup) for _, rows in evidence.group_by("recipe", maintain_order=True)]
    reciting = [model for model in models if model.recites()]
    return [_finding(claim(reciting, limits), limits) for claim in CLAIMS]


def _finding(claim: Claim, limits: Thresholds) -> Finding:
    cases, level = judged_cases(claim.cases, limits.significance)
    if not cases:
        return Finding(
            claim.claim, claim.source, [], claim.overall, claim.needs, claim.rule, unit=claim.unit
        )
    values: dict[str, list[float]] = {}
    for case in cases:
        for _, condition, judged in case.cells:
            values.setdefault(condition.label, []).append(judged.value)
    told = [
        f"{label} {_range(values[label], write)}"
        for label, write in claim.ranges.items()
        if label in values
    ]
    intervals = plural(sum(len(case.cells) for case in cases), "interval")
    return Finding(
        claim=claim.claim,
        source=claim.source,
        cases=cases,
        overall=claim.overall,
        sentence=f"{claim.opening}, {'; '.join(told)}.",
        rule=f"{claim.rule} Judged by {intervals} at {100 * level:.6g}% each, which hold together "
        f"with {100 * (1 - limits.significance):g}%.",
        detail=_counts(cases, claim.noun),
        unit=claim.unit,
    )


def _counts(cases: Sequence[JudgedCase], noun: str) -> str:
    """``Of the late blocks: a, 5 of 20 shown, 3 undecided; …``; empty where there is one unit."""
    if all(len(case.units) == 1 for case in cases):
        return ""
    told = []
    for case in cases:
        found = list(case.units.values())
        parts = [f"{found.count(Verdict.SHOWN)} of {len(found)} shown"]
        parts += [
            f"{found.count(each)} {each.value}"
            for each in (Verdict.NOT_SHOWN, Verdict.UNDECIDED)
            if each in found
        ]
        told.append(f"{case.name}: {', '.join(parts)}")
    return f"{noun}, model by model: {'; '.join(told)}."


def _range(values: Sequence[float], write: Callable[[float], str]) -> str:
    known = [value for value in values if math.isfinite(value)] or [math.nan]
    low, high = write(min(known)), write(max(known))
    return low if low == high else f"{low} to {high}"
