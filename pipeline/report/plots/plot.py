"""The parts of a figure, and the phrases that figures share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.text import number, percent_range
from pipeline.interventions.interventions import BASELINE

ASIDE = "(excluding block 0)"
BLOCKS_LABEL = "bypassed block (0 is nearest to the input)"
MEMORIZED_LABEL = "exact match, memorized samples"
HOLLOW = "Hollow: block 0, whose bypass the paper warns can look spuriously good."

NUMBERS = (
    "model",
    "family",
    "intervention",
    "block",
    "task",
    "metric",
    "value",
    "low",
    "high",
    "n",
)
"""The summary's columns that every figure's data keeps."""


@dataclass(frozen=True)
class Plot:
    """One figure and the words that belong to it.

    Args:
        name: file name without an ending; unique, lower-case letters, digits, hyphens.
        section: the heading of its section.
        title: its name within the section, such as a model's name; may be empty.
        finding: the result in one sentence with its numbers; the title on the page.
        reading: how to read the figure, in one line.
        caption: the rest: definitions, intervals, sources.
        alt: a description for readers who cannot see it.
        data: every number that is drawn.
        draw: makes the figure from `data`.
    """

    name: str
    section: str
    title: str
    finding: str
    reading: str
    caption: str
    alt: str
    data: pl.DataFrame
    draw: Callable[[pl.DataFrame], Figure]


def unmodified_or_one_block() -> pl.Expr:
    """Selects the summary's rows where nothing or one block alone is bypassed."""
    return views.ONE_BLOCK | (pl.col("intervention") == BASELINE.name)


def by_block(data: pl.DataFrame) -> pl.DataFrame:
    """The rows of a figure's data but the baseline's, by block.

    Args:
        data: rows that `unmodified_or_one_block` picked.
    """
    return data.filter(pl.col("block").is_not_null()).sort("block", maintain_order=True)


def later_blocks(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows where one block other than 0 is bypassed, by block.

    Args:
        rows: with the column ``block``, null where no block or several are bypassed.
    """
    return by_block(rows).filter(pl.col("block") > 0)


def extent(column: pl.Series) -> str:
    """``40–75%``, the range of a column of shares."""
    known = column.drop_nulls().to_list()
    return percent_range(known) if known else "nothing"


def number_range(column: pl.Series) -> str:
    """``3.2 to 17``, the range of a column of numbers."""
    known = column.drop_nulls().to_list()
    if not known:
        return "unknown"
    low, high = number(min(known)), number(max(known))
    return low if low == high else f"{low} to {high}"


def lowest(rows: pl.DataFrame) -> str:
    """A sentence that names the block, other than 0, whose bypass lowers exact match most.

    Args:
        rows: as for `by_block`.
    """
    blocks = later_blocks(rows)
    if not blocks.height:
        return "Exact match was not measured."
    lowest = blocks.filter(value=pl.col("value").min()).sort("block", "model")
    model, block, value = lowest.select("model", "block", "value").row(0)
    equal = f" (the first of {lowest.height} equal ones)" if lowest.height > 1 else ""
    return (
        f"Apart from block 0, exact match is lowest, {100 * value:.0f}%, with block {block} of "
        f"{model} bypassed{equal}."
    )
