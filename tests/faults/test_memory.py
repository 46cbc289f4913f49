"""A table takes no more memory than its rows need; `memory.py` measures every step at full size."""

from pathlib import Path

import pytest

from tests.faults.memory import peak

FEW, MANY = (200, 15), (6_000, 95)
"""Samples and blocks: 4,000 rows, and 600,000 of 250 bytes."""

BYTES_A_ROW = 700
"""With which two million rows stay below 2 GB, all libraries included."""


@pytest.mark.slow
def test_memory_follows_the_rows(tmp_path: Path) -> None:
    peaks = []
    for size in (FEW, MANY):
        folder = tmp_path / str(size[0])
        peak("samples", folder, *size)
        peaks.append(peak("memorization", folder, *size))
    assert (peaks[1] - peaks[0]) * 2**30 < 600_000 * BYTES_A_ROW
