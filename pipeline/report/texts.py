"""A user's texts, one by one: which of them a model recites, and how likely each is.

The text itself is shown only where the user says so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.analysis import views
from pipeline.interventions.interventions import BASELINE
from pipeline.report.choosing import tokenizer_file
from pipeline.report.numbers import SHARE, Number
from pipeline.samples.schemas import read_samples, samples_file
from pipeline.workflow import tables

MOST = 5_000
"""Rows of a page's table; the file has all."""

TEXT_CHARACTERS = 300
"""Longer texts are cut to their start on the page."""

WORDS = ("prefix", "suffix", "continuation")
"""The two parts of a text, and what the model writes after the first; where text is shown."""


@dataclass(frozen=True)
class Texts:
    """The texts of one file, under one unmodified model.

    Args:
        model: its name.
        file: the name of the user's file.
        counts: for each split, how many are recited, of how many, and the share; and the split.
        heading, rows: of the page's table, those first that the model knows best.
        left_out: how many rows the table lacks.
        frame: all of them: row, line, sample_id, split (where there are several), recited,
            tokens_right, tokens, log_prob, and `WORDS`.
    """

    model: str
    file: str
    counts: Sequence[tuple[Number, Number, Number, str]]
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    left_out: Number | None
    frame: pl.DataFrame


def are_given(data: Path, families: Sequence[str]) -> bool:
    """Whether all samples come from users' files, which do not say that they are memorized."""
    read = (read_samples(data, family) for family in dict.fromkeys(families))
    return all("row" in own.columns and set(own["split"]) == {"memorized"} for own in read)


def read_texts(
    data: Path, manifest: Mapping[str, Any], summary: pl.DataFrame, *, show_text: bool = False
) -> list[Texts]:
    """The texts that a model was asked for; none if they do not come from a user's file.

    Raises:
        InputError: a table is missing or damaged.
    """
    model, family = str(manifest["name"]), str(manifest["family"])
    samples = read_samples(data, family)
    if "row" not in samples.columns:
        return []
    places = [name for name in ("row", "line") if name in samples.columns]
    measured = (
        tables.read(data / "memorization" / f"{model}.parquet", {})
        .filter(intervention=BASELINE.name)
        .select(
            "sample_id",
            recited="exact_match",
            tokens_right="correct_length",
            log_prob="suffix_log_prob",
            continuation="continuation",
        )
    )
    frame = (
        samples.join(measured, on="sample_id", maintain_order="left")
        .sort("recited", "log_prob", descending=True, maintain_order=True)
        .with_columns(
            pl.col("row") + 1,
            tokens="suffix_length",
            prefix=pl.col("tokens").list.head("prefix_length"),
            suffix=pl.col("tokens").list.slice("prefix_length", "suffix_length"),
        )
    )
    several = ["split"] if samples["split"].n_unique() > 1 else []
    kept = [*places, "sample_id", *several, "recited", "tokens_right", "tokens", "log_prob"]
    if show_text and (file := tokenizer_file(data, [manifest])):
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
        for part in WORDS:
            ids = frame[part].fill_null([]).to_list()
            decoded = tokenizer.decode_batch(ids, skip_special_tokens=False)
            frame = frame.with_columns(pl.Series(part, decoded, pl.String))
        kept += WORDS
    exact = views.baseline(summary).filter(model=model, metric="exact_match")
    counts = []
    for split, n, value, low, high in exact.select(
        "split", "n", "value", "low", "high"
    ).iter_rows():
        name, recited = f"texts/{model}/{split}", frame.filter("recited", split=split).height
        known = Number(f"{name}/recited", recited, unit="texts", table="memorization")
        every = Number(f"{name}/all", n, unit="texts", table="memorization")
        counts.append((known, every, Number(f"{name}/share", value, low, high, SHARE), split))
    made_by: Any = tables.provenance(samples_file(data, family))
    path = Path(made_by["family"]["samples"]["path"]).resolve()  # an audit has a link to it
    shown = frame.select(kept)
    left = shown.height - MOST
    more = Number(f"texts/{model}/left", left, unit="texts") if left > 0 else None
    return [Texts(model, path.name, counts, *_table(shown.head(MOST)), more, shown)]


def _table(frame: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Heading and rows, as text: a line or else a row, and what the model knows of it."""
    place = "line" if "line" in frame.columns and frame["line"].null_count() == 0 else "row"
    others = [name for name in ("split", *WORDS) if name in frame.columns]
    heading = [place, "sample", "recited", "first tokens right", "probability", *others]
    rows = []
    for row in frame.iter_rows(named=True):
        right = f"{row['tokens_right']} of {row['tokens']}"
        known = ["yes" if row["recited"] else "no", right, probability(row["log_prob"])]
        words = [row[name][:TEXT_CHARACTERS] for name in others]
        rows.append([str(row[place]), str(row["sample_id"]), *known, *words])
    return heading, rows


def probability(log_prob: float) -> str:
    """A probability in percent, or, where it is small, with a power of ten."""
    if log_prob > math.log(0.001):
        return f"{math.exp(log_prob):.1%}"
    return f"{Decimal(log_prob).exp():.1e}"  # a float would be 0
