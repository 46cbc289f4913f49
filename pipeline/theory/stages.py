"""The stages that measure the theorems.

Each reads its inputs, calls what computes, and writes its outputs; it holds no logic.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pipeline.study.composition import load
from pipeline.study.schema import given
from pipeline.theory.schema import (
    Associative,
    AttentionOnly,
    Constructive,
    Experiment,
    Lookup,
    LowRank,
)
from pipeline.workflow.running import ModelName, costed, determined_by, evaluating, of_checkpoint

if TYPE_CHECKING:
    import polars as pl

    from pipeline.workflow.tables import Schema

Grid = TypeVar("Grid", bound=Experiment)


def divergence(model: ModelName) -> None:
    """Measure how far each bypass moves the last token, against the theorems' bounds."""
    from pipeline.checkpoints.loading import load_model
    from pipeline.checkpoints.manifest import read_manifest
    from pipeline.interventions.memory import Journal
    from pipeline.samples.frame import check_samples, of_each_split
    from pipeline.theory import columns
    from pipeline.theory.divergence import measure
    from pipeline.workflow import tables
    from pipeline.workflow.progress import reporter

    study = load()
    entry = study.model(model)
    how = study.evaluation[entry.family]
    asked = given(study.divergence)
    folder = study.data / "checkpoints" / model
    manifest = read_manifest(folder)
    every = tables.read(study.data / "samples" / f"{entry.family}.parquet", tables.SAMPLES)
    check_samples(every, min(manifest.vocabulary, manifest.tokens), manifest.context)
    journal = Journal()
    with (
        costed(study.data, "divergence", model, journal) as notes,
        evaluating(
            study.run, model, manifest.weight_bytes(how.dtype), notes, streamed=False
        ) as device,
    ):
        made = measure(
            load_model(folder, how.dtype, device.name),
            of_each_split(every, ("memorized", "control"), asked.samples),
            study.run.token_budget,
            reporter(f"divergence of {model}", "samples"),
            journal,
        )
    parts = {"evaluation": how.model_dump(), "divergence": asked.model_dump()}
    provenance = determined_by(study.study, model=model, **of_checkpoint(manifest), **parts)
    path = study.data / "divergence" / f"{model}.parquet"
    tables.write(made.triangle, path, columns.DIVERGENCE_TRIANGLE, provenance)
    path = path.with_name(f"{model}.bounds.parquet")
    tables.write(made.bounds, path, columns.DIVERGENCE_BOUNDS, provenance)
    path = path.with_name(f"{model}.blocks.parquet")
    tables.write(made.blocks, path, columns.DIVERGENCE_BLOCKS, provenance)


def theory_associative() -> None:
    """Fill associative memories until less than half of the pairs is right."""
    from pipeline.theory import columns
    from pipeline.theory.associative import associative

    _experiment(Associative, columns.ASSOCIATIVE, associative)


def theory_lookup() -> None:
    """Compare what a linear map loses of look-up tables with the bounds on it."""
    from pipeline.theory import columns
    from pipeline.theory.lookup import lookup

    _experiment(Lookup, columns.LOOKUP, lookup)


def theory_low_rank() -> None:
    """Compare what maps of low rank lose with the bounds on it."""
    from pipeline.theory import columns
    from pipeline.theory.low_rank import low_rank

    _experiment(LowRank, columns.LOW_RANK, low_rank)


def theory_constructive() -> None:
    """Build attention-only transformers, within the theorem's numbers and beyond."""
    from pipeline.theory import columns
    from pipeline.theory.constructive import constructive

    _experiment(Constructive, columns.CONSTRUCTIVE, constructive)


def theory_attention_only() -> None:
    """Train attention-only transformers to know a table by heart."""
    from pipeline.theory import columns
    from pipeline.theory.attention_only import attention_only
    from pipeline.workflow.progress import reporter

    tell = reporter("attention-only transformers", "steps")
    _experiment(AttentionOnly, columns.ATTENTION_ONLY, lambda grid: attention_only(grid, tell))


def _experiment(section: type[Grid], schema: Schema, run: Callable[[Grid], pl.DataFrame]) -> None:
    """Run an experiment on one thread, and write its table.

    Sums then have one order, whatever the machine: the same grid gives the same bytes.
    """
    from pipeline.workflow import tables

    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    study = load()
    (entry,) = [each for each in study.theory.values() if isinstance(each, section)]
    with costed(study.data, "theory", entry.name):
        made = run(entry)
    path = study.data / "theory" / f"{entry.name}.parquet"
    tables.write(made, path, schema, determined_by(study.study, grid=entry.model_dump()))
