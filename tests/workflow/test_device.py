"""Leases: one device a job, whoever's and however it is called, free again however the job ends."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import psutil
import pytest
import torch

from pipeline.workflow import device
from pipeline.workflow.errors import InputError
from tests.project import python, started

A, B = "GPU-3a2f0000-aaaa", "GPU-7b7b0000-bbbb"

HOLD = "from pipeline.workflow.device import lease; import time\nwith lease(): time.sleep(300)"

# a forked child inherits every descriptor, one that is started by exec those without O_CLOEXEC
CHILDREN = """
import os, subprocess, sys, time
from pipeline.workflow.device import lease
with lease():
    started = subprocess.Popen(["sleep", "60"], close_fds=False).pid
    forked = os.fork()
    if not forked:
        time.sleep(60)
        os._exit(0)
    print(started, forked, os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60"))
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "leases"
    monkeypatch.setattr(device, "LEASES", folder)
    monkeypatch.setenv("GPU_LEASES", str(folder))
    monkeypatch.setattr(device, "POLL_SECONDS", 0.05)
    for variable in ("SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "DVC_STAGE"):
        monkeypatch.delenv(variable, raising=False)
    return folder


def fake_nvidia_smi(folder, monkeypatch, script=f"echo '{A}'; echo '{B}'"):
    """Put a script in place of nvidia-smi first on PATH; by default it lists A and B."""
    folder.mkdir()
    fake = folder / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path / "bin", monkeypatch)


@contextmanager
def holding(devices: str, script: str = HOLD, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has leased the first of the devices; killed in the end."""
    with started("-u", "-c", script, CUDA_VISIBLE_DEVICES=devices, **more) as holder:
        assert holder.stdout.readline() == f"leased GPU {devices.split(',')[0]}\n"
        yield holder


def _is_free(leased: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a lease of `leased`, so called, is to be had without waiting."""

    def give_up(seconds: float) -> None:
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", leased)
        # in this module alone: subprocess sleeps too
        patch.setattr(device, "time", SimpleNamespace(sleep=give_up, strftime=time.strftime))
        try:
            with device.lease():
                return True
        except TimeoutError:
            return False


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_no_gpu_means_the_cpu(monkeypatch, capsys, value):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with device.lease() as where:
        assert where == "cpu"
    assert capsys.readouterr().out == "no GPU is visible: evaluating on the CPU\n"


@pytest.mark.parametrize("said", ["echo No devices were found", "exit 9", "echo"])
def test_an_nvidia_smi_without_gpus_means_the_cpu(tmp_path, monkeypatch, said):
    fake_nvidia_smi(tmp_path / "bin", monkeypatch, said)
    assert device.visible() == []


@pytest.mark.usefixtures("two_gpus")
def test_visible_is_what_cuda_would_see(monkeypatch):
    assert device.visible() == [A, B]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " 1, MIG-GPU-3a/1/0,GPU-3a2f,-1,0")
    assert device.visible() == ["1", "MIG-GPU-3a/1/0", "GPU-3a2f"]


def test_under_slurm_nothing_is_locked(leases, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with device.lease() as where:
        assert where == "cuda"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert not leases.exists()


def test_the_devices_of_one_slurm_job_are_shared_out(monkeypatch):
    """As in an allocation in which snakemake runs; another job may count from 0 as well."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    leased = []
    for job in ("1", "2"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        with device.lease():
            first = os.environ["CUDA_VISIBLE_DEVICES"]
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
            with device.lease():
                leased.append((first, os.environ["CUDA_VISIBLE_DEVICES"]))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert leased == [("0", "1")] * 2


def test_two_leases_take_two_devices(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with holding("0,1"):
        with device.lease() as where:
            assert where == "cuda"
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("leased", ["0", A, "MIG-GPU-3a/1/0"])
def test_one_device_is_one_lock(monkeypatch, leased):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", leased)
    with device.lease():
        assert os.environ["CUDA_VISIBLE_DEVICES"] == leased
        assert not _is_free(leased, monkeypatch)
        assert all(_is_free(other, monkeypatch) for other in ("1", B, "MIG-GPU-3a/2/0"))
    assert _is_free(leased, monkeypatch)


def test_the_folder_follows_no_users_tmpdir(tmp_path, monkeypatch):
    monkeypatch.delenv("GPU_LEASES")
    asked = "from pipeline.workflow.device import LEASES; print(LEASES)"
    assert python("-c", asked, TMPDIR=str(tmp_path)).stdout == "/tmp/gpu-leases\n"


def test_whatever_the_umask_all_may_write(leases, monkeypatch):
    before = os.umask(0o077)
    try:
        assert _is_free("0", monkeypatch)
    finally:
        os.umask(before)
    assert leases.stat().st_mode & 0o7777 == 0o1777
    assert (leases / "0.lock").stat().st_mode & 0o7777 == 0o666


def test_a_folder_that_cannot_be_used_is_told(leases, monkeypatch):
    leases.touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(InputError, match="exists") as refused, device.lease():
        pass
    assert f"chmod 1777 {leases}" in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for two users")
def test_two_users_share_the_locks(monkeypatch):
    script = (
        "import os\nfrom pipeline.workflow import device\n"
        "from pipeline.workflow.errors import InputError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "device._gpus = lambda: []\ndef stop(_): raise SystemExit\ndevice.time.sleep = stop\n"
        "try:\n    with device.lease(): pass\nexcept InputError as error: print(error)\n"
    )

    def another_user(asked: str) -> str:
        done = python("-B", "-c", script, CUDA_VISIBLE_DEVICES=asked)
        assert not done.stderr
        return done.stdout

    with TemporaryDirectory(dir="/tmp") as shared:
        Path(shared).chmod(0o755)
        folder = Path(shared, "leases")
        monkeypatch.setattr(device, "LEASES", folder)
        monkeypatch.setenv("GPU_LEASES", str(folder))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        with device.lease():
            assert f"0 is leased by pid {os.getpid()} of root" in another_user("0")
            assert another_user("1") == "leased GPU 1\n"
        assert another_user("0") == "leased GPU 0\n"
        assert (folder / "1.lock").stat().st_uid == 65534
        assert _is_free("1", monkeypatch)
        folder.chmod(0o700)
        assert re.search(r"Permission denied[\s\S]*remedy", another_user("0"))


def test_waiting_says_for_whom(monkeypatch, capsys):
    with holding("0", DVC_STAGE="memorization@tiny-neo-8") as staged, holding("1") as bare:
        assert not _is_free("0,1", monkeypatch)
    who = psutil.Process().username()
    since = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(
        rf"waiting for a GPU: "
        rf"0 is leased by pid {staged.pid} of {who} \(memorization@tiny-neo-8\) {since}; "
        rf"1 is leased by pid {bare.pid} of {who} \(\S*python\S* -u -c 'from .+\) {since}\n",
        capsys.readouterr().out,
    )


def test_a_holders_words_may_be_anything(leases, monkeypatch, capsys):
    def told() -> str:
        assert not _is_free("0", monkeypatch)
        return capsys.readouterr().out

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with device.lease():
        for words in (b"", b"\xff\xfe\x00\n", b"pid 1"):
            (leases / "0.lock").write_bytes(words)
            assert "0 is leased by " in told()
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: Path("/nowhere").read_bytes())
        assert "0 is leased by an unknown process" in told()


def test_a_killed_job_frees_its_device_and_the_waiting_one_gets_it(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with holding("7") as holder:

        def kill(seconds: float) -> None:
            holder.kill()
            time.sleep(seconds)

        # in this module alone: subprocess sleeps too
        monkeypatch.setattr(device, "time", SimpleNamespace(sleep=kill, strftime=time.strftime))
        with device.lease() as where:
            assert where == "cuda"
            assert holder.wait(60) == -signal.SIGKILL, "it was waited for"
    said = capsys.readouterr().out
    assert said.count(f"waiting for a GPU: 7 is leased by pid {holder.pid}") == 1, "said once"


def test_the_lease_is_the_holders_and_not_its_childrens(monkeypatch):
    """The end of a child leaves it, and a child does not keep it when the holder is killed."""
    with holding("7", CHILDREN) as holder:
        children = [psutil.Process(int(pid)) for pid in holder.stdout.readline().split()]
        try:
            assert not _is_free("7", monkeypatch)
            children.pop().kill()
            time.sleep(0.2)
            assert not _is_free("7", monkeypatch)
            holder.kill()
            holder.wait()
            assert all(child.is_running() for child in children)
            deadline = time.monotonic() + 20  # a forked child closes the lock when it first runs
            while not (free := _is_free("7", monkeypatch)) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert free
        finally:
            for child in children:
                child.kill()


GIB = 1 << 30


def _free(monkeypatch: pytest.MonkeyPatch, *cuda: int, cpu: int = 0) -> None:
    """The free GiB that torch tells, one after the other, and those of the CPU."""
    told = iter(cuda)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (next(told) * GIB, 80 * GIB))
    monkeypatch.setattr(device, "free_ram", lambda: cpu * GIB)


@pytest.mark.parametrize(("where", "named"), [("cuda", "GPU 3"), ("cpu", "CPU")])
def test_a_model_too_large_is_refused_with_the_numbers(monkeypatch, where, named):
    monkeypatch.setattr(device, "SETTLE_SECONDS", 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    _free(monkeypatch, 10, 10, cpu=10)
    assert device.room_for(9 * GIB, where) == 9 * GIB
    device.require_memory("small", 9 * GIB, where, 9 * GIB)
    needed = int(12.75 * GIB)
    with pytest.raises(InputError) as refused:
        device.require_memory("pythia-6.9b", needed, where, device.room_for(needed, where))
    said = str(refused.value)
    assert "the weights of pythia-6.9b" in said
    assert "12.75 GiB" in said
    assert f"at most 9.00 GiB on the {named}: 90% of the free memory" in said
    assert "another device" in said
    assert "float16" in said


def test_memory_that_the_driver_is_about_to_free_is_waited_for(monkeypatch):
    _free(monkeypatch, 1, 1, 20)
    assert device.room_for(13 * GIB, "cuda") == 18 * GIB
