"""The section that says whether scorers find the block that learned the memorized samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipeline.analysis.localization import falls, grades
from pipeline.report.numbers import SHARE, Number, Sentence, spread

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
        cells = [cell for row in graded_parts for cell in (_recall(row), _reciprocal(row))]
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
            "bypass": _recall(bypass.row(0, named=True)) if bypass.height else None,
            "models": Number(f"{TABLE}/{part}/models", n, unit="models", table=TABLE),
            "scorers": Number(f"{TABLE}/{part}/scorers", of_part.height, table=TABLE),
            "best": [called(row) for row in sorted(top, key=_order)],
            "recall": _recall(top[0]),
        }
        ends = _stopped(f"/{part}", fell.filter(part=part))
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


def _recall(row: Mapping[str, Any]) -> Number:
    ends = row["recall"], row["recall_low"], row["recall_high"]
    return Number(f"{_name(row)}/recall", *ends, unit=SHARE, table=TABLE)


def _reciprocal(row: Mapping[str, Any]) -> Number:
    ends = row["reciprocal"], row["reciprocal_low"], row["reciprocal_high"]
    return Number(f"{_name(row)}/rank", *ends, unit="ratio", table=TABLE)


def _name(row: Mapping[str, Any]) -> str:
    return f"{TABLE}/{row['part']}/{row['scorer']}/{row['quantity']}"


def _order(scorer: Mapping[str, str]) -> int:
    """The place of a scorer in figure and table; scorers without a name on the page come last."""
    key = scorer["scorer"], scorer["quantity"]
    return list(SCORERS).index(key) if key in SCORERS else len(SCORERS)


def _stopped(name: str, fell: pl.DataFrame) -> dict[str, Number]:
    """How often a bypass stops half of the recitals: at blocks that learned, and at others."""
    stopped = {}
    for row in fell.filter(scorer="identity").iter_rows(named=True):
        where = "here" if row["here"] else "elsewhere"
        ends = row["share"], row["low"], row["high"]
        stopped[where] = Number(f"{TABLE}{name}/stops/{where}", *ends, unit=SHARE, table=TABLE)
    return stopped


def called(row: Mapping[str, str]) -> str:
    """The page's name of a scorer and its quantity."""
    key = row["scorer"], row["quantity"]
    return SCORERS.get(key, " ".join(key))
