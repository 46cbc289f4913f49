"""Each evaluation job leases a GPU of its own, whichever engine runs it.

The GPUs are fake: a script in place of nvidia-smi. That a killed job frees its GPU is tested in
tests/workflow/test_device.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.dag.conftest import Project, wait
from tests.dag.test_agreement import EVALUATION
from tests.workflow.test_device import A, B, fake_nvidia_smi, holding

pytestmark = pytest.mark.slow

# before the stub an evaluation leases a GPU, notes so, and keeps it while there is a file `hold`
LEASING = """
import os, time
from pathlib import Path
from pipeline.workflow.device import lease

def note(event):
    device = os.environ["CUDA_VISIBLE_DEVICES"]
    words = (event, os.environ["DVC_STAGE"], device, os.getpid())
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
    events = [Event(w, stage, device, int(pid)) for w, stage, device, pid in lines]
    return [event for event in events if what in event.what]


def _assert_none_shared(events: list[Event]) -> None:
    """No device has two holders at a time."""
    holder: dict[str, int] = {}
    for event in events:
        if event.what == "start":
            assert event.device not in holder, events
            holder[event.device] = event.pid
        else:
            assert holder.pop(event.device) == event.pid, events


def test_two_jobs_side_by_side_have_two_devices(leasing: Project) -> None:
    with _snakemake(leasing, gpus=2) as running:
        wait(lambda: len(_log(leasing, "start")) == 2)
        assert {event.device for event in _log(leasing)} == {A, B}
        (leasing.root / "hold").unlink()
        assert running.wait(timeout=120) == 0
    assert {event.stage for event in _log(leasing, "end")} == EVALUATION
    _assert_none_shared(_log(leasing))


def test_dvc_alone_leases_too(leasing: Project) -> None:
    """Each stage takes the GPU that another's job, outside of this project, has left."""
    with holding(A):
        leasing.dvc("repro")
    assert {event.stage for event in _log(leasing, "end")} == EVALUATION
    assert {event.device for event in _log(leasing)} == {B}
    _assert_none_shared(_log(leasing))
