"""The samples that are looked at token by token."""

from __future__ import annotations

import polars as pl

from pipeline.samples.frame import of_each_split

SAMPLES = 64
"""Of each split, spread evenly over it: enough to match tokens, at little cost."""

SPLITS = ("memorized", "control")


def chosen(samples: pl.DataFrame) -> pl.DataFrame:
    """Up to `SAMPLES` samples of each of `SPLITS`, memorized first.

    Args:
        samples: as `tables.SAMPLES`.
    """
    there = [split for split in SPLITS if (samples["split"] == split).any()]
    return of_each_split(samples, there, SAMPLES) if there else samples.clear()
