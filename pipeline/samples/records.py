"""The samples of a family from the records of the generated corpus.

The split depends only on how often a record was planted, and is fixed before any training.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from pipeline.samples.frame import first_of, samples_frame, split_of
from pipeline.workflow.errors import bad_input


def samples(
    records: pl.DataFrame, prefix_length: int, suffix_length: int, memorized_copies: int
) -> pl.DataFrame:
    """Cut every record into a prefix and a suffix, and put it into its split.

    Args:
        records: schema `RECORDS`, in the order of their ids from 0.
        prefix_length: P, tokens.
        suffix_length: S, tokens; P + S is at most a record's length.
        memorized_copies: see `frame.split_of`.

    Returns:
        Schema `SAMPLES`, and the column ``kind``.

    Raises:
        InputError: a record is shorter than P + S.
    """
    length = prefix_length + suffix_length
    if len(short := records.filter(pl.col("tokens").list.drop_nulls().list.len() < length)):
        raise bad_input(
            first_of(f"record {short['record_id'][0]}", len(short)),
            f"{short['tokens'].list.drop_nulls().list.len()[0]} tokens",
            f"{length} or more: {prefix_length} of prefix and {suffix_length} of suffix",
            "make the corpus again: delete its folder and run its stage",
        )
    tokens = np.array(records["tokens"].list.head(length).to_list())
    copies = records["copies"].to_list()
    splits = [split_of(planted, memorized_copies) for planted in copies]
    return samples_frame(tokens, prefix_length, splits, copies).with_columns(records["kind"])
