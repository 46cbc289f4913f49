"""The schema of the samples table, and its reading."""

from pathlib import Path

import polars as pl

from pipeline.workflow import tables
from pipeline.workflow.errors import bad_input
from pipeline.workflow.tables import Schema, string, uint16, uint32, uint32s

SPLITS = ("memorized", "exposed", "control", "famous")

SAMPLES: Schema = {
    "sample_id": uint32("unique within the table"),
    "split": string("memorized, exposed, control or famous"),
    "tokens": uint32s("prefix and suffix, token ids"),
    "prefix_length": uint16("P, tokens"),
    "suffix_length": uint16("S, tokens"),
    "suffix_group": uint32("samples with equal or nearly equal suffixes share it"),
    "copies": uint32("times in the training data; null where unknown", nullable=True),
}


def samples_file(data: Path, family: str) -> Path:
    """The file of a family's samples in the data folder of a study."""
    return data / "samples" / f"{family}.parquet"


def read_samples(data: Path, family: str) -> pl.DataFrame:
    """A family's samples, schema `SAMPLES`.

    Raises:
        InputError: as for `tables.read`, or there is no sample.
    """
    path = samples_file(data, family)
    samples = tables.read(path, SAMPLES)
    if samples.is_empty():
        raise bad_input(str(path), "no sample", "one or more", tables.MAKE_AGAIN)
    return samples
