"""What memorization and benchmarks share: rows of an earlier table and kept shards are reused."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import polars as pl

from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal
from pipeline.measure.listed import read_listed
from pipeline.measure.reuse import KEYS, extended, keys, takes_mean
from pipeline.measure.sharded import Running
from pipeline.stages.evaluated import Evaluated
from pipeline.workflow.dag import cached
from pipeline.workflow.digest import digest
from pipeline.workflow.files import sha256
from pipeline.workflow.progress import reporter
from pipeline.workflow.running import Device
from pipeline.workflow.shards import open_shards
from pipeline.workflow.tables import Schema


def write_sweep(
    evaluated: Evaluated,
    work: tuple[str, str | None, str],
    schemas: Mapping[str, Schema],
    determined_by: dict[str, object],
    items: object,
    compute: Callable[[Sequence[Intervention], Device, Running], Sequence[pl.DataFrame]],
) -> None:
    """Evaluate the interventions that no earlier table has, and write the tables of a stage.

    Args:
        evaluated: the model.
        work: the stage, which is the folder of its tables; the part of these to compute, such as
            ``2-of-8``, None: all; and what is counted on the way, such as ``samples``.
        schemas: end of each file's name -> its columns; the last one is written last.
        determined_by: the provenance of the tables.
        items: checksums of what is evaluated: samples, or documents.
        compute: makes the tables, in the order of `schemas`, of some of the interventions on a
            device, as a `Running` says.
    """
    (stage, part, unit), study, name = work, evaluated.study, evaluated.name
    listed, journal = read_listed(study.data, name), Journal()
    by_code = {**determined_by, "code": digest(stage)}
    paths = {study.data / stage / f"{name}{end}": schema for end, schema in schemas.items()}
    kept = study.data / "partial" / stage / name
    with (
        open_shards(
            kept, study.run.shard_minutes, {**by_code, **evaluated.own(listed)}, part
        ) as shards,
        evaluated.on_device(stage, part, journal) as device,
    ):
        by_device = {**by_code, "device": device.name, "items": items}
        samples = sha256(evaluated.samples_path) if takes_mean(listed) else ""
        wanted = keys(listed, by_device, samples, evaluated.sources(listed))
        progress = reporter(f"{stage} of {name}", unit)
        running = Running(study.run.token_budget, progress, journal, shards)

        def computed(missing: Sequence[Intervention]) -> Sequence[pl.DataFrame]:
            evaluated.notes["computed"] = len(missing)
            return compute(evaluated.with_sources(missing, device), device, running)

        evaluated.notes["computed"] = 0
        made = extended(
            listed,
            wanted,
            paths,
            partial(cached, study.address(stage, name)),
            computed,
        )
        shards.end_part()
        evaluated.notes["shards"] = shards.told()
        for (end, schema), table in zip(schemas.items(), made, strict=True):
            provenance = {**determined_by, **evaluated.own(listed), KEYS: wanted}
            evaluated.write(table, schema, f"{stage}/{name}{end}", provenance)
        shards.finish()
