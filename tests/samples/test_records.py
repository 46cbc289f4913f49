"""Planted records become samples whose split is fixed by how often they were planted."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipeline.corpus import schemas
from pipeline.samples.records import samples
from pipeline.samples.schemas import SAMPLES
from pipeline.workflow import tables

RECORDS = pl.DataFrame(
    {
        "record_id": [0, 1, 2, 3],
        "kind": ["key", "log", "key", "log"],
        "copies": [64, 32, 1, 0],
        "tokens": [[1, 2, 3, 4], [5, 6, 3, 4], [1, 2, 4, 3], [9, 9, 9, 9]],
    },
    schema=tables.dtypes(schemas.RECORDS),
)


def test_splits_lengths_and_groups(tmp_path: Path) -> None:
    made = samples(RECORDS, 2, 2, memorized_copies=32)
    assert made["split"].to_list() == ["memorized", "memorized", "exposed", "control"]
    assert made["tokens"].to_list() == RECORDS["tokens"].to_list()
    assert made["copies"].to_list() == [64, 32, 1, 0]
    assert made["kind"].to_list() == RECORDS["kind"].to_list()
    groups = made["suffix_group"].to_list()
    assert groups[0] == groups[1]
    assert len(set(groups)) == 3
    tables.write(made, tmp_path / "t.parquet", SAMPLES, {})


def test_shorter_samples_keep_the_front() -> None:
    made = samples(RECORDS, 1, 2, memorized_copies=64)
    assert made["tokens"].to_list()[0] == [1, 2, 3]
    assert made["split"].to_list() == ["memorized", "exposed", "exposed", "control"]
    assert made["prefix_length"].unique().to_list() == [1]
    assert made["suffix_length"].unique().to_list() == [2]
