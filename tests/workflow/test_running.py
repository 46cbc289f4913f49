"""What every stage that runs a model has around its work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.workflow import device, running


@pytest.mark.parametrize(
    ("threads", "slower", "warned"), [(1, 9, False), (2, 1, False), (2, 9, True)]
)
def test_threads_that_slow_each_other_are_told(
    threads: int,
    slower: float,
    warned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(device, "LEASES", tmp_path)
    monkeypatch.setattr(running, "slowdown", lambda _: slower)
    before = torch.get_num_threads()
    try:
        with running.evaluating("one", 8, notes := {}, threads, None, streamed=True):
            assert torch.get_num_threads() == notes["threads"] == threads
    finally:
        torch.set_num_threads(before)
    assert ("2 threads are 9.0 times as slow as one" in capsys.readouterr().err) == warned


def test_measuring_leaves_the_threads_as_asked() -> None:
    before, state = torch.get_num_threads(), torch.get_rng_state()
    try:
        assert running.slowdown(2) > 0
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_num_threads(before)
