"""The section that says whether scorers find the block that learned the memorized samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from pipeline.analysis.localization import falls, grades
from pipeline.analysis.text import percent, percent_interval, plural

SECTION = "Does a sweep find memory where it is?"

PARTS = {"attention": "attention learned", "mlp": "MLP learned", "both": "both learned"}

SCORERS = {
    ("identity", "exact_match"): "identity: recitals lost",
    ("identity", "log_prob"): "identity: log-probability lost",
    ("identity", "log_prob_minus_control"): "identity: log-probability beyond control",
    ("zero", "exact_match"): "attention zero: recitals lost",
    ("zero", "log_prob"): "attention zero: log-probability lost",
    ("zero", "log_prob_minus_control"): "attention zero: log-probability beyond control",
    ("mlp-zero", "exact_match"): "MLP zero: recitals lost",
    ("mlp-zero", "log_prob"): "MLP zero: log-probability lost",
    ("mlp-zero", "log_prob_minus_control"): "MLP zero: log-probability beyond control",
    ("skip", "exact_match"): "block skipped: recitals lost",
    ("skip", "log_prob"): "block skipped: log-probability lost",
    ("skip", "log_prob_minus_control"): "block skipped: log-probability beyond control",
    ("divergence", "kl"): "divergence under identity",
    ("gradient", "attention"): "gradient × attention output",
    ("gradient", "mlp"): "gradient × MLP output",
    ("gradient", "sum"): "gradient × both outputs",
}
"""Scorer and quantity -> its name on the page, in the order of figure and table."""


@dataclass(frozen=True)
class Localized:
    """The content of the section.

    Args:
        opening: the result in one or two sentences, for the top of the page; may be empty.
        sentences: the results, one sentence each.
        heading: of the table of all scorers.
        rows: of that table.
    """

    opening: str
    sentences: Sequence[str]
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]


def localized(scores: pl.DataFrame) -> Localized:
    """The section's words and its table.

    Args:
        scores: as `localization.scores` makes it.
    """
    graded = grades(scores)
    parts = [part for part in PARTS if part in graded["part"]]
    each = graded.select("scorer", "quantity").unique(maintain_order=True).to_dicts()
    heading = ["scorer"]
    for part in parts:
        heading += [f"{PARTS[part]}: recall at 1", "mean reciprocal rank"]
    rows = []
    for scorer in sorted(each, key=_order):
        cells = [called(scorer)]
        for part in parts:
            [row] = graded.filter(part=part, **scorer).iter_rows(named=True)
            cells.append(percent_interval(row["recall"], row["recall_low"], row["recall_high"]))
            low, high = (f"{row[f'reciprocal_{end}']:.2f}" for end in ("low", "high"))
            cells.append(f"{row['reciprocal']:.2f} ({low}–{high})")
        rows.append(cells)
    chance = graded.row(0, named=True)
    by_lot = [percent(chance["recall_chance"]), f"{chance['reciprocal_chance']:.2f}"]
    rows.append(["chance", *by_lot * len(parts)])
    return Localized(_opening(scores), _sentences(scores, graded, parts), heading, rows)


def _opening(scores: pl.DataFrame) -> str:
    ends = _stopped(falls(scores))
    if ends.keys() != {True, False}:
        return ""
    return (
        "One block of each model learned the memorized samples. Bypassing it stops at least half "
        f"of the recitals in {ends[True]} of the models. Bypassing another block, which learned "
        f"nothing, does so in {ends[False]} of the cases."
    )


def _sentences(scores: pl.DataFrame, graded: pl.DataFrame, parts: Sequence[str]) -> list[str]:
    models = scores.select("model", "part", "exact_match").unique(maintain_order=True)
    made = [
        f"In {plural(models.height, 'model')} one block alone learned the memorized samples; all "
        "other weights are those of a model that has never seen them. With nothing edited these "
        f"models recite {_span(models['exact_match'])} of the samples."
    ]
    fell = falls(scores, "part")
    for part in parts:
        own = graded.filter(part=part, scorer="identity", quantity="exact_match")
        of_part = graded.filter(part=part)
        top = of_part.filter(pl.col("recall") == pl.col("recall").max()).to_dicts()
        best = "; ".join(map(called, sorted(top, key=_order)))
        words = f"Where {PARTS[part]}: "
        if own.height:
            [row] = own.iter_rows(named=True)
            words += (
                "the bypass, judged by recitals as in the paper, names the block in "
                f"{percent_interval(row['recall'], row['recall_low'], row['recall_high'])} of "
                f"{plural(row['n'], 'model')}; "
            )
        words += (
            f"the best of {plural(of_part.height, 'scorer')} ({best}) in "
            f"{percent_interval(*(top[0][f'recall{end}'] for end in ('', '_low', '_high')))}."
        )
        ends = _stopped(fell.filter(part=part))
        if ends.keys() == {True, False}:
            words += (
                " A bypass ends at least half of the recitals at "
                f"{ends[True]} of the blocks that learned, and at {ends[False]} of those that did "
                "not."
            )
        made.append(words)
    others = falls(scores, "block").filter(~pl.col("here"), scorer="identity").sort("block")
    if others.height:
        shares = ", ".join(
            f"block {row['block']} {percent(row['share'])}" for row in others.to_dicts()
        )
        made.append(
            "The depth decides where another block learned. A bypass then ends at least half of "
            f"the recitals at {shares} of the time."
        )
    return made


def _order(scorer: dict[str, str]) -> int:
    """The place of a scorer in figure and table; scorers without a name on the page come last."""
    key = scorer["scorer"], scorer["quantity"]
    return list(SCORERS).index(key) if key in SCORERS else len(SCORERS)


def _stopped(fell: pl.DataFrame) -> dict[bool, str]:
    """How often a bypass stops half of the recitals: at blocks that learned, and at others."""
    return {
        row["here"]: percent_interval(row["share"], row["low"], row["high"])
        for row in fell.filter(scorer="identity").iter_rows(named=True)
    }


def _span(column: pl.Series) -> str:
    low, high = column.min(), column.max()
    return percent(low) if low == high else f"{percent(low)} to {percent(high)}"  # type: ignore[arg-type]


def called(row: dict[str, str]) -> str:
    """The page's name of a scorer and its quantity."""
    key = row["scorer"], row["quantity"]
    return SCORERS.get(key, " ".join(key))
