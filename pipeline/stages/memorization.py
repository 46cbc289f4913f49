"""The stage that completes every sample of a model under every intervention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.checkpoints.loading import load
from pipeline.checkpoints.manifest import sha256
from pipeline.checkpoints.schema import Model
from pipeline.interventions.memory import Journal
from pipeline.measure.memorization import measure, require_baseline
from pipeline.measure.metrics import MEMORIZATION
from pipeline.stages.evaluated import Evaluated
from pipeline.stages.sweep import write_sweep
from pipeline.study.schema import Study
from pipeline.workflow.progress import reporter
from pipeline.workflow.running import Device
from pipeline.workflow.shards import Shards

if TYPE_CHECKING:
    import polars as pl

    from pipeline.interventions.interventions import Intervention


def memorization(study: Study, model: Model, part: str | None = None) -> None:
    """Complete every sample under every intervention."""
    evaluated = Evaluated(study, model)
    samples, settings = evaluated.samples, evaluated.settings
    budget = study.run.token_budget

    def compute(
        interventions: Sequence[Intervention], device: Device, shards: Shards, journal: Journal
    ) -> list[pl.DataFrame]:
        loaded, tokenizer = load(evaluated.folder, settings.dtype, *device)
        stop = settings.below_floor == "stop"
        evaluated.notes["baseline"] = require_baseline(
            loaded, samples, settings.baseline_floor, stop, budget
        )
        progress = reporter(f"memorization of {model.name}", "samples")
        return [
            measure(
                loaded,
                samples,
                interventions,
                budget,
                progress,
                journal,
                shards,
                settings.decode,
                tokenizer,
            )
        ]

    write_sweep(
        evaluated,
        "memorization",
        part,
        {".parquet": MEMORIZATION},
        evaluated.determined_by(),
        sha256(evaluated.samples_path),
        compute,
    )
