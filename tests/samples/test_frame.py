"""Samples of arrays and of planted records, in a table that the rest of the pipeline can read."""

from pathlib import Path

import numpy as np
import polars as pl

from pipeline.corpus.schemas import RECORDS as RECORDS_SCHEMA
from pipeline.samples import records
from pipeline.samples.frame import window, with_control
from pipeline.samples.schemas import SAMPLES
from pipeline.workflow import tables


def test_control_samples_follow_the_memorized_ones(tmp_path: Path) -> None:
    memorized = np.array([[1, 2, 3], [4, 2, 3]], np.uint16)
    control = np.array([[70_000, 8, 9]], np.uint32)
    made = with_control(memorized, control, prefix_length=1)
    assert made["split"].to_list() == ["memorized", "memorized", "control"]
    assert made["tokens"].to_list() == [[1, 2, 3], [4, 2, 3], [70_000, 8, 9]]
    assert made["sample_id"].to_list() == [0, 1, 2]
    assert made["prefix_length"].to_list() == [1] * 3
    assert made["suffix_length"].to_list() == [2] * 3
    assert made["copies"].to_list() == [None] * 3, "nobody has counted them"
    first, second, third = made["suffix_group"].to_list()
    assert first == second != third
    tables.write(made, tmp_path / "t.parquet", SAMPLES, {})


def test_a_window_lies_around_the_boundary() -> None:
    passages = np.arange(400).reshape(2, 200)
    assert window(passages, 150, 150, 50).tolist() == passages.tolist()
    assert window(passages, 150, 10, 4).tolist() == [[*range(140, 154)], [*range(340, 354)]]


RECORDS = pl.DataFrame(
    {
        "record_id": [0, 1, 2, 3],
        "kind": ["key", "log", "key", "log"],
        "copies": [64, 32, 1, 0],
        "tokens": [[1, 2, 3, 4], [5, 6, 3, 4], [1, 2, 4, 3], [9, 9, 9, 9]],
    },
    schema=tables.dtypes(RECORDS_SCHEMA),
)


def test_the_copies_of_a_record_fix_its_split(tmp_path: Path) -> None:
    made = records.samples(RECORDS, 2, 2, memorized_copies=32)
    assert made["split"].to_list() == ["memorized", "memorized", "exposed", "control"]
    for column in ("tokens", "copies", "kind"):
        assert made[column].to_list() == RECORDS[column].to_list()
    groups = made["suffix_group"].to_list()
    assert groups[0] == groups[1]
    assert len(set(groups)) == 3
    tables.write(made, tmp_path / "t.parquet", SAMPLES, {})


def test_shorter_samples_keep_the_front_of_a_record() -> None:
    made = records.samples(RECORDS, 1, 2, memorized_copies=64)
    assert made["tokens"].to_list()[0] == [1, 2, 3]
    assert made["split"].to_list() == ["memorized", "exposed", "exposed", "control"]
    assert set(made["prefix_length"]) == {1}
    assert set(made["suffix_length"]) == {2}
