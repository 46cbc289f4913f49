"""Lease one GPU for this process, or take the CPU; reject a model that is too large for it.

Snakemake's ``--resources gpu=2`` counts jobs but assigns no device, and ``dvc repro`` does not even
count. So each evaluation leases its own device: a lock on one of the machine's GPUs, shared by all
users and held as long as the process lives. The kernel drops the lock however the process dies.
Children do not inherit it: the process that leases a GPU is the one that computes.
"""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from pipeline.workflow.errors import bad_input
from pipeline.workflow.ram import free_ram

LEASES = Path(os.environ.get("GPU_LEASES", "/tmp/gpu-leases"))  # noqa: S108  shared
"""One for all users, so not below TMPDIR, which may be each user's own; GPU_LEASES is for tests."""

POLL_SECONDS = 1.0

WEIGHTS_SHARE = 0.9
"""The share of the free memory that weights may take. The rest must hold the activations of at
least one row, and the overhead of CUDA's libraries and of the allocator's rounding."""

SETTLE_SECONDS = 10.0
"""The driver may give a killed process's memory back a moment after the kernel drops its lease."""

_GIB = 1 << 30


def visible() -> list[str]:
    """The GPUs that this process may use: CUDA_VISIBLE_DEVICES if it is set, else nvidia-smi's.

    Returns:
        indices or UUIDs as CUDA takes them; empty without a GPU.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return _gpus()
    named = (device.strip() for device in chosen.split(","))
    # like CUDA, which ignores the first entry that it cannot read, such as -1, and all after it
    return list(takewhile(re.compile(r"\d+|(GPU|MIG)-.+").fullmatch, named))


@contextmanager
def lease() -> Iterator[str]:
    """Yield ``"cuda"`` with one device that no other lease holds, or ``"cpu"`` without a GPU.

    Waits for a device, and prints which processes hold the leases. A SLURM job of one device has
    been given it, so none is locked; in a job of several they are shared out here.
    CUDA_VISIBLE_DEVICES is narrowed to the leased device for this process and its children, so call
    it before CUDA is initialized.

    Raises:
        InputError: the folder of the leases cannot be used.
    """
    devices = visible()
    if not devices:
        print("no GPU is visible: evaluating on the CPU", flush=True)
        yield "cpu"
        return
    if "SLURM_JOB_ID" in os.environ and len(devices) == 1:
        yield "cuda"
        return
    device, lock = _acquire(devices)
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = device
    try:
        print(f"leased GPU {device}", flush=True)
        yield "cuda"
    finally:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        lock.release()


def room_for(needed: int, device: str) -> int:
    """Bytes that the weights of a model may take: WEIGHTS_SHARE of the memory that is free.

    If fewer are free than are needed, it is asked again for some seconds. The device is what
    `lease` yielded.
    """
    deadline = time.monotonic() + (SETTLE_SECONDS if device == "cuda" else 0)
    while needed > (room := int(WEIGHTS_SHARE * free_bytes(device))):
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    return room


def require_memory(model: str, needed: int, device: str, room: int) -> None:
    """Raise if a model does not fit, before it is loaded.

    Raises:
        InputError: the bytes that its weights take are more than there is room for.
    """
    if needed > room:
        where = f"GPU {os.environ.get('CUDA_VISIBLE_DEVICES', '')}" if device == "cuda" else "CPU"
        raise bad_input(
            what=f"the weights of {model}",
            got=f"{needed / _GIB:.2f} GiB",
            expected=f"at most {room / _GIB:.2f} GiB on the {where}: {WEIGHTS_SHARE:.0%} of "
            "the free memory, or run.device_memory; activations need the rest",
            remedy="another device, ending what else runs on this one, dtype float16 under "
            "evaluation in params.yaml if it is float32, or a smaller model. Memorization, "
            "benchmarks and generations stream such a model; without the sections divergence "
            "and attribution, the study has no other stages that load it",
        )


def _gpus() -> list[str]:
    """The UUID of each GPU that nvidia-smi lists; empty without nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        listed = subprocess.run(  # noqa: S603  a list of constants
            query, capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [uuid for line in listed.stdout.splitlines() if (uuid := line.strip()).startswith("GPU")]


def _acquire(devices: list[str]) -> tuple[str, FileLock]:
    """Lock the first free device, waiting until there is one."""
    # an index and a UUID of one GPU are two locks: use one of the two on a machine
    job = os.environ.get("SLURM_JOB_ID", "")  # each job of a node may count its devices from 0
    names = {device: re.sub(r"[^\w.-]", "_", job + device) for device in devices}  # MIG has slashes
    paths = {device: LEASES / f"{name}.lock" for device, name in names.items()}
    said = ""
    while True:
        for device, path in paths.items():
            lock = FileLock(path, mode=0o666)  # past the umask, and so is the folder: for all
            try:
                with suppress(FileExistsError):
                    LEASES.mkdir()
                    LEASES.chmod(0o1777)  # sticky: none removes another's lock
                lock.acquire(blocking=False)
            except Timeout:
                continue
            except OSError as error:
                raise bad_input(
                    what="the leases of this machine's GPUs",
                    got=str(error),
                    expected=f"a folder {LEASES}, and locks in it, that every user may write",
                    remedy=f"its owner or root runs: chmod 1777 {LEASES}; "
                    f"chmod 666 {LEASES}/*.lock",
                ) from None
            _sign(path)
            return device, lock
        held = (f"{device} is leased by {_holder(path)}" for device, path in paths.items())
        if (waiting := f"waiting for a GPU: {'; '.join(held)}") != said:
            print(said := waiting, flush=True)
        time.sleep(POLL_SECONDS)


def _sign(path: Path) -> None:
    """Write this process and user into a held lock file; filelock does not touch its content."""
    me = psutil.Process()
    stage = os.environ.get("DVC_STAGE") or shlex.join(me.cmdline())
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    words = f"pid {me.pid} of {me.username()} ({stage[:100]}) since {since}"
    with suppress(OSError):  # the text is only informative
        # without O_CREAT: under fs.protected_regular that fails on another user's file
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(words)


def _holder(path: Path) -> str:
    """The recorded holder of a lock; the text may be missing, half written or outdated."""
    words = ""
    with suppress(OSError):
        words = path.read_text(encoding="utf-8", errors="replace")
    return re.sub("[^ -~]+", " ", words)[:250].strip() or "an unknown process"


def free_bytes(device: str) -> int:
    """Bytes that are free for this process, of memory or of the GPU; `device` as of `lease`."""
    if device == "cpu":
        return free_ram()
    import torch

    return torch.cuda.mem_get_info()[0]
