"""What every stage that runs a model has around its work."""

import pytest
import torch

from pipeline.workflow import device, running


@pytest.mark.parametrize(
    ("at_once", "slower", "warned"), [(1, 9, False), (2, 1, False), (2, 9, True)]
)
def test_threads_that_slow_each_other_are_told(
    at_once, slower, warned, threads, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(device, "LEASES", tmp_path)
    monkeypatch.setattr(running, "slowdown", lambda _: slower)
    with threads(1), running.evaluating("one", 8, notes := {}, at_once, None, streamed=True):
        assert torch.get_num_threads() == notes["threads"] == at_once
    assert ("2 threads are 9.0 times as slow as one" in capsys.readouterr().err) == warned


def test_measuring_leaves_the_threads_as_asked(threads):
    state = torch.get_rng_state()
    with threads(1):
        assert running.slowdown(2) > 0
        assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), state)
