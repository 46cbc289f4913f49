"""What memorization and benchmarks share: rows of an earlier table and kept shards are reused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pipeline.checkpoints.manifest import sha256
from pipeline.interventions.memory import Journal
from pipeline.measure.listed import read_listed
from pipeline.measure.reuse import KEYS, extended, keys
from pipeline.stages.evaluated import Evaluated
from pipeline.workflow.dag import cached
from pipeline.workflow.digest import digest
from pipeline.workflow.running import Device
from pipeline.workflow.shards import Shards, open_shards
from pipeline.workflow.tables import Schema

if TYPE_CHECKING:
    import polars as pl

    from pipeline.interventions.interventions import Intervention

Compute = Callable[[Sequence["Intervention"], Device, Shards, Journal], Sequence["pl.DataFrame"]]


def write_sweep(
    evaluated: Evaluated,
    stage: str,
    part: str | None,
    schemas: Mapping[str, Schema],
    determined_by: dict[str, object],
    items: object,
    compute: Compute,
) -> None:
    """Evaluate the interventions that no earlier table has, and write the tables of a stage.

    Args:
        evaluated: the model.
        stage: its name, which is the folder of its tables.
        part: the part to compute, such as ``2-of-8``; None: all.
        schemas: end of each file's name -> its columns; the last one is written last.
        determined_by: the provenance of the tables.
        items: checksums of what is evaluated: samples, or documents.
        compute: makes the tables of some of the interventions, in the order of `schemas`.
    """
    study, name = evaluated.study, evaluated.name
    listed = read_listed(study.data, name)
    by_code = {**determined_by, "code": digest(stage)}
    address = study.address(stage, name)
    paths = {study.data / stage / f"{name}{end}": schema for end, schema in schemas.items()}
    journal = Journal()
    with (
        open_shards(
            study.data / "partial" / stage / name, study.run.shard_minutes, by_code, part
        ) as shards,
        evaluated.on_device(stage, part, journal) as device,
    ):
        wanted = keys(
            listed,
            {**by_code, "device": device.name, "items": items},
            sha256(evaluated.samples_path),
        )
        made = extended(
            listed,
            wanted,
            paths,
            partial(cached, address),
            lambda missing: compute(missing, device, shards, journal),
        )
        shards.end_part()
        evaluated.notes["shards"] = shards.told()
        for (end, schema), table in zip(schemas.items(), made, strict=True):
            provenance = {**determined_by, KEYS: wanted}
            evaluated.write(table, schema, f"{stage}/{name}{end}", provenance)
        shards.finish()
