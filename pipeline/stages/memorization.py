"""The stage that completes every sample of a model under every intervention."""

from collections.abc import Sequence

import polars as pl

from pipeline.checkpoints.loading import load
from pipeline.checkpoints.schema import Model
from pipeline.interventions.interventions import Intervention
from pipeline.measure.memorization import measure, require_baseline
from pipeline.measure.metrics import MEMORIZATION
from pipeline.measure.sharded import Running
from pipeline.stages.evaluated import Evaluated
from pipeline.stages.sweep import write_sweep
from pipeline.study.schema import Study
from pipeline.workflow.files import sha256
from pipeline.workflow.running import Device


def memorization(study: Study, model: Model, part: str | None = None) -> None:
    """Complete every sample under every intervention."""
    evaluated = Evaluated(study, model)
    samples, settings = evaluated.samples, study.evaluation[model.family]

    def compute(
        interventions: Sequence[Intervention], device: Device, running: Running
    ) -> list[pl.DataFrame]:
        loaded, tokenizer = load(evaluated.folder, settings.dtype, *device)
        floor = settings.baseline_floor, settings.below_floor == "stop"
        baseline = require_baseline(loaded, samples, *floor, running.token_budget)
        evaluated.notes["baseline"] = baseline
        return [measure(loaded, samples, interventions, running, settings.decode, tokenizer)]

    write_sweep(
        evaluated,
        ("memorization", part, "samples"),
        {".parquet": MEMORIZATION},
        evaluated.determined_by(evaluation=settings.model_dump()),
        sha256(evaluated.samples_path),
        compute,
    )
