"""Each evaluation job leases a GPU of its own; snakemake runs each by `dvc repro`.

The GPUs are fake: a script in place of nvidia-smi. That a killed job frees its GPU, and that one of
another project is not taken, is tested in tests/workflow/test_device.py.
"""

from pathlib import Path

import pytest

from tests.dag.conftest import Project, wait
from tests.dag.test_agreement import EVALUATION
from tests.workflow.test_device import A, B, fake_nvidia_smi

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


def _log(project: Project) -> list[list[str]]:
    log = project.root / "leases.txt"
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def test_two_jobs_side_by_side_have_two_devices(
    fresh: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, hold = fresh.root / "pipeline/__main__.py", fresh.root / "hold"
    main.rename(main.with_name("stub.py"))
    main.write_text(LEASING)
    fake_nvidia_smi(tmp_path / "bin", monkeypatch)
    monkeypatch.setenv("GPU_LEASES", str(tmp_path / "leases"))
    for variable in ("SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "DVC_STAGE"):
        monkeypatch.delenv(variable, raising=False)
    hold.touch()
    with fresh.start("snakemake", "--cores", "4", "--resources", "gpu=2") as running:
        try:
            wait(lambda: len(_log(fresh)) == 2)
            assert {device for _, _, device, _ in _log(fresh)} == {A, B}
        finally:
            hold.unlink()
        assert running.wait(timeout=300) == 0
    assert {stage for event, stage, *_ in _log(fresh) if event == "end"} == EVALUATION
    holder: dict[str, str] = {}
    for event, _, device, pid in _log(fresh):
        if event == "start":
            assert device not in holder, "it has two holders at a time"
            holder[device] = pid
        else:
            assert holder.pop(device) == pid
