"""What every stage that runs a model reads: its checkpoint, samples, settings and device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import polars as pl

from pipeline.checkpoints.manifest import read_manifest
from pipeline.checkpoints.schema import Model
from pipeline.interventions.interventions import OWN_EDITS, Intervention, is_own
from pipeline.samples.frame import check_samples
from pipeline.samples.schemas import SAMPLES, samples_file
from pipeline.study.schema import Study
from pipeline.workflow import tables
from pipeline.workflow.own import own_code
from pipeline.workflow.running import Device, costed, determined_by, evaluating
from pipeline.workflow.shards import PartFinishedError


class Evaluated:
    """One model of the study in force, as a stage evaluates it."""

    def __init__(self, study: Study, model: Model) -> None:
        self.study, self.model, self.name = study, model, model.name
        self.dtype = study.evaluation[model.family].dtype
        self.folder = study.checkpoint(self.name)
        self.manifest = read_manifest(self.folder)
        self.samples_path = samples_file(study.data, model.family)
        self.notes: dict[str, Any] = {}

    @cached_property
    def samples(self) -> pl.DataFrame:
        """The samples of the model's family, checked to fit its vocabulary and context."""
        samples = tables.read(self.samples_path, SAMPLES)
        vocabulary = min(self.manifest.vocabulary, self.manifest.tokens)
        check_samples(samples, vocabulary, self.manifest.context)
        return samples

    def write(
        self,
        table: pl.DataFrame,
        schema: tables.Schema,
        file: str,
        determined_by: dict[str, object],
    ) -> None:
        """Write a table into a file below data/STUDY, such as ``tokens/tiny-neo-8.parquet``."""
        path = self.study.data / file
        tables.write(table, path, schema, {"model": self.name, **determined_by})

    def determined_by(self, **settings: object) -> dict[str, object]:
        """The provenance of a table of this model, without its name; `settings` are added."""
        return determined_by(
            self.study.study,
            origin=self.manifest.origin,
            checkpoint=self.manifest.files,
            **{"evaluation": {"dtype": self.dtype}, **settings},
        )

    def own(self, interventions: Sequence[Intervention]) -> dict[str, object]:
        """What edits of the study's own add to what determines results: their code, and models."""
        if not any(is_own(edit) for one in interventions for edit in one.edits.values()):
            return {}
        return {"own_edits": own_code(OWN_EDITS), "sources": self.sources(interventions)}

    def sources(self, interventions: Sequence[Intervention]) -> dict[str, object]:
        """Model whose values patches put in -> what its weights are."""
        names = sorted({one.source for one in interventions if one.source})
        manifests = {name: read_manifest(self.study.checkpoint(name)) for name in names}
        return {
            name: {"origin": each.origin, "checkpoint": each.files}
            for name, each in manifests.items()
        }

    def with_sources(
        self, interventions: Sequence[Intervention], device: Device
    ) -> list[Intervention]:
        """The interventions, patches from other models with these models, which are loaded."""
        from pipeline.checkpoints.loading import load_model
        from pipeline.interventions.edits import Source, with_source

        read = {}
        for name in self.sources(interventions):
            read[name] = Source(load_model(self.study.checkpoint(name), self.dtype, *device))
        return [with_source(one, read[one.source]) if one.source else one for one in interventions]

    @contextmanager
    def on_device(
        self, stage: str, part: str | None = None, journal: object = None, *, streamed: bool = True
    ) -> Iterator[Device]:
        """Lease a device for the enclosed work, and write its cost; `notes` go with it.

        The work ends early when a part is complete. `part` is of the stage's table, such as
        ``2-of-8``; `journal` has the events of the work, which can stream weights that do not fit
        unless `streamed` is false.
        """
        name = self.name if part is None else f"{self.name}.{part}"
        weight_bytes, run = self.manifest.weight_bytes(self.dtype), self.study.run
        limits = run.threads, run.device_memory
        with (
            costed(self.study.data, stage, name, journal) as self.notes,
            suppress(PartFinishedError),
            evaluating(self.name, weight_bytes, self.notes, *limits, streamed=streamed) as device,
        ):
            yield device
