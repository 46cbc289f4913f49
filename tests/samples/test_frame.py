"""Samples of both splits, in a table that the rest of the pipeline can read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

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
