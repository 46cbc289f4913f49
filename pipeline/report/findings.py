"""What the study shows, in sentences that are computed from the summary.

The paper's five claims and one of ours are judged, for each model (the one on size for each
family) and then over all of them. Every threshold was set before any result was seen; see
`Thresholds`. That block 0 does not count as early was decided later: the paper warns of it. A
claim can be "not shown", or "not measured".

The claims on late and early blocks and on length are judged at the *median block* of a range: of
the blocks of that range, sorted by exact match, the middle one (the worse of the two for an even
number). It is one intervention, so its numbers and their intervals belong together, and it is not
picked for being extreme. The claims on size and on reasoning are judged at the mean over all single
blocks, whose interval ends are the means of the blocks' ends: as wide as if all blocks erred
together, so never too narrow.

Source: sections 4.2 and A.3 of arXiv 2501.05078; the last claim is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

import polars as pl

from pipeline.report import views
from pipeline.report.text import percent, percent_interval, percent_range, plural

OURS = "ours"


@dataclass(frozen=True)
class Thresholds:
    """When a claim counts as shown, as shares of the baseline.

    Args:
        significance: a fall in exact match counts where its p-value, adjusted for all blocks of
            the model, is at most this.
        reduced: memorization is reduced where exact match also loses at least this share.
        little_cost: a bypass costs little where the benchmarks lose at most this share of their
            lead over chance, on average.
        collapsed: a quantity has collapsed where it loses at least this share.
        resists: one resists more than another where, on average over the blocks, it keeps at least
            this much more of its baseline, and the interval of that difference lies above 0.
        near_zero: exact match is near zero where the upper end of its interval is at most this
            share of the baseline.
        by_length: the fall is a matter of length where the teacher-forced accuracy loses at most
            this share of what exact match loses.
    """

    significance: float = 0.05
    reduced: float = 0.10
    little_cost: float = 0.10
    collapsed: float = 0.50
    resists: float = 0.05
    near_zero: float = 0.05
    by_length: float = 0.50


@dataclass(frozen=True)
class Finding:
    """One claim and how it fared.

    Args:
        claim: what would be shown.
        source: where the paper claims it, or `OURS`.
        shown: the models (or families) in which it is.
        measured: the models (or families) in which it could be judged.
        sentence: the result, in one sentence with numbers.
        detail: what the sentence leaves out, such as the weakest case with its interval; may be
            empty.
        rule: when it counts as shown, with the thresholds.
        statistic: what the verdict was read off, for each of `measured`; empty where there is none.
        unit: what `shown` and `measured` name: ``model`` or ``family``.
    """

    claim: str
    source: str
    shown: Sequence[str]
    measured: Sequence[str]
    sentence: str
    rule: str
    statistic: str
    unit: str = "model"
    detail: str = ""

    @property
    def degree(self) -> str:
        """``all``, ``some`` or ``none`` of those measured; ``unmeasured``."""
        if not self.measured:
            return "unmeasured"
        if not self.shown:
            return "none"
        return "all" if len(self.shown) == len(self.measured) else "some"

    @property
    def verdict(self) -> str:
        """``shown in 4 of 4 models``, ``not shown in any of 4 models`` or ``not measured``."""
        if not self.measured:
            return "not measured"
        count = len(self.measured)
        families = "1 family" if count == 1 else f"{count} families"
        of = f"of {families if self.unit == 'family' else plural(count, self.unit)}"
        return f"shown in {len(self.shown)} {of}" if self.shown else f"not shown in any {of}"


@dataclass(frozen=True)
class _Estimate:
    """A number and its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def percent(self) -> str:
        return percent_interval(self.value, self.low, self.high)

    @property
    def points(self) -> str:
        """A difference of shares, in percentage points."""
        low, high = f"{100 * self.low:+.1f}", f"{100 * self.high:+.1f}"
        return f"{100 * self.value:+.1f} points [{low}, {high}]"


@dataclass(frozen=True)
class _Case:
    """One model at the median block of a range; shares are of the baseline, 0 to 1."""

    model: str
    block: int
    exact: _Estimate
    baseline: _Estimate
    difference: _Estimate
    p_holm: float
    exact_kept: float
    tokens_kept: float
    benchmarks_kept: float | None

    @property
    def described(self) -> str:
        """The model, the block, and both exact matches with their intervals."""
        return f"{self._where}: {self.exact.percent} against {self.baseline.percent}"

    @property
    def statistic(self) -> str:
        """How exact match changed, with its interval and p-value, and what is left."""
        left = [f"exact match keeps {percent(self.exact_kept)} of its baseline"]
        left.append(f"single tokens {percent(self.tokens_kept)}")
        if self.benchmarks_kept is not None:
            left.append(f"benchmarks {percent(self.benchmarks_kept)} of their lead")
        p = f"p = {self.p_holm:.2g} after Holm"
        return f"{self._where}: {self.difference.points}, {p}; {', '.join(left)}"

    @property
    def _where(self) -> str:
        return f"{self.model}, block {self.block}"


def findings(summary: pl.DataFrame, thresholds: Thresholds | None = None) -> list[Finding]:
    """Judge the six claims.

    Args:
        summary: as `aggregate.aggregate` gives it.
        thresholds: when a claim counts as shown.

    Returns:
        late blocks, early blocks, size, reasoning, quartiles, length: one finding each, in this
        order.
    """
    limits = thresholds or Thresholds()
    late = _cases(summary, late=True)
    early = _cases(summary, late=False)
    return [
        _late(late, limits),
        _early(early, limits),
        _size(summary, limits),
        _reasoning(summary, limits),
        _quartiles(summary, limits),
        _length(summary, late, limits),
    ]


def in_short(judged: Sequence[Finding]) -> list[str]:
    """The findings in three sentences: late blocks, early blocks, and how the claims fared.

    Args:
        judged: as `findings` gives them.
    """
    late, early, *_ = judged
    paper = [each for each in judged if each.source != OURS]
    parts = [
        f"{count} {'is' if count == 1 else 'are'} {_DEGREES[degree]}"
        for degree in _DEGREES
        if (count := sum(each.degree == degree for each in paper))
    ]
    [length] = [each for each in judged if each.source == OURS]
    exaggerates = (
        f"; that exact match exaggerates the loss is {length.verdict}" if length.shown else ""
    )
    judgement = f" (the paper's claim, little cost to the benchmarks, is {late.verdict})."
    return [
        late.sentence[:-1] + judgement if late.measured else late.sentence,
        early.sentence,
        f"Of the {len(paper)} claims of the paper that are judged here, {_listed(parts)}"
        f"{exaggerates}.",
    ]


_DEGREES = {
    "all": "shown in every model or family that can tell",
    "some": "shown in some",
    "none": "shown in none",
    "unmeasured": "not measured",
}


def block_range(n_blocks: int, *, late: bool) -> range:
    """The blocks that count as late (the second half) or early (the first quarter), 0-based.

    Block 0 is not among the early ones: the paper warns against building on it.
    """
    return (
        range((n_blocks + 1) // 2, n_blocks)
        if late
        else range(1, min(n_blocks, max(2, n_blocks // 4)))
    )


def _late(cases: Sequence[_Case], limits: Thresholds) -> Finding:
    cases = [case for case in cases if case.benchmarks_kept is not None]
    shown = [
        case.model
        for case in cases
        if _reduced(case, limits) and _benchmark_loss(case) <= limits.little_cost
    ]
    if cases:
        sentence = (
            f"With the median block of the second half bypassed, exact match on memorized samples "
            f"is {percent_range([c.exact.value for c in cases])} instead of "
            f"{percent_range([c.baseline.value for c in cases])}, while the benchmarks keep "
            f"{_range(cases)} of their lead over chance."
        )
        detail = _least_affected(cases)
    else:
        sentence, detail = _unmeasured("a late block and a benchmark above chance"), ""
    return Finding(
        claim="Bypassing one late block reduces memorization at little cost to the benchmarks",
        source="Section 4.2.1, Figure 1",
        shown=shown,
        measured=[case.model for case in cases],
        sentence=sentence,
        rule=(
            f"At the median block of the second half, exact match {_falls(limits)}, and the "
            f"benchmarks lose at most {_share(limits.little_cost)} of their lead over chance, on "
            "average."
        ),
        statistic=_joined([case.statistic for case in cases]),
        detail=detail,
    )


def _early(cases: Sequence[_Case], limits: Thresholds) -> Finding:
    cases = [case for case in cases if case.benchmarks_kept is not None]
    shown = [
        case.model
        for case in cases
        if _reduced(case, limits)
        and 1 - case.exact_kept >= limits.collapsed
        and _benchmark_loss(case) >= limits.collapsed
    ]
    if cases:
        sentence = (
            f"With the median block of the first quarter bypassed, exact match on memorized "
            f"samples is {percent_range([c.exact.value for c in cases])}, and the benchmarks keep "
            f"{_range(cases)} of their lead over chance."
        )
        detail = _least_affected(cases)
    else:
        sentence, detail = _unmeasured("a benchmark above chance"), ""
    return Finding(
        claim="Bypassing one early block collapses memorization and benchmarks alike",
        source="Section 4.2.1, Figure 1",
        shown=shown,
        measured=[case.model for case in cases],
        sentence=sentence,
        rule=(
            f"At the median block of the first quarter, exact match {_falls(limits)}, and both it "
            f"and the benchmarks' lead over chance lose at least {_share(limits.collapsed)}."
        ),
        statistic=_joined([case.statistic for case in cases]),
        detail=detail,
    )


def _least_affected(cases: Sequence[_Case]) -> str:
    """The case that recites most, where there is one."""
    most = max(case.exact_kept for case in cases)
    first, *ties = [case for case in cases if case.exact_kept == most]
    return "" if ties else f"Of these models the least affected is {first.described}."


def _size(summary: pl.DataFrame, limits: Thresholds) -> Finding:
    kept = views.kept(summary).filter(measure="exact_match")
    sizes = summary.select("model", "parameters").unique().drop_nulls()
    rows = kept.join(sizes, on="model", maintain_order="left")
    shown, measured, statistics, gaps = [], [], [], []
    for family in rows["family"].unique(maintain_order=True):
        of_family = rows.filter(family=family)
        least, most = (of_family["parameters"].min(), of_family["parameters"].max())
        if least == most:
            continue
        small, large = (of_family.filter(parameters=each) for each in (least, most))
        one, other = _over_blocks(large, "kept"), _over_blocks(small, "kept")
        # the two see the same samples, so that their errors may go any way together
        gap = _Estimate(one.value - other.value, one.low - other.high, one.high - other.low)
        measured.append(family)
        gaps.append(gap.value)
        if gap.value >= limits.resists and gap.low > 0:
            shown.append(family)
        statistics.append(
            f"{family}: {_names(large)} {one.percent}, {_names(small)} {other.percent}, "
            f"{gap.points}"
        )
    if measured:
        sentence = (
            "Averaged over the bypasses of single blocks, the largest model of a family keeps "
            f"{_points_range(gaps)} more of its exact match on memorized samples than the smallest."
        )
        detail = f"What they keep: {_joined(statistics)}."
    else:
        sentence, detail = (
            "No family of this study can tell: it takes two models of different size that recite.",
            "",
        )
    return Finding(
        claim="Larger models resist more",
        source="Section 4.2.2, Figure 3",
        shown=shown,
        measured=measured,
        sentence=sentence,
        rule=(
            "Averaged over all single blocks, the largest model of a family keeps at least "
            f"{_in_points(limits.resists)} more of its exact match than the smallest, and the "
            "interval of that difference lies above 0."
        ),
        statistic=_joined(statistics),
        unit="family",
        detail=detail,
    )


def _reasoning(summary: pl.DataFrame, limits: Thresholds) -> Finding:
    drops = views.drops(summary)
    shown, measured, statistics = [], [], []
    opposite, raw_shown = [], []
    spans: dict[tuple[str, str], list[float]] = {}
    for model, _ in views.models(summary):
        parts = {
            (scale, ability): drops.filter(model=model, scale=scale, ability=ability)
            for scale in views.SCALES
            for ability in views.ABILITIES
        }
        if not all(part.height for part in parts.values()):
            continue
        over = {key: _over_blocks(part, "drop") for key, part in parts.items()}
        raw, corrected = (
            _unlike(over[scale, "language"], over[scale, "reasoning"]) for scale in views.SCALES
        )
        measured.append(model)
        for key, estimate in over.items():
            spans.setdefault(key, []).append(estimate.value)
        if corrected.value >= limits.resists and corrected.low > 0:
            shown.append(model)
        if raw.value >= limits.resists and raw.low > 0:
            raw_shown.append(model)
        if corrected.high < 0:
            opposite.append(model)
        statistics.append(
            f"{model}: language understanding drops {over['corrected', 'language'].percent}, "
            f"reasoning {over['corrected', 'reasoning'].percent}, {corrected.points} "
            f"(of the scores themselves: {raw.points})"
        )
    if measured:
        sentence = (
            "Averaged over the bypasses of single blocks, the lead over chance drops by "
            f"{percent_range(spans['corrected', 'language'])} in language understanding "
            f"(HellaSwag, LAMBADA) and by {percent_range(spans['corrected', 'reasoning'])} in "
            "reasoning (PIQA, ARC-Easy)."
        )
        detail = (
            "The scores themselves, as the paper takes them, drop by "
            f"{percent_range(spans['raw', 'language'])} in language understanding and by "
            f"{percent_range(spans['raw', 'reasoning'])} in reasoning; by them the same rule would "
            f"be met in {len(raw_shown)} of {plural(len(measured), 'model')}. They are not judged, "
            "since a score does not fall below chance, which is higher in reasoning. The opposite, "
            f"an interval wholly below 0, is seen in {len(opposite)}."
        )
    else:
        sentence, detail = _unmeasured("benchmarks of both kinds, above chance"), ""
    return Finding(
        claim="Reasoning resists more than language understanding",
        source="Section 4.2.4, Figures 6 and A22",
        shown=shown,
        measured=measured,
        sentence=sentence,
        rule=(
            "Averaged over all single blocks and the benchmarks of a kind, the lead over chance "
            f"drops at least {_in_points(limits.resists)} more in language understanding than in "
            "reasoning, and the interval of that difference lies above 0."
        ),
        statistic=_joined(statistics),
        detail=detail,
    )


def _quartiles(summary: pl.DataFrame, limits: Thresholds) -> Finding:
    exact = views.memorization(summary, "exact_match")
    shown, measured, statistics, values = [], [], [], []
    for model, _ in views.models(summary):
        rows = exact.filter(model=model)
        whole = views.baseline(rows)
        quartiles = views.quartiles(rows)
        if not quartiles.height or not whole.height or whole["low"][0] <= 0:
            continue
        most = quartiles.sort("high").row(-1, named=True)
        measured.append(model)
        values += quartiles["value"].to_list()
        if most["high"] / whole["value"][0] <= limits.near_zero:
            shown.append(model)
        highest = _Estimate(most["value"], most["low"], most["high"])
        statistics.append(f"{model}: at most {highest.percent}, {most['intervention']}")
    if measured:
        sentence = (
            "With a quarter of the blocks bypassed at once, exact match on memorized samples is "
            f"{percent_range(values)}."
        )
        detail = f"{_joined(statistics)}."
    else:
        sentence, detail = _unmeasured("four blocks and a baseline that recites"), ""
    return Finding(
        claim="Bypassing any quarter of the blocks at once brings exact match near zero",
        source="Section A.3.2, Figures A12–A17",
        shown=shown,
        measured=measured,
        sentence=sentence,
        rule=(
            "With each quarter of the blocks, the upper end of the interval of exact match is at "
            f"most {_share(limits.near_zero)} of the baseline."
        ),
        statistic=_joined(statistics),
        detail=detail,
    )


def _length(summary: pl.DataFrame, cases: Sequence[_Case], limits: Thresholds) -> Finding:
    cases = [case for case in cases if _reduced(case, limits)]
    shown = [
        case.model
        for case in cases
        if 1 - case.tokens_kept <= limits.by_length * (1 - case.exact_kept)
    ]
    if cases:
        sentence = (
            f"At the same late blocks exact match keeps "
            f"{percent_range([c.exact_kept for c in cases])} of its baseline, but single tokens, "
            f"each predicted after the true ones before it, keep "
            f"{percent_range([c.tokens_kept for c in cases])} of theirs."
        )
        floor = _control_tokens(summary, [case.model for case in cases])
        detail = f"{_joined([f'{c.model}: {percent(c.tokens_kept)}' for c in cases])}.{floor}"
    else:
        sentence, detail = _unmeasured("a fall in exact match at the median late block"), ""
    return Finding(
        claim="Exact match exaggerates the loss: it needs every token of a suffix right in a row",
        source=OURS,
        shown=shown,
        measured=[case.model for case in cases],
        sentence=sentence,
        rule=(
            f"At the median block of the second half, where exact match {_falls(limits)}, single "
            f"tokens lose at most {_share(limits.by_length)} of what exact match loses."
        ),
        statistic=_joined([case.statistic for case in cases]),
        detail=detail,
    )


def _control_tokens(summary: pl.DataFrame, models: Sequence[str]) -> str:
    """What single tokens reach where nothing is memorized: the floor that they fall to."""
    rows = views.baseline(views.memorization(summary, "teacher_forced_accuracy", "control"))
    values = rows.filter(pl.col("model").is_in(models))["value"].to_list()
    if not values:
        return ""
    return (
        f" Not all of that is memory: of control samples, with nothing bypassed, "
        f"{percent_range(values)} of the tokens are right."
    )


def _reduced(case: _Case, limits: Thresholds) -> bool:
    return (
        case.difference.value < 0
        and case.p_holm <= limits.significance
        and 1 - case.exact_kept >= limits.reduced
    )


def _falls(limits: Thresholds) -> str:
    return (
        f"falls by at least {_share(limits.reduced)} of its baseline, with a p-value of at most "
        f"{limits.significance:g} after Holm's adjustment for all blocks"
    )


def _benchmark_loss(case: _Case) -> float:
    assert case.benchmarks_kept is not None  # noqa: S101
    return 1 - case.benchmarks_kept


def _range(cases: Sequence[_Case]) -> str:
    return percent_range([c.benchmarks_kept for c in cases if c.benchmarks_kept is not None])


def _unmeasured(needed: str) -> str:
    return f"No model of this study can tell: it takes {needed}."


def _joined(parts: Sequence[str]) -> str:
    return "; ".join(parts)


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def _points_range(shares: Sequence[float]) -> str:
    """``3 to 12 percentage points`` from the smallest to the largest."""
    low, high = f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"
    points = low if low == high else f"{low} to {high}"
    return f"{points} percentage points"


def _names(rows: pl.DataFrame) -> str:
    return ", ".join(rows["model"].unique(maintain_order=True))


def _share(threshold: float) -> str:
    return f"{100 * threshold:g}%"


def _in_points(share: float) -> str:
    return f"{100 * share:g} percentage points"


def _over_blocks(rows: pl.DataFrame, column: str) -> _Estimate:
    """The mean over blocks (and models), with the means of the intervals' ends."""
    value, low, high = rows.select(pl.mean(column, "low", "high")).row(0)
    return _Estimate(value, low, high)


def _unlike(one: _Estimate, other: _Estimate) -> _Estimate:
    """The difference of two estimates from different documents, which err on their own."""
    value = one.value - other.value
    below = hypot(one.value - one.low, other.high - other.value)
    above = hypot(one.high - one.value, other.value - other.low)
    return _Estimate(value, value - below, value + above)


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
        difference = ranked["difference"]
        cases.append(
            _Case(
                model=model,
                block=ranked["block"],
                exact=_Estimate(ranked["value"], ranked["low"], ranked["high"]),
                baseline=_Estimate(*whole.select("value", "low", "high").row(0)),
                difference=_Estimate(
                    difference,
                    _first(ranked["difference_low"], difference),
                    _first(ranked["difference_high"], difference),
                ),
                p_holm=_first(ranked["p_holm"], 1.0),
                exact_kept=kept["exact_match"],
                tokens_kept=kept["teacher_forced_accuracy"],
                benchmarks_kept=here.filter(kind="benchmark")["kept"].mean(),  # type: ignore[arg-type]
            )
        )
    return cases


def _first(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
