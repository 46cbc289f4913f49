"""What a model knows of documents: coverage, the longest run, how often a stranger seems to know.

Shapes: N windows.
"""

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.statistics import Estimates, clustered_rates
from pipeline.measure.passages import EXTRACTABLE, KNOWN, Run, runs
from pipeline.measure.schemas import EXACT, ROLLING


class Known(NamedTuple):
    """What one model knows of one document under one intervention.

    Args:
        windows: their number.
        extractable: that of those whose suffix has p_z of 1/1000 or more.
        coverage: share of the document's characters in suffixes of these, 0 to 1.
        longest: tokens of the longest run.
        runs: all runs, the longest first.
        surest: as `by_character` gives it.
    """

    windows: int
    extractable: int
    coverage: float
    longest: int
    runs: list[Run]
    surest: NDArray[np.float64]


def known(rows: pl.DataFrame, characters: int) -> Known:
    """The passages of one document that a model knows.

    Args:
        rows: rolling windows of one document and intervention, in their order; at least one.
        characters: of the document.
    """
    found, surest = runs(rows), by_character(rows, characters)
    longest = found[0].end - found[0].start if found else 0
    coverage = float((surest >= EXTRACTABLE).mean())
    return Known(len(rows), len(rows.filter(KNOWN)), coverage, longest, found, surest)


def by_character(rows: pl.DataFrame, characters: int) -> NDArray[np.float64]:
    """(characters,) log p of the surest window over each character; -inf where there is none."""
    surest = np.full(characters, -np.inf)
    columns = ("log_prob_top_40", "first_character", "end_character")
    for log_prob, first, end in rows.select(columns).sort("log_prob_top_40").iter_rows():
        surest[first:end] = log_prob
    return surest


def extractable(rows: pl.DataFrame) -> Estimates:
    """The share of windows that are extractable, with an interval at 95%.

    Args:
        rows: of one model and intervention, at least one. Windows of one stretch of P + S tokens
            are one cluster.
    """
    stretch = pl.col("start") // (pl.col("prefix_length") + pl.col("suffix_length"))
    groups = rows.select(pl.struct("document", stretch).rank("dense")).to_series().to_numpy()
    return clustered_rates(rows.select(KNOWN).to_numpy(), groups.astype(np.int64))


def difference(rows: pl.DataFrame) -> tuple[int, float, float, float] | None:
    """How the two readings of the same windows differ, under the baseline.

    Returns:
        Windows that were read both ways; the median of log p rolling minus exact, nats, above 0
        where more context helps; the largest absolute difference, nats; and the share of windows
        that both count as extractable, or both do not. None if no window was read both ways.
    """
    read = rows.with_columns(known=KNOWN)
    rolling, exact = (read.filter(reading=name) for name in (ROLLING, EXACT))
    both = exact.join(rolling, on=["document", "reference", "start"], suffix="_rolling")
    if both.is_empty():
        return None
    change = (both["log_prob_rolling"] - both["log_prob"]).to_numpy()
    agree = float((both["known_rolling"] == both["known"]).to_numpy().mean())
    return len(both), float(np.median(change)), float(np.abs(change).max()), agree
