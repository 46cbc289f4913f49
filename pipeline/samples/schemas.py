"""The schema of the samples table, and its reading."""

from pathlib import Path

import polars as pl

from pipeline.workflow import tables
from pipeline.workflow.errors import bad_input
from pipeline.workflow.tables import Column, Schema

SPLITS = ("memorized", "exposed", "control", "famous")

SAMPLES: Schema = {
    "sample_id": Column(pl.UInt32, "unique within the table"),
    "split": Column(pl.String, "memorized, exposed, control or famous"),
    "tokens": Column(pl.List(pl.UInt32), "prefix and suffix, token ids"),
    "prefix_length": Column(pl.UInt16, "P, tokens"),
    "suffix_length": Column(pl.UInt16, "S, tokens"),
    "suffix_group": Column(pl.UInt32, "samples with equal or nearly equal suffixes share it"),
    "copies": Column(pl.UInt32, "times in the training data; null where unknown", nullable=True),
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
