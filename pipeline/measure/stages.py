"""The stages that measure one model under every intervention.

Each reads its inputs, calls what computes, and writes its outputs; it holds no logic.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pipeline.measure.schema import FITTING
from pipeline.study.composition import load
from pipeline.study.schema import given
from pipeline.workflow.errors import InputError
from pipeline.workflow.running import (
    ModelName,
    PartName,
    costed,
    determined_by,
    evaluating,
    of_checkpoint,
)

if TYPE_CHECKING:
    import polars as pl

    from pipeline.interventions.interventions import Intervention


def interventions(model: ModelName) -> None:
    """List the interventions of one model, with the blocks and edit of each."""
    from pipeline.checkpoints.manifest import read_manifest
    from pipeline.interventions.interventions import sweep
    from pipeline.measure.listed import as_table
    from pipeline.workflow import tables
    from pipeline.workflow.errors import Problem

    study = load()
    manifest = read_manifest(study.data / "checkpoints" / model)
    sizes = {"n_blocks": manifest.n_blocks, "n_heads": manifest.n_heads}
    try:
        made = sweep(manifest.n_blocks, study.groups, manifest.n_heads)
    except ValueError as error:
        raise InputError(Problem(f"interventions, of {model}", str(error), *FITTING)) from None
    path = study.data / "interventions" / f"{model}.parquet"
    lines = [line.model_dump(exclude_none=True) for line in study.interventions]
    provenance = {"study": study.study, "model": model, **sizes, "interventions": lines}
    tables.write(as_table(made), path, tables.INTERVENTIONS, provenance)


def memorization(model: ModelName, part: PartName = None) -> None:
    """Complete every sample under every intervention."""
    from pipeline.checkpoints.loading import load as load_checkpoint
    from pipeline.checkpoints.manifest import read_manifest, sha256
    from pipeline.interventions.memory import Journal
    from pipeline.measure.listed import read_listed
    from pipeline.measure.memorization import measure, require_baseline
    from pipeline.measure.metrics import MEMORIZATION
    from pipeline.measure.reuse import KEYS, extended, keys
    from pipeline.samples.frame import check_samples
    from pipeline.workflow import tables
    from pipeline.workflow.dag import cached
    from pipeline.workflow.inputs import code
    from pipeline.workflow.progress import reporter
    from pipeline.workflow.shards import open_shards

    study = load()
    entry = study.model(model)
    how = study.evaluation[entry.family]
    folder = study.data / "checkpoints" / model
    manifest = read_manifest(folder)
    sampled = study.data / "samples" / f"{entry.family}.parquet"
    samples = tables.read(sampled, tables.SAMPLES)
    check_samples(samples, min(manifest.vocabulary, manifest.tokens), manifest.context)
    listed = read_listed(study.data, model)
    provenance = determined_by(study.study, **of_checkpoint(manifest), evaluation=how.model_dump())
    address = study.address("memorization", model)
    path = study.data / "memorization" / f"{model}.parquet"
    shard_folder = study.data / "partial" / "memorization" / model
    journal = Journal()
    with (
        costed(
            study.data, "memorization", model if part is None else f"{model}.{part}", journal
        ) as notes,
        open_shards(shard_folder, study.run.shard_minutes, provenance, part) as shards,
        evaluating(study.run, model, manifest.weight_bytes(how.dtype), notes) as device,
    ):
        items = sha256(sampled)
        wanted = keys(
            listed,
            {**provenance, "device": device.name, "items": items, "code": code(address)},
            items,
        )

        def compute(missing: Sequence[Intervention]) -> list[pl.DataFrame]:
            loaded, tokenizer = load_checkpoint(folder, how.dtype, *device)
            budget = study.run.token_budget
            notes["baseline"] = require_baseline(
                loaded, samples, how.baseline_floor, how.below_floor == "stop", budget
            )
            tell = reporter(f"memorization of {model}", "samples")
            keep = tell, journal, shards, how.decode, tokenizer
            return [measure(loaded, samples, missing, budget, *keep)]

        files = {path: MEMORIZATION}
        [made] = extended(listed, wanted, files, partial(cached, address), compute)
        shards.end_part()
        notes["shards"] = shards.told()
        provenance["model"] = model
        tables.write(made, path, MEMORIZATION, {**provenance, KEYS: wanted})
        shards.finish()


def tokens(model: ModelName) -> None:
    """Measure some samples token by token, and how far each intervention moves the stream."""
    from pipeline.checkpoints.loading import load_model
    from pipeline.checkpoints.manifest import read_manifest
    from pipeline.interventions.memory import Journal
    from pipeline.measure.listed import read_listed
    from pipeline.measure.tokens import measure
    from pipeline.samples.frame import check_samples
    from pipeline.workflow import tables

    study = load()
    entry = study.model(model)
    how = study.evaluation[entry.family]
    folder = study.data / "checkpoints" / model
    manifest = read_manifest(folder)
    samples = tables.read(study.data / "samples" / f"{entry.family}.parquet", tables.SAMPLES)
    check_samples(samples, min(manifest.vocabulary, manifest.tokens), manifest.context)
    listed = read_listed(study.data, model)
    journal = Journal()
    with (
        costed(study.data, "tokens", model, journal) as notes,
        evaluating(study.run, model, manifest.weight_bytes(how.dtype), notes) as device,
    ):
        loaded = load_model(folder, how.dtype, *device)
        made = measure(loaded, samples, listed, study.run.token_budget, journal)
    provenance = determined_by(
        study.study, model=model, **of_checkpoint(manifest), evaluation=how.model_dump()
    )
    path = study.data / "tokens" / f"{model}.parquet"
    tables.write(made.tokens, path, tables.TOKENS, provenance)
    path = study.data / "displacement" / f"{model}.parquet"
    tables.write(made.displacement, path, tables.DISPLACEMENT, provenance)
    path = path.with_name(f"{model}.attention.parquet")
    tables.write(made.attention_change, path, tables.ATTENTION_CHANGE, provenance)


def attribution(model: ModelName) -> None:
    """Multiply each block's outputs with the gradient of the loss by them."""
    from pipeline.checkpoints.loading import load_model
    from pipeline.checkpoints.manifest import read_manifest
    from pipeline.measure.attribution import measure
    from pipeline.samples.frame import of_each_split
    from pipeline.workflow import tables
    from pipeline.workflow.progress import reporter

    study = load()
    entry = study.model(model)
    how = study.evaluation[entry.family]
    asked = given(study.attribution)
    folder = study.data / "checkpoints" / model
    manifest = read_manifest(folder)
    every = tables.read(study.data / "samples" / f"{entry.family}.parquet", tables.SAMPLES)
    with (
        costed(study.data, "attribution", model) as notes,
        evaluating(
            study.run, model, manifest.weight_bytes(how.dtype), notes, streamed=False
        ) as device,
    ):
        made = measure(
            load_model(folder, how.dtype, device.name),
            of_each_split(every, ("memorized", "control"), asked.samples),
            reporter(f"attribution of {model}", "samples"),
        )
    provenance = determined_by(
        study.study,
        model=model,
        **of_checkpoint(manifest),
        evaluation=how.model_dump(),
        attribution=asked.model_dump(),
    )
    path = study.data / "attribution" / f"{model}.parquet"
    tables.write(made, path, tables.ATTRIBUTION, provenance)


def benchmarks(model: ModelName, part: PartName = None) -> None:
    """Evaluate every benchmark task under every intervention."""
    from pipeline.checkpoints.loading import load as load_checkpoint
    from pipeline.checkpoints.manifest import checksums, read_manifest, sha256
    from pipeline.interventions.memory import Journal
    from pipeline.measure.benchmarks import measure
    from pipeline.measure.listed import read_listed
    from pipeline.measure.reuse import KEYS, extended, keys
    from pipeline.samples.frame import check_samples
    from pipeline.tasks.loading import describe, load_tasks
    from pipeline.workflow import tables
    from pipeline.workflow.dag import cached
    from pipeline.workflow.inputs import code
    from pipeline.workflow.progress import reporter
    from pipeline.workflow.shards import open_shards

    study = load()
    entry = study.model(model)
    how = study.evaluation[entry.family]
    folder = study.data / "checkpoints" / model
    manifest = read_manifest(folder)
    listed = read_listed(study.data, model)
    sampled = study.data / "samples" / f"{entry.family}.parquet"
    samples = tables.read(sampled, tables.SAMPLES)
    check_samples(samples, min(manifest.vocabulary, manifest.tokens), manifest.context)
    asked, below = given(study.benchmarks), study.tasks
    tasks = load_tasks(asked.tasks, below, asked.num_fewshot)
    provenance = determined_by(
        study.study,
        model=model,
        **of_checkpoint(manifest),
        evaluation=how.model_dump(),
        benchmarks=asked.model_dump(),
        tasks=describe(tasks, below),
    )
    address = study.address("benchmarks", model)
    path = study.data / "benchmarks" / f"{model}.parquet"
    by_document = path.with_name(f"{model}.documents.parquet")
    shard_folder = study.data / "partial" / "benchmarks" / model
    journal = Journal()
    with (
        costed(
            study.data, "benchmarks", model if part is None else f"{model}.{part}", journal
        ) as notes,
        open_shards(shard_folder, study.run.shard_minutes, provenance, part) as shards,
        evaluating(study.run, model, manifest.weight_bytes(how.dtype), notes) as device,
    ):
        wanted = keys(
            listed,
            {**provenance, "device": device.name, "items": checksums(below), "code": code(address)},
            sha256(sampled),
        )

        def compute(missing: Sequence[Intervention]) -> Sequence[pl.DataFrame]:
            return measure(
                *load_checkpoint(folder, how.dtype, *device),
                tasks,
                missing,
                study.run.token_budget,
                asked.limit,
                reporter(f"benchmarks of {model}", "requests"),
                journal,
                shards,
                samples["tokens"].to_list(),
            )

        files = {path: tables.BENCHMARKS, by_document: tables.BENCHMARK_DOCUMENTS}
        made, documents = extended(listed, wanted, files, partial(cached, address), compute)
        shards.end_part()
        notes["shards"] = shards.told()
        provenance[KEYS] = wanted
        tables.write(documents, by_document, tables.BENCHMARK_DOCUMENTS, provenance)
        tables.write(made, path, tables.BENCHMARKS, provenance)
        shards.finish()


def generations(model: ModelName) -> None:
    """Let the model write after some prompts, under some of the interventions."""
    from pipeline.checkpoints.loading import load as load_checkpoint
    from pipeline.checkpoints.manifest import read_manifest
    from pipeline.measure.generations import measure
    from pipeline.workflow import tables

    study = load()
    how = study.evaluation[study.model(model).family]
    folder = study.data / "checkpoints" / model
    manifest = read_manifest(folder)
    wanted = given(study.generations)
    with (
        costed(study.data, "generations", model) as notes,
        evaluating(study.run, model, manifest.weight_bytes(how.dtype), notes) as device,
    ):
        made = measure(
            *load_checkpoint(folder, how.dtype, *device),
            wanted.prompts,
            wanted.depths,
            wanted.new_tokens,
            wanted.seed,
        )
    path = study.data / "generations" / f"{model}.parquet"
    provenance = determined_by(
        study.study,
        **of_checkpoint(manifest),
        evaluation=how.model_dump(),
        generations=wanted.model_dump(),
    )
    tables.write(made, path, tables.GENERATIONS, {"model": model, **provenance})
