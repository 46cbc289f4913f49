"""The stage that evaluates every benchmark task of a model under every intervention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.checkpoints.loading import load
from pipeline.checkpoints.manifest import checksums
from pipeline.checkpoints.schema import Model
from pipeline.interventions.memory import Journal
from pipeline.measure import schemas
from pipeline.measure.benchmarks import measure
from pipeline.stages.evaluated import Evaluated
from pipeline.stages.sweep import write_sweep
from pipeline.study.schema import Study, given
from pipeline.tasks.loading import describe, load_tasks
from pipeline.workflow.progress import reporter
from pipeline.workflow.running import Device
from pipeline.workflow.shards import Shards

if TYPE_CHECKING:
    import polars as pl

    from pipeline.interventions.interventions import Intervention


def benchmarks(study: Study, model: Model, part: str | None = None) -> None:
    """Evaluate every benchmark task under every intervention."""
    evaluated = Evaluated(study, model)
    samples = evaluated.samples["tokens"].to_list()
    settings, folder = given(study.benchmarks), study.tasks
    tasks = load_tasks(settings.tasks, folder, settings.num_fewshot)

    def compute(
        interventions: Sequence[Intervention], device: Device, shards: Shards, journal: Journal
    ) -> Sequence[pl.DataFrame]:
        made, documents = measure(
            *load(evaluated.folder, evaluated.settings.dtype, *device),
            tasks,
            interventions,
            study.run.token_budget,
            settings.limit,
            reporter(f"benchmarks of {model.name}", "requests"),
            journal,
            shards,
            samples,
        )
        return documents, made

    write_sweep(
        evaluated,
        "benchmarks",
        part,
        {".documents.parquet": schemas.BENCHMARK_DOCUMENTS, ".parquet": schemas.BENCHMARKS},
        evaluated.determined_by(benchmarks=settings.model_dump(), tasks=describe(tasks, folder)),
        checksums(folder),
        compute,
    )
