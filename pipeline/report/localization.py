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
DELETED_HEADING = ["scorer", "rank", "removed at no cost", "recitals removed", "accuracy lost"]
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
    **{
        f"{edit}.{quantity}": f"{done}: {lost}"
        for edit, done in _EDITS.items()
        for quantity, lost in _LOST.items()
    },
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
    """The section of the tables in a study's folder.

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
    hits = {(row["truth"], row["scorer"]): _number(row, "hit") for row in graded.to_dicts()}
    losses = {row["scorer"]: row for row in deleted.filter(truth=ALL).to_dicts()}
    rows: list[list[Number | str]] = []
    deleted_rows: list[list[Number | str]] = []
    for row in order.to_dicts():
        scorer, name = row["scorer"], called(row["scorer"])
        cells = [hits.get((truth, scorer), "–") for truth in truths]
        others = _number(row, "average_precision"), _number(row, "rank", "")
        rows.append([name, placed(graded, row), *cells, *others])
        if lost := losses.get(scorer):
            values = [_number(lost, of, table=DELETED) for of in ("clean", "removed", "lost")]
            deleted_rows.append([name, placed(deleted, lost), *values])
    chance = {row["truth"]: row for row in graded.unique("truth", keep="first").to_dicts()}
    by_chance = [_number(chance[truth], "chance") for truth in truths]
    rows.append(["chance", "", *by_chance, "", _number(chance[ALL], "chance_rank", "")])
    models = removal.select("model", "exact_match").unique(maintain_order=True)
    count = _count("models", models.height, "models")
    return Localized(
        opening=_of_best(_OPENING, order, models=count),
        sentences=[
            *_basis(models, count, found.select(CLUSTER).n_unique()),
            *(_of_best(_TRUTH, graded.filter(truth=each), truth=each) for each in truths[1:]),
            *_of_falls(found, removal),
            *_of_deletion(deleted.filter(truth=ALL)),
        ],
        heading=["scorer", "rank", *truths, "average precision", "rank of the truth"],
        rows=rows,
        deleted_heading=DELETED_HEADING,
        deleted_rows=deleted_rows,
    )


_SEVERAL = "several are tied, see the table"
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


def _basis(models: pl.DataFrame, count: Number, clusters: int) -> Iterator[Sentence]:
    """How much there is, and how well the models learned."""
    bases = _count("bases", clusters, "bases")
    weak = models.filter(pl.col("exact_match") < RECITED)["model"].to_list()
    recited = spread(f"{TABLE}/recited", models["exact_match"], SHARE, DELETED)
    yield Sentence(_BASIS, {"models": count, "bases": bases, "recited": recited, "weak": weak})
    if clusters < FEW:
        yield Sentence(_FEW, {"bases": bases})


def _of_best(source: str, of: pl.DataFrame, **more: Any) -> Sentence:
    """A sentence on the best scorers of one truth."""
    first, best = _best(of)
    values = {"hit": _number(first, "hit"), "chance": _number(first, "chance")}
    return Sentence(source, {"best": best, **values, **more})


def _best(of: pl.DataFrame) -> tuple[Mapping[str, Any], str]:
    """The first scorer of the best rank of a truth, and all in words, without the references."""
    known = of.filter(~pl.col("scorer").is_in([ORACLE, RANDOM]))
    tied = known.filter(place=known["place"].min())
    words = ", ".join(called(scorer) for scorer in tied["scorer"])
    if tied.height > 1:
        words = f"{words}; tied" if tied.height <= MOST_NAMED else _SEVERAL
    return tied.row(0, named=True), words


def _of_falls(found: pl.DataFrame, removal: pl.DataFrame) -> Iterator[Sentence]:
    """What a drop in exact match shows, and where."""
    by_block = falls(found, removal).filter(scorer="identity.exact_match")
    names = {True: "here", False: "elsewhere"}
    ends = {names[row["here"]]: _stops(row, names[row["here"]]) for row in by_block.to_dicts()}
    if len(ends) == 2:
        yield Sentence(_FALLS, ends)
    others = falls(found, removal, "place").filter(~pl.col("here"), scorer="identity.exact_match")
    if others.height:
        blocks = [
            (str(int(row["place"].removeprefix("block-"))), _stops(row, row["place"]))
            for row in others.sort("place").to_dicts()
        ]
        yield Sentence(_DEPTH, {"blocks": blocks})


def _of_deletion(deleted: pl.DataFrame) -> Iterator[Sentence]:
    """Whether what a scorer names removes the memory at no cost."""
    by_scorer = {row["scorer"]: row for row in deleted.to_dicts()}
    if by_scorer.keys() > {ORACLE, RANDOM}:
        first, best = _best(deleted)
        shown = {"oracle": by_scorer[ORACLE], "random": by_scorer[RANDOM], "hit": first}
        values = {name: _number(row, "clean", table=DELETED) for name, row in shown.items()}
        yield Sentence(_DELETED, {**values, "best": best})


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
