"""The stage that evaluates every benchmark task of a model under every intervention."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from pipeline.checkpoints.loading import load
from pipeline.checkpoints.schema import Model
from pipeline.interventions.interventions import Intervention
from pipeline.measure import schemas
from pipeline.measure.benchmarks import measure
from pipeline.measure.listed import read_listed
from pipeline.measure.reuse import takes_mean
from pipeline.stages.evaluated import Evaluated
from pipeline.stages.sweep import write_sweep
from pipeline.study.schema import Study, given
from pipeline.tasks.loading import describe, load_tasks
from pipeline.workflow.files import checksums
from pipeline.workflow.running import Device


def benchmarks(study: Study, model: Model, part: str | None = None) -> None:
    """Evaluate every benchmark task under every intervention."""
    evaluated, settings, folder = Evaluated(study, model), given(study.benchmarks), study.tasks
    tasks = load_tasks(settings.tasks, folder, settings.num_fewshot)
    calibration = None
    if takes_mean(read_listed(study.data, model.name)):  # else dvc.yaml lists no samples
        calibration = evaluated.samples["tokens"].to_list()

    def compute(
        interventions: Sequence[Intervention], device: Device, **running: Any
    ) -> list[pl.DataFrame]:
        loaded = load(evaluated.folder, evaluated.dtype, *device)
        running |= {"limit": settings.limit, "calibration": calibration}
        made, documents = measure(*loaded, tasks, interventions, **running)
        return [documents, made]

    write_sweep(
        evaluated,
        ("benchmarks", part, "requests"),
        {".documents.parquet": schemas.BENCHMARK_DOCUMENTS, ".parquet": schemas.BENCHMARKS},
        evaluated.determined_by(benchmarks=settings.model_dump(), tasks=describe(tasks, folder)),
        checksums(folder),
        compute,
    )
