"""Each evaluation job leases a GPU of its own, whichever engine runs it, and a killed one frees it.

The GPUs are fake: a script in place of nvidia-smi.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.dag.conftest import Project, wait
from tests.workflow.test_device import HOLD, A, B, fake_nvidia_smi

pytestmark = pytest.mark.slow

EVALUATIONS = {
    f"{group}@mini-{model}"
    for group in ("memorization", "tokens", "benchmarks", "generations", "divergence")
    for model in ("p-1_4b", "n-2_7b")
}

# before the stub an evaluation leases a GPU, notes so, and keeps it while there is a file `hold`
LEASING = """
import os, time
from pathlib import Path
from pipeline.workflow.device import lease

def note(event):
    device = os.environ["CUDA_VISIBLE_DEVICES"]
    words = (event, os.environ["DVC_STAGE"], device, os.getpid(), time.time())
    with Path("leases.txt").open("a") as log:
        print(*words, file=log)

evaluations = ("memorization", "tokens", "benchmarks", "generations", "divergence")
if os.environ["DVC_STAGE"].startswith(evaluations):
    with lease():
        note("start")
        while Path("hold").exists():
            time.sleep(0.05)
        note("end")
import pipeline.stub
"""


@dataclass(frozen=True)
class Event:
    """A line of leases.txt."""

    what: str
    stage: str
    device: str
    pid: int
    when: float


@pytest.fixture
def leasing(fresh: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A fresh project with two GPUs, whose evaluations lease."""
    (fresh.root / "pipeline/__main__.py").rename(fresh.root / "pipeline/stub.py")
    (fresh.root / "pipeline/__main__.py").write_text(LEASING)
    fake_nvidia_smi(tmp_path / "bin", monkeypatch)
    monkeypatch.setenv("GPU_LEASES", str(tmp_path / "leases"))
    for variable in ("SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "DVC_STAGE"):
        monkeypatch.delenv(variable, raising=False)
    return fresh


@contextmanager
def _snakemake(project: Project, gpus: int) -> Iterator[subprocess.Popen[str]]:
    """Snakemake at work, whose evaluations keep their GPUs until `hold` is unlinked."""
    (project.root / "hold").touch()
    with project.start("snakemake", "--cores", "4", "--resources", f"gpu={gpus}") as running:
        try:
            yield running
        finally:
            (project.root / "hold").unlink(missing_ok=True)


def _log(project: Project, what: str = "") -> list[Event]:
    log = project.root / "leases.txt"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    events = [Event(w, stage, device, int(pid), float(t)) for w, stage, device, pid, t in lines]
    return [event for event in events if what in event.what]


def _waiting(project: Project) -> list[str]:
    """The logs of the stages that say that they wait."""
    logs = [log.read_text() for log in (project.root / "logs/mini").glob("*/*.log")]
    return [log for log in logs if "waiting for a GPU: " in log]


def _assert_none_shared(events: list[Event], killed: int | None = None) -> None:
    """No device has two holders at a time; a lease that was killed ends where the next begins."""
    holder: dict[str, int] = {}
    for event in events:
        if event.what == "start":
            assert holder.get(event.device) in (None, killed), events
            holder[event.device] = event.pid
        else:
            assert holder.pop(event.device) == event.pid, events


def test_two_jobs_side_by_side_have_two_devices(leasing: Project) -> None:
    with _snakemake(leasing, gpus=2) as running:
        wait(lambda: len(_log(leasing, "start")) == 2)
        assert {event.device for event in _log(leasing)} == {A, B}
        (leasing.root / "hold").unlink()
        assert running.wait(timeout=120) == 0
    assert {event.stage for event in _log(leasing, "end")} == EVALUATIONS
    _assert_none_shared(_log(leasing))


def test_a_killed_job_hands_its_device_to_the_next(leasing: Project) -> None:
    # more jobs at a time than there are devices: two of them wait
    with _snakemake(leasing, gpus=4) as running:
        wait(lambda: len(_waiting(leasing)) == 2)
        victim, other = _log(leasing)
        named = [f"{e.device} is leased by pid {e.pid} of " for e in (victim, other)]
        named += [f"({e.stage}) since " for e in (victim, other)]
        wait(lambda: all(word in said for said in _waiting(leasing) for word in named), seconds=10)
        killed = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        wait(lambda: len(_log(leasing, "start")) == 3, seconds=10)
        heir = _log(leasing)[-1]
        assert heir.device == victim.device
        assert heir.when - killed < 3, "within about a poll"
        (leasing.root / "hold").unlink()
        assert running.wait(timeout=120) != 0
    assert {event.stage for event in _log(leasing, "end")} == EVALUATIONS - {victim.stage}
    _assert_none_shared(_log(leasing), victim.pid)


def test_dvc_alone_leases_too(leasing: Project) -> None:
    """Each stage takes the GPU that another's job, outside of this project, has left."""
    with subprocess.Popen(
        [sys.executable, "-u", "-c", HOLD],
        cwd=leasing.root,
        env={**leasing.environment, "CUDA_VISIBLE_DEVICES": A},
        stdout=subprocess.PIPE,
    ) as another:
        try:
            assert another.stdout is not None
            assert another.stdout.readline() == f"leased GPU {A}\n".encode()
            leasing.dvc("repro")
        finally:
            another.kill()
    assert {event.stage for event in _log(leasing, "end")} == EVALUATIONS
    assert {event.device for event in _log(leasing)} == {B}
    _assert_none_shared(_log(leasing))
