"""What that is told to end, or is killed, goes on where it was. `kills.py` does it often."""

import random
import signal
import time
from pathlib import Path

import pytest

from tests.faults.kills import DIRECT, command_of, prepare, trial
from tests.project import started

pytestmark = pytest.mark.slow

JOB = ("memorization", "p-0.1")
COMMAND = command_of(DIRECT, *JOB)


def test_interrupted_killed_and_taken_up_again(tmp_path: Path) -> None:
    """One test, so that tests side by side do not each train the model."""
    project = prepare(tmp_path / "project", JOB[1:])
    project.command(*COMMAND)
    reference = project.tables()
    total = project.told(*JOB)["total"]
    assert total > 12, "the run goes on for a while after the shards at which it is ended"
    assert not (project.data / "partial").exists()
    for table in project.tables():  # or the next run would take its rows
        (project.data / table).unlink()

    for after, number in ((1, signal.SIGTERM), (3, signal.SIGINT)):
        with project.start(*COMMAND) as running:
            while project.shards(*JOB) < after:
                assert running.poll() is None, (project.root / "said.txt").read_text()
                time.sleep(0.02)
            running.send_signal(number)
            assert running.wait(30) == 128 + number
        said = (project.root / "said.txt").read_text()
        kept = project.shards(*JOB)
        assert kept >= after
        line = f"interrupted: {kept} of {total} shards are kept; the same command goes on"
        assert said.splitlines()[-1] == line
        assert said.count("interrupted") == 1
        assert "Traceback" not in said

    outcome = trial(
        project, reference, command_of("dvc", *JOB), "dvc", kept + 1, 0.0, random.Random(0)
    )
    assert outcome.good
    assert outcome.kept > kept
    assert outcome.kept + outcome.computed == total


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_deep_in_a_product(number: signal.Signals) -> None:
    """The main thread does not come back to Python for a minute."""
    script = (
        "import hashlib; from pipeline.workflow.interruption import watch;"
        "watch(); print(flush=True);"
        "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"
    )
    with started("-c", script) as running:
        running.stdout.readline()
        running.send_signal(number)
        assert running.wait(30) == 128 + number
        said = running.stderr.read()
    assert said.strip() == "interrupted: what is finished is kept; the same command goes on"
