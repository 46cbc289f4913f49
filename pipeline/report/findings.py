"""What the study shows, in sentences that are computed from the summary.

Three claims are judged, for each model and then over all of them. Every threshold was set before
any result was seen; see `Thresholds`. A claim can be "not shown", or "not measured".

The claims are judged at the *median block* of a range: of the blocks of that range, sorted by
exact match, the middle one (the worse of the two for an even number). It is one intervention, so
its numbers and their intervals belong together, and it is not picked for being extreme.

Source: the claims are those of sections 1 and 4 of arXiv 2501.05078; the third is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from pipeline.report import views
from pipeline.report.text import percent, percent_interval, percent_range, plural


@dataclass(frozen=True)
class Thresholds:
    """When a claim counts as shown, as shares of the baseline.

    Args:
        reduced: memorization is reduced where exact match loses at least this share, and its
            interval lies wholly below the baseline's.
        little_cost: a bypass costs little where the benchmarks lose at most this share of their
            lead over chance, on average.
        collapsed: a quantity has collapsed where it loses at least this share.
        by_length: the fall is a matter of length where the teacher-forced accuracy loses at most
            this share of what exact match loses.
    """

    reduced: float = 0.10
    little_cost: float = 0.10
    collapsed: float = 0.50
    by_length: float = 0.50


@dataclass(frozen=True)
class Finding:
    """One claim and how it fared.

    Args:
        claim: what would be shown.
        shown: the models in which it is.
        measured: the models in which it could be judged.
        sentence: the result, with numbers and intervals.
    """

    claim: str
    shown: Sequence[str]
    measured: Sequence[str]
    sentence: str

    @property
    def verdict(self) -> str:
        """``shown in 4 of 4 models``, ``not shown in any of 4 models`` or ``not measured``."""
        if not self.measured:
            return "not measured"
        of = f"of {plural(len(self.measured), 'model')}"
        return f"shown in {len(self.shown)} {of}" if self.shown else f"not shown in any {of}"


@dataclass(frozen=True)
class _Case:
    """One model at the median block of a range; shares are of the baseline, 0 to 1."""

    model: str
    block: int
    exact: float
    low: float
    high: float
    baseline: float
    baseline_low: float
    baseline_high: float
    exact_kept: float
    tokens_kept: float
    benchmarks_kept: float | None

    @property
    def described(self) -> str:
        """The model, the block, and both exact matches with their intervals."""
        bypassed = percent_interval(self.exact, self.low, self.high)
        whole = percent_interval(self.baseline, self.baseline_low, self.baseline_high)
        return f"{self.model}, block {self.block}: {bypassed} against {whole}"


def findings(summary: pl.DataFrame, thresholds: Thresholds | None = None) -> list[Finding]:
    """Judge the three claims.

    Args:
        summary: as `aggregate.aggregate` gives it.
        thresholds: when a claim counts as shown.

    Returns:
        late blocks, early blocks, length: one finding each, in this order.
    """
    limits = thresholds or Thresholds()
    late = _cases(summary, late=True)
    early = _cases(summary, late=False)
    return [_late(late, limits), _early(early, limits), _length(late, limits)]


def block_range(n_blocks: int, *, late: bool) -> range:
    """The blocks that count as late (the second half) or early (the first quarter), 0-based."""
    return range((n_blocks + 1) // 2, n_blocks) if late else range(max(1, n_blocks // 4))


def _late(cases: Sequence[_Case], limits: Thresholds) -> Finding:
    claim = "Bypassing one late block reduces memorization at little cost to the benchmarks"
    cases = [case for case in cases if case.benchmarks_kept is not None]
    shown = [
        case.model
        for case in cases
        if _reduced(case, limits) and _benchmark_loss(case) <= limits.little_cost
    ]
    if not cases:
        return Finding(claim, [], [], _unmeasured("a late block and a benchmark above chance"))
    weakest = max(cases, key=lambda case: case.exact_kept)
    sentence = (
        f"With the median block of the second half bypassed, exact match on memorized samples is "
        f"{percent_range([c.exact for c in cases])} instead of "
        f"{percent_range([c.baseline for c in cases])}, while the benchmarks keep "
        f"{_range(cases)} of their lead over chance "
        f"(smallest effect on memorization: {weakest.described})."
    )
    return Finding(claim, shown, [case.model for case in cases], sentence)


def _early(cases: Sequence[_Case], limits: Thresholds) -> Finding:
    claim = "Bypassing one early block collapses memorization and benchmarks alike"
    cases = [case for case in cases if case.benchmarks_kept is not None]
    shown = [
        case.model
        for case in cases
        if _reduced(case, limits)
        and 1 - case.exact_kept >= limits.collapsed
        and _benchmark_loss(case) >= limits.collapsed
    ]
    if not cases:
        return Finding(claim, [], [], _unmeasured("a benchmark above chance"))
    weakest = max(cases, key=lambda case: case.exact_kept)
    sentence = (
        f"With the median block of the first quarter bypassed, exact match on memorized samples "
        f"is {percent_range([c.exact for c in cases])}, and the benchmarks keep {_range(cases)} "
        f"of their lead over chance (smallest effect on memorization: {weakest.described})."
    )
    return Finding(claim, shown, [case.model for case in cases], sentence)


def _length(cases: Sequence[_Case], limits: Thresholds) -> Finding:
    claim = "Much of the fall in exact match is its length: it needs every token right in a row"
    cases = [case for case in cases if _reduced(case, limits)]
    shown = [
        case.model
        for case in cases
        if 1 - case.tokens_kept <= limits.by_length * (1 - case.exact_kept)
    ]
    if not cases:
        return Finding(claim, [], [], _unmeasured("a fall in exact match at the median late block"))
    sentence = (
        f"At the same late blocks exact match keeps "
        f"{percent_range([c.exact_kept for c in cases])} of its baseline, but single tokens, each "
        f"predicted after the true ones before it, keep "
        f"{percent_range([c.tokens_kept for c in cases])} of theirs "
        f"({'; '.join(f'{c.model}: {percent(c.tokens_kept)}' for c in cases)})."
    )
    return Finding(claim, shown, [case.model for case in cases], sentence)


def _reduced(case: _Case, limits: Thresholds) -> bool:
    return case.high < case.baseline_low and 1 - case.exact_kept >= limits.reduced


def _benchmark_loss(case: _Case) -> float:
    assert case.benchmarks_kept is not None  # noqa: S101
    return 1 - case.benchmarks_kept


def _range(cases: Sequence[_Case]) -> str:
    return percent_range([c.benchmarks_kept for c in cases if c.benchmarks_kept is not None])


def _unmeasured(needed: str) -> str:
    return f"No model of this study can tell: it takes {needed}."


def _cases(summary: pl.DataFrame, *, late: bool) -> list[_Case]:
    """The median block of the range in each model whose baseline has any exact match."""
    exact = views.memorization(summary, "exact_match")
    shares = views.kept(summary)
    cases = []
    for model, _ in views.models(summary):
        blocks = views.single_blocks(exact.filter(model=model))
        whole = views.baseline(exact.filter(model=model))
        chosen = blocks.filter(pl.col("block").is_in(block_range(blocks.height, late=late)))
        if not chosen.height or not whole.height or whole["low"][0] <= 0:
            continue
        ranked = chosen.sort("value", "block").row((chosen.height - 1) // 2, named=True)
        here = shares.filter(model=model, block=ranked["block"])
        kept = dict(here.filter(kind="memorization").select("measure", "kept").iter_rows())
        if len(kept) < 2:
            continue
        cases.append(
            _Case(
                model=model,
                block=ranked["block"],
                exact=ranked["value"],
                low=ranked["low"],
                high=ranked["high"],
                baseline=whole["value"][0],
                baseline_low=whole["low"][0],
                baseline_high=whole["high"][0],
                exact_kept=kept["exact_match"],
                tokens_kept=kept["teacher_forced_accuracy"],
                benchmarks_kept=here.filter(kind="benchmark")["kept"].mean(),  # type: ignore[arg-type]
            )
        )
    return cases
