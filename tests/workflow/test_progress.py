"""How far it is: a bar on a terminal, and in a log a plain line now and then."""

import io
import logging
import re
import sys

import pytest
from rich.console import Console
from tqdm import tqdm

from pipeline.workflow import progress
from pipeline.workflow.board import Board, take_over
from tests.project import python


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_in_a_log_a_line_comes_now_and_then(clock, capsys):
    report = progress.reporter("memorization", "samples")
    for second in range(1, 25):
        clock[0] = 100.0 + second
        report(second, 24)
    said = [line.partition("%") for line in capsys.readouterr().err.splitlines()]
    assert [before for before, _, _ in said] == ["memorization:  42", "memorization:  83"]
    assert "| 10/24 [" in said[0][2]
    assert said[0][2].endswith(" samples/s]")


def test_a_stage_of_a_killed_run_that_still_writes_stops_no_board(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    progress.PROGRESS.mkdir(parents=True)
    monkeypatch.setattr("pipeline.workflow.board.shutil.rmtree", lambda *_, **__: None)  # not empty
    board = Board(logging.StreamHandler(io.StringIO()))
    board._shown.live.console = Console(file=io.StringIO())
    board.start({1: "memorization@one"})
    board.stop()


def test_a_stage_says_how_far_it_is_and_the_board_shows_it(clock, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_STAGE", "memorization@one")
    logger, said = logging.Logger("snakemake", logging.INFO), io.StringIO()
    monkeypatch.setattr(said, "isatty", lambda: True)
    handler = logging.StreamHandler(said)
    handler.name = "DefaultStreamHandler"
    logger.addHandler(handler)
    board = take_over(logger)
    board._shown.live.console = Console(file=said, force_terminal=True, width=100)
    board._shown.live.auto_refresh = False
    board.start({1: "memorization@one", 2: "tokens@one"})
    logger.info("Execute 1 jobs...", extra={"event": "job_started", "jobs": [0, 1]})
    report = progress.reporter("memorization of one", "samples")
    for second in range(1, 6):
        clock[0] = 100.0 + second
        report(second * 10, 448)
    written = progress.PROGRESS.joinpath("memorization@one").read_text()
    assert written.startswith("50 of 448 samples, ")
    board._shown.refresh()
    assert re.search(r"all stages +0 of 2 ", said.getvalue())
    told = r"memorization@one +50 of 448 samples, [\d.]+ (s|min|h) left "
    assert re.search(told, said.getvalue())
    clock[0] += 60
    logger.info("Finished", extra={"event": "job_finished", "job_id": 1})
    logger.info("Building DAG of jobs...")
    logger.error("what happened")
    board.stop()
    assert "memorization@one: done in 65 s" in said.getvalue()
    assert re.search(r"all stages +1 of 2 ", said.getvalue())
    assert "what happened" in said.getvalue()
    assert "Building" not in said.getvalue()
    assert not progress.PROGRESS.exists()
    report(400, 448)  # and nobody looks


def test_a_librarys_bar_is_lines_in_a_log(clock, capsys):
    bars = [progress.bar_class()(total=100, unit="B", position=i) for i in range(3)]
    for bar in bars:
        bar.update(10)
    assert "".join(capsys.readouterr()) == "", "what takes no time is not told"
    clock[0] += 11
    bars[1].set_description("Downloading", refresh=True)
    said = capsys.readouterr().err
    assert said.startswith("Downloading:  10%|")
    assert said.count("\n") == 1
    for bar in bars:
        bar.clear()
        bar.close()
    assert "".join(capsys.readouterr()) == "", "and no cursor is moved"


def test_on_a_terminal_it_is_a_bar(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert progress.bar_class() is tqdm


def test_a_command_starts_no_monitor_thread():
    """Starting it can wait for ever: see `progress.disable_monitor`."""
    command = """if True:
        import sys, threading
        from datasets.utils import tqdm  # as a library makes its bars
        from pipeline.__main__ import main

        sys.argv = ["pipeline", "--help"]
        try:
            main()
        except SystemExit:
            list(tqdm(range(3)))
            print([type(each).__name__ for each in threading.enumerate()])
    """
    done = python("-c", command)
    assert done.stdout.splitlines()[-1] == "['_MainThread', 'Thread']", done.stderr
