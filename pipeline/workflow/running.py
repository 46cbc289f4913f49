"""Helpers of every stage: provenance of its table, its cost, and a device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import typer

DOWNLOADS = Path("data/downloads")
FamilyName = Annotated[str, typer.Argument(help="name of a family of the study")]
ModelName = Annotated[str, typer.Argument(help="name of a model of the study")]
PartName = Annotated[
    str | None,
    typer.Option("--part", help="the part of the table to compute, such as 2-of-8", hidden=True),
]


def determined_by(study: str, **what: object) -> dict[str, object]:
    """The provenance of a table: the study, the given settings, the library versions."""
    from pipeline.workflow.provenance import versions

    return {"study": study, **what, "versions": versions()}


@contextmanager
def costed(data: Path, stage: str, name: str, journal: object = None) -> Iterator[dict[str, Any]]:
    """Write the cost of the enclosed work, its notes, and its journal (a dataclass)."""
    from pipeline.workflow.provenance import cost

    with cost(data / "cost" / stage / f"{name}.json") as notes:
        yield notes
        notes["events"] = vars(journal) if journal else {}


def of_checkpoint(manifest: Any) -> dict[str, object]:
    """The provenance of a model: the origin of its files, and their checksums."""
    return {"origin": dict(manifest.origin), "checkpoint": dict(manifest.files)}


class Settings(Protocol):
    """The entries of the section `run` that an evaluation reads."""

    threads: int
    device_memory: float | None


class Device(NamedTuple):
    """A leased device.

    Args:
        name: ``cuda`` or ``cpu``.
        room: bytes that the weights of a model may take there.
    """

    name: str
    room: int


@contextmanager
def evaluating(
    run: Settings, model: str, weight_bytes: int, notes: dict[str, Any], *, streamed: bool = True
) -> Iterator[Device]:
    """Lease a device, and set the threads, before torch is used.

    Args:
        run: the settings of this run.
        model: its name.
        weight_bytes: that its weights take.
        notes: of the cost; receives the device and the threads.
        streamed: whether the work can stream weights that do not fit.

    Raises:
        InputError: the weights do not fit, and cannot be streamed.
    """
    from pipeline.workflow.device import lease, require_memory, room_for

    threads = run.threads
    with lease() as leased:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        import torch

        device = leased if leased == "cpu" or torch.cuda.is_available() else "cpu"
        if device != leased:
            print("a GPU is there, but this torch cannot use it: evaluating on the CPU", flush=True)
        torch.set_num_threads(threads)
        room = room_for(weight_bytes, device)
        if run.device_memory is not None:
            room = min(room, int(run.device_memory * 1e9))
        if not streamed:
            require_memory(model, weight_bytes, device, room)
        notes.update(device=device, threads=threads, streamed=weight_bytes > room)
        yield Device(device, room)
