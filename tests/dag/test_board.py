"""What a terminal shows of a run: a line a stage, an error with its words, and no more."""

import os
import pty
import re
import subprocess
from contextlib import suppress

import pytest

from tests.dag.conftest import ENGINES, Project
from tests.dag.test_agreement import ALL

pytestmark = pytest.mark.slow


def _on_a_terminal(project: Project) -> str:
    """Run snakemake on a terminal; what this shows, without colours and cursor."""
    ours, theirs = pty.openpty()
    environment = {**project.environment, "TERM": "xterm", "COLUMNS": "200"}
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    command = ENGINES["snakemake"]
    got = list[bytes]()
    with subprocess.Popen(command, cwd=project.root, env=environment, **streams):
        os.close(theirs)
        with suppress(OSError):  # the other end is closed
            while True:
                got.append(os.read(ours, 65536))
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(got).decode())


def test_a_line_a_stage_and_the_words_of_an_error(fresh: Project) -> None:
    (fresh.root / "fail").mkdir()
    wrong = fresh.root / "fail/figures@mini"
    wrong.touch()
    said = _on_a_terminal(fresh)
    lines = [line.strip() for line in said.splitlines()]
    done = {line.partition(": done in ")[0] for line in lines if ": done in " in line}
    assert done == ALL - {"check@mini", "figures@mini", "report@mini"}
    assert "figures@mini: failed after" in said
    assert "figures@mini was told to fail" in said, "from the stage's log"
    assert f"of {len(ALL) - 1}" in said
    for usual in ("resources:", "jobid: 1", "Finished jobid", "Select jobs", "Job stats"):
        assert usual not in said.partition("figures@mini: failed")[0]
    (log,) = (fresh.root / ".snakemake/log").iterdir()
    assert "resources:" in log.read_text()
    wrong.unlink()
    assert "report@mini: done in" in _on_a_terminal(fresh)
    said = _on_a_terminal(fresh)
    assert "Nothing to be done" in said
    assert len(said.splitlines()) < 6
    assert "Job stats" in fresh.snakemake("--forcerun", "report").stderr, "no terminal"
