"""Which content of dvc.lock is recognized as cut short."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.workflow.dag import _set_aside_damaged_lock

WHOLE = b"schema: '2.0'\nstages:\n  check@mini:\n    cmd: python -m pipeline stage\n"


@pytest.mark.parametrize("cut", [b"", WHOLE[:30], WHOLE[:-1], b"schema: '2.0\n", b"\xff\n", b"1\n"])
def test_what_a_kill_left_is_set_aside(tmp_path: Path, cut: bytes) -> None:
    lock = tmp_path / "dvc.lock"
    lock.write_bytes(cut)
    _set_aside_damaged_lock(lock)
    assert not lock.exists()
    assert (tmp_path / "dvc.lock.damaged").read_bytes() == cut


def test_a_whole_lock_stays(tmp_path: Path) -> None:
    lock = tmp_path / "dvc.lock"
    _set_aside_damaged_lock(lock)  # none
    lock.write_bytes(WHOLE)
    _set_aside_damaged_lock(lock)
    assert lock.read_bytes() == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["dvc.lock"]
