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
MOST_NAMED, SEVERAL = 4, "several are tied, see the table"
"""Scorers of equal rank that a sentence names, and what it says of more."""
RECITED = 0.9
"""Models that recite less are named."""

EDITS = {
    "identity": "identity",
    "zero": "attention zero",
    "mlp-zero": "MLP zero",
    "skip": "block skipped",
}
LOST = {
    "exact_match": "recitals lost",
    "log_prob": "log-probability lost",
    "log_prob_minus_control": "log-probability beyond control",
}
SCORERS = {
    "divergence.kl": "divergence under identity",
    "gradient.attention": "gradient × attention output",
    "gradient.mlp": "gradient × MLP output",
    "gradient.sum": "gradient × both outputs",
}
"""Edit, what it lowers, and scorer -> its name on the page; others are as in the table."""


@dataclass(frozen=True)
class Localized:
    """The content of the section, whose words stand in localization.html.jinja.

    Args:
        opening: one sentence with the result.
        told: what was found, and what it rests on: numbers and names by the words' names.
        heading, rows: of the matrix, scorers by truths.
        deleted_heading, deleted_rows: of the table of what deletion does.
    """

    opening: Sentence
    told: Mapping[str, Any]
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
    """The section, of tables of the schemas `LOCALIZATION` and `REMOVAL`."""
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
    clusters = found.select(CLUSTER).n_unique()
    told = {
        "models": _count(models.height, "models"),
        "bases": _count(clusters, "bases"),
        "few": clusters < FEW,
        "recited": spread(f"{TABLE}/recited", models["exact_match"], SHARE, DELETED),
        "weak": models.filter(pl.col("exact_match") < RECITED)["model"].to_list(),
        "truths": {truth: _of_best(graded.filter(truth=truth)) for truth in truths[1:]},
        "deletion": _of_deletion(deleted.filter(truth=ALL)),
        **_of_falls(found, removal),
    }
    return Localized(
        opening=Sentence(_OPENING, {"models": told["models"], **_of_best(order)}),
        told=told,
        heading=["scorer", "rank", *truths, "average precision", "rank of the truth"],
        rows=rows,
        deleted_heading=DELETED_HEADING,
        deleted_rows=deleted_rows,
    )


_OPENING = (
    "The places that learned the memorized samples are known in {{ models|plural('model') }}. The "
    "best scorer ({{ best }}) ranks one of them first in {{ hit }} of the models; chance is "
    "{{ chance }}."
)


def _of_best(of: pl.DataFrame) -> dict[str, Number | str]:
    """The best scorers of one truth, with the hits of the first."""
    first, best = _best(of)
    return {"best": best, "hit": _number(first, "hit"), "chance": _number(first, "chance")}


def _best(of: pl.DataFrame) -> tuple[Mapping[str, Any], str]:
    """The first scorer of the best rank of a truth, and all in words, without the references."""
    known = of.filter(~pl.col("scorer").is_in([ORACLE, RANDOM]))
    tied = known.filter(place=known["place"].min())
    words = ", ".join(called(scorer) for scorer in tied["scorer"])
    if tied.height > 1:
        words = f"{words}; tied" if tied.height <= MOST_NAMED else SEVERAL
    return tied.row(0, named=True), words


def _of_falls(found: pl.DataFrame, removal: pl.DataFrame) -> dict[str, dict[str, Number]]:
    """What a drop in exact match shows, and where."""

    def shares(rows: pl.DataFrame, column: str) -> Iterator[tuple[str, Number]]:
        for row in rows.filter(scorer="identity.exact_match").to_dicts():
            name, ends = f"{TABLE}/stops/{row[column]}", (row["share"], row["low"], row["high"])
            yield row[column], Number(name, *ends, SHARE, TABLE)

    here = pl.when("here").then(pl.lit("here")).otherwise(pl.lit("elsewhere"))
    others = falls(found, removal, "place").filter(~pl.col("here")).sort("place")
    return {
        "falls": dict(shares(falls(found, removal).with_columns(where=here), "where")),
        "blocks": {
            str(int(place.removeprefix("block-"))): share
            for place, share in shares(others, "place")
        },
    }


def _of_deletion(deleted: pl.DataFrame) -> dict[str, Number | str]:
    """Whether what a scorer names removes the memory at no cost; empty if it is not known."""
    by_scorer = {row["scorer"]: row for row in deleted.to_dicts()}
    if not by_scorer.keys() > {ORACLE, RANDOM}:
        return {}
    first, best = _best(deleted)
    shown = {"oracle": by_scorer[ORACLE], "random": by_scorer[RANDOM], "hit": first}
    values = {name: _number(row, "clean", table=DELETED) for name, row in shown.items()}
    return {"best": best, **values}


def _count(value: int, unit: str) -> Number:
    return Number(f"{TABLE}/{unit}", value, unit=unit, table=TABLE)


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
    edit, _, loss = scorer.partition(".")
    if edit in EDITS:
        return f"{EDITS[edit]}: {LOST[loss]}"
    return SCORERS.get(scorer, scorer.removeprefix("scorers/"))
