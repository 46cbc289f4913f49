"""Helpers of every stage: provenance of its table, its cost, and a device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

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


@contextmanager
def evaluating(threads: int, model: str, weight_bytes: int, notes: dict[str, Any]) -> Iterator[str]:
    """Lease a device that the weights fit into, and set the threads, before torch is used."""
    from pipeline.workflow.device import lease, require_memory

    with lease() as leased:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        import torch

        device = leased if leased == "cpu" or torch.cuda.is_available() else "cpu"
        if device != leased:
            print("a GPU is there, but this torch cannot use it: evaluating on the CPU", flush=True)
        torch.set_num_threads(threads)
        require_memory(model, weight_bytes, device)
        notes.update(device=device, threads=threads)
        yield device
