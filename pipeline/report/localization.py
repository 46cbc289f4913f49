"""The section that says whether scorers find the places that learned the memorized samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.analysis.localization import ALL, CLUSTER, falls, means, merits, removals
from pipeline.localization.schema import ORACLE, RANDOM
from pipeline.localization.schemas import LOCALIZATION, REMOVAL
from pipeline.report.numbers import SHARE, Number, Sentence, spread
from pipeline.workflow import tables

SECTION = "Where is it?"
TABLE, DELETED = "localization", "removal"
FEW = 6
"""With fewer trained bases, their differences are hardly known."""
MOST_NAMED = 4
"""Scorers of equal rank that a sentence names."""
RECITED = 0.9
"""Models that recite less are named."""

_EDITS = {
    "identity": "identity",
    "zero": "attention zero",
    "mlp-zero": "MLP zero",
    "skip": "block skipped",
}
_LOST = {
    "exact_match": "recitals lost",
    "log_prob": "log-probability lost",
    "log_prob_minus_control": "log-probability beyond control",
}
SCORERS = {
    f"{edit}.{loss}": f"{done}: {lost}"
    for edit, done in _EDITS.items()
    for loss, lost in _LOST.items()
} | {
    "divergence.kl": "divergence under identity",
    "gradient.attention": "gradient × attention output",
    "gradient.mlp": "gradient × MLP output",
    "gradient.sum": "gradient × both outputs",
}
"""Scorer -> its name on the page; others are shown as the table has them."""


@dataclass(frozen=True)
class Localized:
    """The content of the section.

    Args:
        opening: one sentence with the result.
        sentences: what was found, and what it rests on.
        heading, rows: of the matrix, scorers by truths.
        deleted_heading, deleted_rows: of the table of what deletion does.
    """

    opening: Sentence
    sentences: Sequence[Sentence]
    heading: Sequence[str]
    rows: Sequence[Sequence[Number | str]]
    deleted_heading: Sequence[str]
    deleted_rows: Sequence[Sequence[Number | str]]


def read_localized(data: Path) -> Localized:
    """The section of a study's tables.

    Args:
        data: the study's folder, ``data/STUDY``.

    Raises:
        InputError: a table does not fit its schema.
    """
    found = tables.read(data / f"{TABLE}.parquet", LOCALIZATION)
    return localized(found, tables.read(data / f"{DELETED}.parquet", REMOVAL))


def localized(found: pl.DataFrame, removal: pl.DataFrame) -> Localized:
    """The section's words and its tables.

    Args:
        found: schema `LOCALIZATION`.
        removal: schema `REMOVAL`.
    """
    graded = means(merits(found), ["hit", "average_precision"], ["rank", "chance", "chance_rank"])
    left = removals(removal)  # of no model, if none recites
    deleted = left if left.is_empty() else means(left, ["clean", "removed"], ["lost"])
    truths = [ALL, *found["truth"].unique(maintain_order=True)]
    order = graded.filter(truth=ALL).sort("hit", "average_precision", "scorer", descending=True)
    scorers = order["scorer"].to_list()
    grades = {(row["truth"], row["scorer"]): row for row in graded.iter_rows(named=True)}
    losses = {(row["truth"], row["scorer"]): row for row in deleted.iter_rows(named=True)}
    rows: list[list[Number | str]] = []
    deleted_rows: list[list[Number | str]] = []
    for scorer in scorers:
        cells = [grades.get((truth, scorer)) for truth in truths]
        first = cells[0]
        assert first is not None  # noqa: S101  for the type checker
        row: list[Number | str] = [called(scorer), placed(graded, first)]
        row += [_number(cell, "hit") if cell else "–" for cell in cells]
        rows.append([*row, _number(first, "average_precision"), _number(first, "rank", "")])
        if (lost := losses.get((ALL, scorer))) is not None:
            values = [_number(lost, name, table=DELETED) for name in ("clean", "removed", "lost")]
            deleted_rows.append([called(scorer), placed(deleted, lost), *values])
    any_scorer = graded.unique("truth", keep="first", maintain_order=True)
    nothing = {row["truth"]: row for row in any_scorer.iter_rows(named=True)}
    by_chance = [_number(nothing[truth], "chance") for truth in truths]
    rows.append(["chance", "", *by_chance, "", _number(nothing[ALL], "chance_rank", "")])
    heading = ["scorer", "rank", *truths, "average precision", "rank of the truth"]
    deleted_heading = ["scorer", "rank", "removed at no cost", "recitals removed", "accuracy lost"]
    best = order.filter(~pl.col("scorer").is_in([ORACLE, RANDOM])).row(0, named=True)
    opening = Sentence(
        _OPENING,
        {
            "models": _count("models", best["n"], "models"),
            "best": _tied(order, best),
            "hit": _number(best, "hit"),
            "chance": _number(best, "chance"),
        },
    )
    sentences = [
        *_basis(found, removal),
        *(_of_truth(graded, truth) for truth in truths[1:]),
        *_of_falls(found, removal),
        *_of_deletion(deleted),
    ]
    return Localized(opening, sentences, heading, rows, deleted_heading, deleted_rows)


_OPENING = (
    "The places that learned the memorized samples are known in {{ models|plural('model') }}. The "
    "best scorer ({{ best }}) ranks one of them first in {{ hit }} of the models; chance is "
    "{{ chance }}."
)
_BASIS = (
    "{{ models|plural('model') }} continue from {{ bases|plural('trained base') }}, and recite "
    "{{ recited|span(' to ') }} of the samples."
    "{% if weak %} Less than nine tenths: {{ weak|join(', ') }}.{% endif %}"
)
_FEW = (
    "Intervals are clustered by trained base. {{ bases|plural('base') }} cannot rank scorers, "
    "so the order describes these models alone."
)
_TRUTH = (
    "Where {{ truth }} learned, the best scorer ({{ best }}) is right in {{ hit }}; chance is "
    "{{ chance }}."
)
_FALLS = (
    "A bypass ends at least half of the recitals at {{ here }} of the blocks that learned, and at "
    "{{ elsewhere }} of those that did not."
)
_DEPTH = (
    "The depth decides where another block learned. A bypass then ends at least half of the "
    "recitals at {% for block, share in blocks %}block {{ block }} {{ share|percent }}"
    "{{ ', ' if not loop.last }}{% endfor %} of the time."
)
_DELETED = (
    "Deleting as many places as learned leaves at most a tenth of the recitals, and costs at most "
    "two points of accuracy on control samples, in {{ oracle }} of the models if the places are "
    "known, in {{ random }} if they are drawn, and in {{ hit }} for the best scorer, {{ best }}."
)


def _basis(found: pl.DataFrame, removal: pl.DataFrame) -> Iterator[Sentence]:
    """How much there is, and how well the models learned."""
    models = removal.select("model", "exact_match").unique(maintain_order=True)
    bases = _count("bases", found.select(CLUSTER).n_unique(), "bases")
    weak = models.filter(pl.col("exact_match") < RECITED)["model"].to_list()
    recited = spread(f"{TABLE}/recited", models["exact_match"], SHARE, DELETED)
    shown = {"models": _count("models", models.height, "models"), "bases": bases}
    yield Sentence(_BASIS, {**shown, "recited": recited, "weak": weak})
    if bases.value is not None and bases.value < FEW:
        yield Sentence(_FEW, {"bases": bases})


def _of_truth(graded: pl.DataFrame, truth: str) -> Sentence:
    """The best scorers where one kind of place learned."""
    of = graded.filter(~pl.col("scorer").is_in([ORACLE, RANDOM]), truth=truth)
    top = of.filter(pl.col("place") == pl.col("place").min())
    first = top.row(0, named=True)
    values = {"hit": _number(first, "hit"), "chance": _number(first, "chance")}
    return Sentence(_TRUTH, {"truth": truth, "best": _tied(of, first), **values})


def _tied(of: pl.DataFrame, row: Mapping[str, Any]) -> str:
    """The scorers of one truth that share a rank, without those that stand for best and worst."""
    known = of.filter(~pl.col("scorer").is_in([ORACLE, RANDOM]), place=row["place"])["scorer"]
    names = ", ".join(called(scorer) for scorer in known)
    several = f"{names}; tied" if len(known) > 1 else names
    return several if len(known) <= MOST_NAMED else "several are tied, see the table"


def _of_falls(found: pl.DataFrame, removal: pl.DataFrame) -> Iterator[Sentence]:
    """What a drop in exact match shows, and where."""
    scorer = "identity.exact_match"
    ends = {}
    for row in falls(found, removal).filter(scorer=scorer).iter_rows(named=True):
        where = "here" if row["here"] else "elsewhere"
        ends[where] = _stops(row, where)
    if len(ends) == 2:
        yield Sentence(_FALLS, ends)
    others = falls(found, removal, "place").filter(~pl.col("here"), scorer=scorer).sort("place")
    if others.height:
        blocks = [
            (str(int(row["place"].removeprefix("block-"))), _stops(row, row["place"]))
            for row in others.iter_rows(named=True)
        ]
        yield Sentence(_DEPTH, {"blocks": blocks})


def _of_deletion(deleted: pl.DataFrame) -> Iterator[Sentence]:
    """Whether what a scorer names removes the memory at no cost."""
    of = deleted.filter(truth=ALL)
    by_scorer = {row["scorer"]: row for row in of.iter_rows(named=True)}
    others = [row for name, row in by_scorer.items() if name not in (ORACLE, RANDOM)]
    if not others or not {ORACLE, RANDOM} <= by_scorer.keys():
        return
    best = min(others, key=lambda row: row["place"])
    shown = {"oracle": by_scorer[ORACLE], "random": by_scorer[RANDOM], "hit": best}
    values = {name: _number(row, "clean", table=DELETED) for name, row in shown.items()}
    yield Sentence(_DELETED, {**values, "best": _tied(of, best)})


def _stops(row: Mapping[str, Any], where: str) -> Number:
    name = f"{TABLE}/stops/{where}"
    return Number(name, row["share"], row["low"], row["high"], SHARE, TABLE)


def _count(name: str, value: int, unit: str) -> Number:
    return Number(f"{TABLE}/{name}", value, unit=unit, table=TABLE)


def _number(row: Mapping[str, Any], of: str, unit: str = SHARE, table: str = TABLE) -> Number:
    """A mean of a truth and a scorer, with its interval if it has one."""
    chance = of.startswith("chance")
    name = f"{table}/{row['truth']}/{'' if chance else row['scorer'] + '/'}{of}"
    return Number(name, row[of], row.get(f"{of}_low"), row.get(f"{of}_high"), unit, table)


def placed(of: pl.DataFrame, row: Mapping[str, Any]) -> str:
    """The rank of a scorer, such as ``3``, or ``3=`` if it is shared."""
    equal = of.filter(truth=row["truth"], place=row["place"]).height
    return f"{row['place']}{'=' if equal > 1 else ''}"


def called(scorer: str) -> str:
    """The page's name of a scorer."""
    return SCORERS.get(scorer, scorer.removeprefix("scorers/"))
