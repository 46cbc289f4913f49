"""Theorems 1 and 2 as printed, judged on what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from pipeline.analysis.theory import BOUNDS, MEASURED, VIOLATED

PAPER = "arXiv 2501.05078"


@dataclass(frozen=True)
class Statement:
    """A statement, and how often it holds here.

    Args:
        text: as printed, or ours.
        source: where it is printed.
        failures: number of cases in which it does not hold.
        cases: number of cases that were tested and in which it is defined; 0: none.
        evidence: how far it is off, with numbers; a counterexample where there is one.
        corrected: the statement that holds instead; may be empty.
        undefined: number of further cases, in which it is undefined, such as by a logarithm of a
            negative number.
        printed: whether it is a statement of the source, and not one of ours.
    """

    text: str
    source: str
    failures: int
    cases: int
    evidence: str
    corrected: str = ""
    undefined: int = 0
    printed: bool = True

    @property
    def degree(self) -> str:
        """``all``, ``some`` or ``none`` of the cases; ``undefined``; ``unmeasured``."""
        if not self.cases:
            return "undefined" if self.undefined else "unmeasured"
        if not self.failures:
            return "all"
        return "some" if self.failures < self.cases else "none"

    @property
    def verdict(self) -> str:
        """``holds in all 40``, ``fails in 3 of 40``, ``undefined in all 36``, ``not measured``."""
        if not self.cases:
            return f"undefined in all {self.undefined:,}" if self.undefined else "not measured"
        if not self.failures:
            return f"holds in all {self.cases:,}"
        return f"fails in {self.failures:,} of {self.cases:,}"


def times(ratios: Sequence[float]) -> str:
    """``1.5 to 89 times``, the range of some ratios, to two digits."""
    if not ratios:
        return "an unknown number of times"
    low, high = (_two_digits(each) for each in (min(ratios), max(ratios)))
    return f"{low} times" if low == high else f"{low} to {high} times"


def slack(bounds: pl.DataFrame, theorem: int, bound: str) -> list[float]:
    """Median of bound / measured change, of each model.

    Args:
        bounds: as in `theory.Theory`.
        theorem: 1 or 2.
        bound: a column, or of `theory.BOUNDS`.
    """
    measured = pl.col(MEASURED[theorem])
    column = BOUNDS[theorem].get(bound, bound)
    medians = (
        bounds.filter(measured > 0)
        .group_by("model")
        .agg((pl.col(column) / measured).median().alias("slack"))["slack"]
    )
    return sorted(medians.drop_nulls())


def violations(bounds: pl.DataFrame, column: str) -> tuple[int, int]:
    """The number of true values in a boolean column, and the number of all its values."""
    known = bounds[column].drop_nulls()
    return int(known.sum()), len(known)


def theorem_statements(bounds: pl.DataFrame) -> list[Statement]:
    """The statements about one bypassed block, in the order of the paper.

    Args:
        bounds: as in `theory.Theory`; with rows.
    """
    return [*_first(bounds), *_second(bounds), *_growth(bounds)]


def _first(bounds: pl.DataFrame) -> list[Statement]:
    generous = violations(bounds, "printed_generous_violated")
    normalized = violations(bounds, "printed_normalized_violated")
    return [
        Statement(
            "Theorem 1: ‖D‖ ≤ (1 + ‖W‖) M (1 − α) + ‖Δε‖, with M = max ‖xₙ − xᵢ‖",
            f"{PAPER}, section 3.3",
            *violations(bounds, VIOLATED[1]["printed"]),
            f"The bound is {times(slack(bounds, 1, 'printed'))} the change, in the median of each "
            f"model. With the smallest own weight of a head for α it fails in {generous[0]:,} "
            f"cases, with W fitted after the norm in {normalized[0]:,}. It is proved for a toy "
            "block only: an output projection of 3I breaks it.",
            "token by token through I + W, a weight for each head (T1)",
        ),
        Statement(
            "Theorem 1, corrected: seven bounds for the blocks of real models",
            "ours",
            *violations(bounds, VIOLATED[1]["corrected"]),
            f"The best is {times(slack(bounds, 1, 'corrected'))} the change, in the median of each "
            f"model; that of norms and spread {times(slack(bounds, 1, 'coarse'))}; that from the "
            f"weights alone {times(slack(bounds, 1, 'bound_from_weights'))}.",
            printed=False,
        ),
    ]


def _second(bounds: pl.DataFrame) -> list[Statement]:
    return [
        Statement(
            "Theorem 2: ‖D′‖ ≤ (1 + ‖W‖)(1 + αₙ) ‖D‖",
            f"{PAPER}, section 3.3",
            *violations(bounds, VIOLATED[2]["printed"]),
            f"The bound is {times(slack(bounds, 2, 'printed'))} the change, in the median of each "
            "model. Its proof ends with a term that the statement leaves out: an MLP 4 relu(z − 2) "
            "breaks it at its kink.",
            "+ ‖Δε′‖, and what the other tokens and the changed weights bring",
        ),
        Statement(
            "Theorem 2 as its proof ends: the same + ‖Δε′‖",
            f"{PAPER}, section A.1",
            *violations(bounds, "next_proved_violated"),
            f"The bound is {times(slack(bounds, 2, 'next_proved'))} the change. The proof has only "
            "the last token change, and keeps the next block’s attention weights.",
            "token by token, changed weights included (T2)",
        ),
        Statement(
            "Theorem 2, corrected: two bounds",
            "ours",
            *violations(bounds, VIOLATED[2]["corrected"]),
            f"Token by token {times(slack(bounds, 2, 'corrected'))} the change, in the median of "
            f"each model; of norms and a diameter {times(slack(bounds, 2, 'coarse'))}.",
            printed=False,
        ),
    ]


def _growth(bounds: pl.DataFrame) -> list[Statement]:
    moved = bounds.filter(pl.col("next_change").is_not_null())
    grown = moved.select(pl.col("next_change") / pl.col("change"))["next_change"]
    later = bounds.select(
        "model", "sample_id", pl.col("block").cast(pl.Int32) - 1, pl.col("change").alias("later")
    )
    pairs = moved.with_columns(pl.col("block").cast(pl.Int32)).join(
        later, on=["model", "sample_id", "block"], maintain_order="left"
    )
    return [
        Statement(
            "A difference grows in the next block",
            f"{PAPER}, read from both theorems",
            int((grown <= 1).sum()),
            moved.height,
            f"In the median it becomes {times([grown.median()] if len(grown) else [])} as large. "  # type: ignore[list-item]
            "It does not follow from bounds: an MLP −0.9 z shrinks it.",
        ),
        Statement(
            "Of two blocks in a row, the bypass of the earlier makes the larger difference",
            f"{PAPER}, read from both theorems",
            int((pairs["next_change"] <= pairs["later"]).sum()),
            pairs.height,
            "Both differences are taken after the later block. It does not follow from two upper "
            "bounds.",
        ),
    ]


def _two_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
