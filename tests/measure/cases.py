"""Tables of samples, as the tests of several measures need them."""

from collections.abc import Sequence

import polars as pl
import torch

from pipeline.samples.schemas import SAMPLES, SPLITS
from pipeline.workflow import tables

FIRST_ID = 10
"""The `sample_id` of the first row."""


def samples_of(
    tokens: Sequence[Sequence[int]], prefix: int, suffix: int, splits: Sequence[str] | None = None
) -> pl.DataFrame:
    """A table of samples that is not checked; the splits take turns unless they are given."""
    n = len(tokens)
    columns = {
        "sample_id": range(FIRST_ID, FIRST_ID + n),
        "split": splits or [SPLITS[i % 3] for i in range(n)],
        "tokens": tokens,
        "prefix_length": [prefix] * n,
        "suffix_length": [suffix] * n,
        "suffix_group": range(n),
        "copies": [None] * n,
    }
    return pl.DataFrame(columns, schema=tables.dtypes(SAMPLES))


def random_samples(
    n: int, prefix: int, suffix: int, splits: Sequence[str] | None = None, seed: int = 3
) -> pl.DataFrame:
    """Samples of random tokens from 1 to 60."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 61, (n, prefix + suffix), generator=generator)
    return samples_of(tokens.tolist(), prefix, suffix, splits)
