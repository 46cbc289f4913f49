"""The section that says whether scorers find the block that learned the memorized samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.analysis.localization import LOCALIZATION, falls, grades
from pipeline.report.numbers import SHARE, Number, Sentence, spread
from pipeline.workflow import tables

SECTION = "Does a sweep find memory where it is?"

PARTS = {"attention": "attention learned", "mlp": "MLP learned", "both": "both learned"}

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
    (edit, loss): f"{done}: {lost}" for edit, done in _EDITS.items() for loss, lost in _LOST.items()
} | {
    ("divergence", "kl"): "divergence under identity",
    ("gradient", "attention"): "gradient × attention output",
    ("gradient", "mlp"): "gradient × MLP output",
    ("gradient", "sum"): "gradient × both outputs",
}
"""Scorer and quantity -> its name on the page, in the order of figure and table."""


TABLE = "localization"


@dataclass(frozen=True)
class Localized:
    """The content of the section.

    Args:
        opening: one sentence with the result; None if the scorers' tables cannot tell.
        sentences: what was found, one for each part of a block that learned.
        heading, rows: of the table of all scorers.
    """

    opening: Sentence | None
    sentences: Sequence[Sentence]
    heading: Sequence[str]
    rows: Sequence[Sequence[Number | str]]


def read_localized(path: Path) -> Localized:
    """The section of a table of scores.

    Raises:
        InputError: the table does not fit its schema.
    """
    return localized(tables.read(path, LOCALIZATION))


def localized(scores: pl.DataFrame) -> Localized:
    """The section's words and its table.

    Args:
        scores: as `localization.scores` makes it.
    """
    graded = grades(scores)
    parts = [part for part in PARTS if part in graded["part"]]
    scorers = graded.select("scorer", "quantity").unique(maintain_order=True).to_dicts()
    heading = ["scorer"]
    for part in parts:
        heading += [f"{PARTS[part]}: recall at 1", "mean reciprocal rank"]
    rows: list[list[Number | str]] = []
    for scorer in sorted(scorers, key=_order):
        graded_parts = [graded.filter(part=part, **scorer).row(0, named=True) for part in parts]
        cells = [cell for row in graded_parts for cell in _graded(row)]
        rows.append([called(scorer), *cells])
    chance = graded.row(0, named=True)
    by_chance = [
        Number(f"{TABLE}/chance/recall", chance["recall_chance"], unit=SHARE, table=TABLE),
        Number(f"{TABLE}/chance/rank", chance["reciprocal_chance"], unit="ratio", table=TABLE),
    ]
    rows.append(["chance", *by_chance * len(parts)])
    ends = _stopped("", falls(scores))
    opening = Sentence(_OPENING, ends) if len(ends) == 2 else None
    return Localized(opening, _sentences(scores, graded, parts), heading, rows)


_OPENING = (
    "One block of each model learned the memorized samples. Bypassing it stops at least half of "
    "the recitals in {{ here }} of the models. Bypassing another block, which learned nothing, "
    "does so in {{ elsewhere }} of the cases."
)
_MODELS = (
    "In {{ models|plural('model') }} one block alone learned the memorized samples; all other "
    "weights are those of a model that has never seen them. With nothing edited these models "
    "recite {{ recited|span(' to ') }} of the samples."
)
_PART = (
    "Where {{ part }}: {% if bypass %}the bypass, judged by recitals as in the paper, names the "
    "block in {{ bypass }} of {{ models|plural('model') }}; {% endif %}the best of "
    "{{ scorers|plural('scorer') }} ({{ best|join('; ') }}) in {{ recall }}.{% if here %} A bypass "
    "ends at least half of the recitals at {{ here }} of the blocks that learned, and at "
    "{{ elsewhere }} of those that did not.{% endif %}"
)
_DEPTH = (
    "The depth decides where another block learned. A bypass then ends at least half of the "
    "recitals at {% for block, share in blocks %}block {{ block }} {{ share|percent }}"
    "{{ ', ' if not loop.last }}{% endfor %} of the time."
)


def _sentences(scores: pl.DataFrame, graded: pl.DataFrame, parts: Sequence[str]) -> list[Sentence]:
    models = scores.select("model", "part", "exact_match").unique(maintain_order=True)
    values = {
        "models": Number(f"{TABLE}/models", models.height, unit="models", table=TABLE),
        "recited": spread(f"{TABLE}/recited", models["exact_match"], SHARE, TABLE),
    }
    sentences = [Sentence(_MODELS, values)]
    fell = falls(scores, "part")
    for part in parts:
        of_part = graded.filter(part=part)
        bypass = of_part.filter(scorer="identity", quantity="exact_match")
        top = of_part.filter(pl.col("recall") == pl.col("recall").max()).to_dicts()
        n = bypass["n"].item() if bypass.height else 0
        shown: dict[str, Any] = {
            "part": PARTS[part],
            "bypass": _graded(bypass.row(0, named=True))[0] if bypass.height else None,
            "models": Number(f"{TABLE}/{part}/models", n, unit="models", table=TABLE),
            "scorers": Number(f"{TABLE}/{part}/scorers", of_part.height, table=TABLE),
            "best": [called(row) for row in sorted(top, key=_order)],
            "recall": _graded(top[0])[0],
        }
        ends = _stopped(f"{part}/", fell.filter(part=part))
        complete = ends if len(ends) == 2 else {"here": None, "elsewhere": None}
        sentences.append(Sentence(_PART, shown | complete))
    others = falls(scores, "block").filter(~pl.col("here"), scorer="identity").sort("block")
    if others.height:
        shares = [
            (str(block), Number(f"{TABLE}/block-{block}/stops", share, unit=SHARE, table=TABLE))
            for block, share in others.select("block", "share").iter_rows()
        ]
        sentences.append(Sentence(_DEPTH, {"blocks": shares}))
    return sentences


def _graded(row: Mapping[str, Any]) -> list[Number]:
    """The recall and the mean reciprocal rank of one scorer."""
    name = f"{TABLE}/{row['part']}/{row['scorer']}/{row['quantity']}"
    return [
        Number(f"{name}/{key}", row[of], row[f"{of}_low"], row[f"{of}_high"], unit, TABLE)
        for key, of, unit in (("recall", "recall", SHARE), ("rank", "reciprocal", "ratio"))
    ]


def _order(scorer: Mapping[str, str]) -> int:
    """The place of a scorer in figure and table; scorers without a name on the page come last."""
    key = scorer["scorer"], scorer["quantity"]
    return list(SCORERS).index(key) if key in SCORERS else len(SCORERS)


def _stopped(name: str, fell: pl.DataFrame) -> dict[str, Number]:
    """How often a bypass stops half of the recitals: at blocks that learned, and at others."""
    rows = fell.filter(scorer="identity").select("here", "share", "low", "high").iter_rows()
    return {
        (where := "here" if here else "elsewhere"): Number(
            f"{TABLE}/{name}stops/{where}", share, low, high, SHARE, TABLE
        )
        for here, share, low, high in rows
    }


def called(row: Mapping[str, str]) -> str:
    """The page's name of a scorer and its quantity."""
    key = row["scorer"], row["quantity"]
    return SCORERS.get(key, " ".join(key))
