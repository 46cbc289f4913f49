"""Chooses the samples that are measured token by token."""

import polars as pl

from pipeline.samples.frame import of_each_split

LEAST, MOST = 8, 64
"""Samples of each split, spread evenly over it: enough to match tokens."""

SHARE = 10
"""One in this many samples is chosen, so that the tokenwise pass costs little beside the sweep."""

SPLITS = ("memorized", "control")


def chosen(samples: pl.DataFrame) -> pl.DataFrame:
    """Some samples of each of `SPLITS`, memorized first: `LEAST` to `MOST`, if there are enough."""
    return of_each_split(samples, SPLITS, a_split(samples.height))


def a_split(samples: int) -> int:
    """Samples chosen of each split, out of this many samples in all."""
    return min(max(samples // SHARE, LEAST), MOST)
