"""What a model knows of documents: coverage, the longest run, how often a stranger seems to know.

Shapes: N windows.
"""

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.statistics import clustered_rates
from pipeline.measure.passages import EXTRACTABLE, KNOWN, runs
from pipeline.measure.schemas import EXACT, ROLLING


class Known(NamedTuple):
    """What one model knows of one document under one intervention.

    Args:
        numbers: ``windows``; ``extractable``, those whose suffix has p_z of 1/1000 or more;
            ``coverage``, the share of characters in suffixes of these, 0 to 1; ``longest``, tokens
            of the longest run.
        runs: as `measure.passages.runs` gives them.
        surest: as `by_character` gives it.
    """

    numbers: dict[str, float]
    runs: pl.DataFrame
    surest: NDArray[np.float64]


def known(rows: pl.DataFrame, characters: int) -> Known:
    """The passages that a model knows of a document; `rows` as for `runs`, at least one."""
    found, surest = runs(rows), by_character(rows, characters)
    numbers = {
        "windows": len(rows),
        "extractable": len(rows.filter(KNOWN)),
        "coverage": float((surest >= EXTRACTABLE).mean()),
        "longest": max(found["tokens"], default=0),
    }
    return Known(numbers, found, surest)


def by_character(rows: pl.DataFrame, characters: int) -> NDArray[np.float64]:
    """(characters,) log p of the surest window over each character; -inf where there is none."""
    surest = np.full(characters, -np.inf)
    columns = ("log_prob_top_40", "first_character", "end_character")
    for log_prob, first, end in rows.select(columns).sort("log_prob_top_40").iter_rows():
        surest[first:end] = log_prob
    return surest


def extractable(rows: pl.DataFrame) -> tuple[float, float, float]:
    """The share of windows, at least one, that are extractable, and the ends of its 95% interval.

    Windows of one stretch of P + S tokens are one cluster.
    """
    stretch = pl.col("start") // (pl.col("prefix_length") + pl.col("suffix_length"))
    groups = rows.select(pl.struct("document", stretch).rank("dense")).to_series().to_numpy()
    return clustered_rates(rows.select(KNOWN).to_numpy(), groups.astype(np.int64)).first


def difference(rows: pl.DataFrame) -> dict[str, float]:
    """How the two readings of the same windows differ, under the baseline.

    Returns:
        ``windows`` that were read both ways; ``median`` of log p rolling minus exact, nats, above 0
        where more context helps; ``largest`` absolute difference, nats; and ``agree``, the share of
        windows that both count as extractable, or both do not. Empty if none was read both ways.
    """
    read = rows.with_columns(known=KNOWN)
    rolling, exact = (read.filter(reading=name) for name in (ROLLING, EXACT))
    both = exact.join(rolling, on=["document", "reference", "start"], suffix="_rolling")
    if both.is_empty():
        return {}
    change = (both["log_prob_rolling"] - both["log_prob"]).to_numpy()
    agree = float((both["known_rolling"] == both["known"]).to_numpy().mean())
    largest = float(np.abs(change).max())
    differ = {"median": float(np.median(change)), "largest": largest, "agree": agree}
    return {"windows": len(both), **differ}
