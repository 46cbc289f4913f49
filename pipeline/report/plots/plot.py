"""The parts of a figure: its data, how it is drawn, and its words from captions.yaml."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.interventions.interventions import BASELINE
from pipeline.report.numbers import SHARE, Number, Sentence, named, spread, words

BLOCKS_LABEL = "bypassed block (0 is nearest to the input)"
MEMORIZED_LABEL = "exact match, memorized samples"

NUMBERS = (
    *("model", "family", "intervention", "block", "task", "metric"),
    *("value", "low", "high", "n"),
)
"""The summary's columns that every figure's data keeps."""

UNMODIFIED = pl.col("intervention") == BASELINE.name
"""Selects the summary's rows where nothing is bypassed."""

UNMODIFIED_OR_ONE_BLOCK = views.ONE_BLOCK | UNMODIFIED
"""Selects the summary's rows where nothing or one block alone is bypassed."""

_CAPTIONS: Mapping[str, Mapping[str, Any]] = words("captions.yaml")

FIGURES_INDEX = "figures.json"
"""Beside the figures: order, headings, captions, alternative texts, and where each row is drawn."""

EDITS_IN_WORDS: Mapping[str, str] = _CAPTIONS["shared"]["edits"]
"""Edit -> what it does to one block, after "with"."""


@dataclass(frozen=True)
class Plot:
    """One figure and the words that belong to it.

    Args:
        name: file name without an ending; unique, lower-case letters, digits, hyphens.
        data: every number that is drawn.
        draw: makes the figure from `data`.
        values: the numbers and names that its words in captions.yaml format. A `Number` needs no
            name here: it is named by the figure and its key.
        kind: its entry in captions.yaml; empty: `name`.
        title: its name within the section, such as a model's name; empty: that of captions.yaml.
        section: the heading of its section; empty: that of captions.yaml.
        sources: its entry, in place of one of captions.yaml.
    """

    name: str
    data: pl.DataFrame
    draw: Callable[[pl.DataFrame], Figure]
    values: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""
    title: str = ""
    section: str = ""
    sources: Mapping[str, str] | None = None

    def words(self) -> dict[str, Any]:
        """Name, section and title as text; finding, reading, caption and alt as `Sentence`.

        The finding is the result in one sentence with its numbers, the title on the page; the
        reading says in one line how to read the figure; the caption holds definitions, intervals
        and sources; the alt text describes it to readers who cannot see it.
        """
        sources = self.sources or _CAPTIONS[self.kind or self.name]
        place = f"figures/{self.name}"
        values = {**_CAPTIONS["shared"], **named(self.values, place)}
        told = {part: Sentence(sources[part], values) for part in ("finding", "reading", "caption")}
        return {
            "name": self.name,
            "section": self.section or sources["section"],
            "title": self.title or sources.get("title", ""),
            **told,
            "alt": Sentence(sources["alt"], {**values, "finding": told["finding"]}),
        }


def by_block(data: pl.DataFrame) -> pl.DataFrame:
    """The rows of a figure's data but the baseline's, by block."""
    return data.filter(pl.col("block").is_not_null()).sort("block", maintain_order=True)


def later_blocks(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows where one block other than 0 is bypassed, by block."""
    return by_block(rows).filter(pl.col("block") > 0)


def count(value: int) -> Number:
    """A number of things, to be named by its place."""
    return Number("", value)


def share(value: float | None, low: float | None = None, high: float | None = None) -> Number:
    """A share with its interval, to be named by its place."""
    return Number("", value, low, high, SHARE)


def shares(rows: pl.DataFrame) -> list[Number]:
    """The shares ``value`` with their intervals, row by row."""
    return [share(*row) for row in rows.select("value", "low", "high").iter_rows()]


def extent(column: pl.Series, unit: str = SHARE) -> Number:
    """The range of a column, to be named by its place."""
    return spread("", column.drop_nulls(), unit)


def panels(data: pl.DataFrame) -> Number:
    """How many models a figure shows, one panel each."""
    return count(data["model"].n_unique())


def lowest(rows: pl.DataFrame) -> Sentence:
    """A sentence that names the block, other than 0, whose bypass lowers exact match most."""
    blocks = later_blocks(rows)
    least = blocks.filter(value=pl.col("value").min()).sort("block", "model")
    known: dict[str, Any] = {"model": None}
    if least.height:
        model, block, value = least.select("model", "block", "value").row(0)
        equal = count(least.height) if least.height > 1 else None
        known = {"model": model, "block": str(block), "value": share(value), "equal": equal}
    return Sentence(_CAPTIONS["lowest"]["sentence"], known)
