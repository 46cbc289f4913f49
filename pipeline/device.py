"""Lease one GPU for this process, or take the CPU.

Snakemake's ``--resources gpu=2`` counts jobs and assigns no device, and ``dvc repro`` does not even
count. So each evaluation leases its own device: a lock on one of the machine's GPUs, held as long
as the process lives, which the kernel drops when the process dies, however it dies.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

POLL_SECONDS = 1.0


def visible() -> list[str]:
    """The GPUs that this process may use: CUDA_VISIBLE_DEVICES if it is set, else nvidia-smi's.

    Returns:
        indices or UUIDs as CUDA takes them; empty where there is none.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        named = [device.strip() for device in chosen.split(",")]
        return [device for device in named if device not in ("", "-1", "NoDevFiles")]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.split()


@contextmanager
def lease() -> Iterator[str]:
    """Yield ``"cuda"`` with one device that no other lease holds, or ``"cpu"`` without a GPU.

    Waits for a device, and says so. Under SLURM the scheduler has assigned devices already, so
    none is locked. CUDA_VISIBLE_DEVICES is narrowed to the leased device for this process and its
    children: call it before CUDA is initialized.
    """
    devices = visible()
    if not devices:
        print("no GPU is visible: evaluating on the CPU", flush=True)
        yield "cpu"
        return
    if "SLURM_JOB_ID" in os.environ:
        yield "cuda"
        return
    device, lock = _acquire(devices)
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = device
    try:
        print(f"leased GPU {device}", flush=True)
        yield "cuda"
    finally:
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        lock.release()


def _acquire(devices: list[str]) -> tuple[str, FileLock]:
    folder = Path(tempfile.gettempdir()) / "gpu-leases"  # machine-wide, not a user's own
    folder.mkdir(exist_ok=True)
    with suppress(PermissionError):  # the one who made it has opened it to all, past the umask
        folder.chmod(0o777)
    waiting = False
    while True:
        for device in devices:
            lock = FileLock(folder / f"{device}.lock", mode=0o666)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            return device, lock
        if not waiting:
            waiting = True
            print(f"waiting for one of the GPUs {', '.join(devices)}: all are leased", flush=True)
        time.sleep(POLL_SECONDS)
