"""What every stage that runs a model reads: its checkpoint, samples, settings and device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.checkpoints.manifest import Manifest, read_manifest
from pipeline.checkpoints.schema import Model
from pipeline.samples.frame import check_samples
from pipeline.samples.schemas import SAMPLES
from pipeline.study.schema import Study
from pipeline.workflow import tables
from pipeline.workflow.running import Device, costed, determined_by, evaluating, of_checkpoint

if TYPE_CHECKING:
    import polars as pl


@dataclass
class Evaluated:
    """One model of the study, as a stage evaluates it.

    Args:
        study: the study in force.
        model: the entry of the model.
    """

    study: Study
    model: Model
    notes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = self.model.name
        self.settings = self.study.evaluation[self.model.family]
        self.folder = self.study.data / "checkpoints" / self.name
        self.manifest: Manifest = read_manifest(self.folder)
        self.samples_path = self.study.data / "samples" / f"{self.model.family}.parquet"

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
        """Write a table of this model.

        Args:
            table: its rows.
            schema: its columns.
            file: below data/STUDY, such as ``tokens/tiny-neo-8.parquet``.
            determined_by: its provenance.
        """
        path = self.study.data / file
        tables.write(table, path, schema, {"model": self.name, **determined_by})

    def determined_by(self, **settings: object) -> dict[str, object]:
        """The provenance of a table of this model, without its name; `settings` are added."""
        return determined_by(
            self.study.study,
            **of_checkpoint(self.manifest),
            evaluation=self.settings.model_dump(),
            **settings,
        )

    @contextmanager
    def on_device(
        self, stage: str, part: str | None = None, journal: object = None, *, streamed: bool = True
    ) -> Iterator[Device]:
        """Lease a device for the enclosed work, and write its cost; `notes` go with it.

        Args:
            stage: its name.
            part: of the table, such as ``2-of-8``.
            journal: events of the work.
            streamed: whether the work can stream weights that do not fit.
        """
        name = self.name if part is None else f"{self.name}.{part}"
        weight_bytes = self.manifest.weight_bytes(self.settings.dtype)
        with (
            costed(self.study.data, stage, name, journal) as self.notes,
            evaluating(
                self.study.run, self.name, weight_bytes, self.notes, streamed=streamed
            ) as device,
        ):
            yield device
