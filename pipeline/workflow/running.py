"""What every stage has around its work: its provenance, its cost, and a device."""

import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.workflow.device import lease, require_memory, room_for
from pipeline.workflow.files import write_json
from pipeline.workflow.provenance import versions

DOWNLOADS = Path("data/downloads")


def determined_by(study: str, **what: object) -> dict[str, object]:
    """The provenance of a table: the study, the given settings, the library versions."""
    return {"study": study, **what, "versions": versions()}


@contextmanager
def costed(data: Path, stage: str, name: str, journal: object = None) -> Iterator[dict[str, Any]]:
    """Write time and memory of the enclosed work; nothing is written if it fails.

    The sidecar is beside the tables of the study in `data`, and no comparison reads it, since it
    differs from run to run. It has the name of the model, family or experiment, and the events of
    `journal`, a dataclass.

    Yields:
        A dict for further notes: device, threads, shards.
    """
    notes: dict[str, Any] = {}
    started, cpu_before = time.perf_counter(), time.process_time()
    yield notes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_kib = peak / 1024 if sys.platform == "darwin" else peak
    write_json(
        data / "cost" / stage / f"{name}.json",
        {
            "wall_seconds": round(time.perf_counter() - started, 2),
            "cpu_seconds": round(time.process_time() - cpu_before, 2),
            "peak_memory_mib": round(peak_kib / 1024),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            **notes,
            "events": vars(journal) if journal else {},
        },
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


class Device(NamedTuple):
    """A leased device: ``cuda`` or ``cpu``, and the bytes that weights may take there."""

    name: str
    room: int


@contextmanager
def evaluating(
    model: str,
    weight_bytes: int,
    notes: dict[str, Any],
    threads: int,
    memory_gb: float | None,
    *,
    streamed: bool,
) -> Iterator[Device]:
    """Lease a device, and set the threads of a CPU, before torch is used.

    `notes` of the cost receive both. `memory_gb` is what weights may take at most, None: as the
    device has; `streamed` says whether the work can stream weights that do not fit.

    Raises:
        InputError: the weights do not fit, and cannot be streamed.
    """
    with lease() as leased:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        import torch

        device = leased if leased == "cpu" or torch.cuda.is_available() else "cpu"
        if device != leased:
            print("a GPU is there, but this torch cannot use it: evaluating on the CPU", flush=True)
        torch.set_num_threads(threads)
        if device == "cpu" and threads > 1 and (slower := slowdown(threads)) > 1.2:
            print(
                f"{threads} threads are {slower:.1f} times as slow as one here and now: other work "
                "keeps the cores busy. Consider run.threads: 1 in params.yaml, or --threads 1",
                file=sys.stderr,
                flush=True,
            )
        room = room_for(weight_bytes, device)
        if memory_gb is not None:
            room = min(room, int(memory_gb * 1e9))
        if not streamed:
            require_memory(model, weight_bytes, device, room)
        notes.update(device=device, threads=threads, streamed=weight_bytes > room)
        yield Device(device, room)


def slowdown(threads: int) -> float:
    """The time of a product of small matrices with so many threads, divided by that with one.

    The number of threads stays: a choice by time would change the last digits from run to run.
    """
    import torch

    square, seconds = torch.ones(512, 512), dict[int, float]()
    for number in (1, threads):
        torch.set_num_threads(number)
        torch.mm(square, square)  # starts the threads
        started = time.perf_counter()
        for _ in range(5):
            torch.mm(square, square)
        seconds[number] = time.perf_counter() - started
    return seconds[threads] / seconds[1]
