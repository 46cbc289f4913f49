"""The samples table from token ids: what every source of samples ends with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.tables import SAMPLES


def samples_frame(
    tokens: NDArray[np.integer],
    prefix_length: int,
    splits: Sequence[str],
    copies: Sequence[int | None],
) -> pl.DataFrame:
    """The samples table of N samples of equal length.

    Args:
        tokens: (N, P + S) token ids.
        prefix_length: P, tokens; the rest is the suffix.
        splits: (N,) memorized, exposed or control.
        copies: (N,) times that a sample is in the training data; None where that is unknown.

    Returns:
        tables.SAMPLES; `sample_id` is the row of `tokens`, and samples whose suffixes are equal
        share a `suffix_group`, so that intervals can be clustered by it.
    """
    suffixes = tokens[:, prefix_length:]
    _, groups = np.unique(suffixes, axis=0, return_inverse=True)
    count = len(tokens)
    columns = {
        "sample_id": np.arange(count),
        "split": splits,
        "tokens": tokens.tolist(),
        "prefix_length": np.full(count, prefix_length),
        "suffix_length": np.full(count, suffixes.shape[1]),
        "suffix_group": groups,
        "copies": copies,
    }
    return pl.DataFrame(columns, schema={name: c.dtype for name, c in SAMPLES.items()})


def with_control(
    memorized: NDArray[np.integer], control: NDArray[np.integer], prefix_length: int
) -> pl.DataFrame:
    """The samples table of samples whose copies nobody has counted.

    Args:
        memorized: (M, P + S) token ids.
        control: (C, P + S) token ids.
        prefix_length: P, tokens.
    """
    splits = ["memorized"] * len(memorized) + ["control"] * len(control)
    tokens = np.concatenate([memorized.astype(np.uint32), control.astype(np.uint32)])
    return samples_frame(tokens, prefix_length, splits, [None] * len(tokens))
