"""Leases: one device a job, free again however the job ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline import device

HOLD = "from pipeline.device import lease; import time\nwith lease(): time.sleep(60)"


@pytest.fixture(autouse=True)
def _own_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def _hold(tmp_path: Path, devices: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": devices, "TMPDIR": str(tmp_path)}
    holder = subprocess.Popen(
        [sys.executable, "-u", "-c", HOLD], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == f"leased GPU {devices.split(',')[0]}\n"
    return holder


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_no_gpu_means_the_cpu(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with device.lease() as where:
        assert where == "cpu"


def test_two_leases_take_two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _hold(tmp_path, "0,1") as holder:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        with device.lease() as where:
            assert where == "cuda"
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
        holder.kill()


def test_a_killed_job_frees_its_device_and_the_waiting_one_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device, "POLL_SECONDS", 0.05)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with _hold(tmp_path, "7") as holder:
        killer = subprocess.Popen(["sh", "-c", f"sleep 1; kill -9 {holder.pid}"])
        started = time.monotonic()
        with device.lease() as where:
            assert where == "cuda"
            assert time.monotonic() - started > 0.5
        killer.wait()
        assert holder.wait() == -signal.SIGKILL
    assert "waiting for one of the GPUs 7" in capsys.readouterr().out


def test_under_slurm_nothing_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with device.lease() as where:
        assert where == "cuda"
    assert not list(tmp_path.iterdir())
