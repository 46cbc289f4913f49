"""The section that says whether scorers find the places that learned the memorized samples."""

from collections.abc import Mapping
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
MOST_NAMED, SEVERAL = 4, "several are tied, see the table"
"""Scorers of equal rank that a sentence names, and what it says of more."""
RECITED = 0.9
"""Models that recite less are named."""

OPENING = (
    "The places that learned the memorized samples are known in {{ models|plural('model') }}. The "
    "best scorer ({{ best }}) ranks one of them first in {{ hit }} of the models; chance is "
    "{{ chance }}."
)
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


Localized = Mapping[str, Any]
"""Numbers, names and tables by their names in localization.html.jinja; and the opening sentence."""


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
    graded, deleted = graded.fill_nan(None), deleted.fill_nan(None)  # NaN is not equal to itself
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
    count = Number(f"{TABLE}/models", models.height, unit="models", table=TABLE)
    return {
        "opening": Sentence(OPENING, {"models": count, **_of_best(order)}),
        "models": count,
        "bases": Number(f"{TABLE}/bases", clusters, unit="bases", table=TABLE),
        "few": clusters < FEW,
        "recited": spread(f"{TABLE}/recited", models["exact_match"], SHARE, DELETED),
        "weak": models.filter(pl.col("exact_match") < RECITED)["model"].to_list(),
        "best": {truth: _of_best(graded.filter(truth=truth)) for truth in truths[1:]},
        "falls": _of_falls(falls(found, removal)),
        "blocks": _of_falls(falls(found, removal, "place").filter(~pl.col("here")).sort("place")),
        "deletion": _of_deletion(deleted.filter(truth=ALL)),
        "heading": ["scorer", "rank", *truths, "average precision", "rank of the truth"],
        "rows": rows,
        "deleted_rows": deleted_rows,
    }


def _of_best(of: pl.DataFrame) -> dict[str, Number | str]:
    """The best scorers of one truth, with the hits of the first."""
    first, best = _best(of)
    fewer = first["n"] < of["n"].max()  # models than the chance of the table is of
    own = {**first, "truth": f"{first['truth']}/{first['scorer']}"} if fewer else first
    return {"best": best, "hit": _number(first, "hit"), "chance": _number(own, "chance")}


def _best(of: pl.DataFrame) -> tuple[Mapping[str, Any], str]:
    """The first scorer of the best rank of a truth, and all in words, without the references."""
    known = of.filter(~pl.col("scorer").is_in([ORACLE, RANDOM]))
    tied = known.filter(place=known["place"].min())
    words = ", ".join(called(scorer) for scorer in tied["scorer"])
    if tied.height > 1:
        words = f"{words}; tied" if tied.height <= MOST_NAMED else SEVERAL
    return tied.row(0, named=True), words


def _of_falls(counted: pl.DataFrame) -> dict[str, Number]:
    """How often a bypass ends the recitals: by block, or here, where it learned, and elsewhere."""
    found = {}
    for row in counted.filter(scorer="identity.exact_match").to_dicts():
        where = row.get("place", "here" if row["here"] else "elsewhere")
        ends = row["share"], row["low"], row["high"]
        found[where] = Number(f"{TABLE}/stops/{where}", *ends, SHARE, TABLE)
    return found


def _of_deletion(deleted: pl.DataFrame) -> dict[str, Number | str]:
    """Whether what a scorer names removes the memory at no cost; empty if it is not known."""
    by_scorer = {row["scorer"]: row for row in deleted.to_dicts()}
    if not by_scorer.keys() > {ORACLE, RANDOM}:
        return {}
    first, best = _best(deleted)
    shown = {"oracle": by_scorer[ORACLE], "random": by_scorer[RANDOM], "hit": first}
    values = {name: _number(row, "clean", table=DELETED) for name, row in shown.items()}
    return {"best": best, **values}


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
