"""The line that an interrupted command says is written whole, once, before the process ends."""

from __future__ import annotations

import threading

import pytest

from pipeline.workflow import interruption


def test_who_comes_second_waits_until_the_line_is_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The main thread and the one that stands by are woken by the same signal."""
    began, counted = threading.Event(), threading.Event()

    def line() -> str:
        began.set()
        assert counted.wait(60)
        return "2 of 6 shards are kept"

    monkeypatch.setattr(interruption, "_lines", [line])
    monkeypatch.setattr(interruption, "_told", False)
    first = threading.Thread(target=interruption._tell)
    first.start()
    began.wait()
    threading.Timer(0.1, counted.set).start()
    interruption._tell()
    assert capfd.readouterr().err == "\ninterrupted: 2 of 6 shards are kept\n"
    first.join()
