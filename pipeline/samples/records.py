"""The samples of a family from the records of the generated corpus.

The split depends only on how often a record was planted, and is fixed before any training.
"""

import polars as pl

from pipeline.samples.frame import first_tokens, samples_frame, split_of


def samples(
    records: pl.DataFrame, prefix_length: int, suffix_length: int, memorized_copies: int
) -> pl.DataFrame:
    """Cut every record, as in `RECORDS`, into a prefix and a suffix, and put it into its split.

    Returns:
        Schema `SAMPLES`, and the column ``kind``.

    Raises:
        InputError: a record is shorter than P + S.
    """
    remedy = "make the corpus again: delete its folder and run its stage"
    tokens = first_tokens(records, prefix_length, suffix_length, "record", remedy)
    copies = records["copies"].to_list()
    splits = [split_of(planted, memorized_copies) for planted in copies]
    return samples_frame(tokens, prefix_length, splits, copies).with_columns(records["kind"])
