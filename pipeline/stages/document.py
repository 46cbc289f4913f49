"""The stage that writes the pages of a user's documents."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipeline.interventions.interventions import BASELINE
from pipeline.measure.schemas import ROLLING, WINDOWS
from pipeline.report.document import write_documents
from pipeline.samples.copies import counted
from pipeline.samples.texts import texts
from pipeline.study.schema import Study, given
from pipeline.workflow import tables


def document(study: Study) -> None:
    """Write the pages that show which passages of the documents each model knows."""
    asked = given(study.windows)
    models = [model.name for model in study.models.values() if model.name != asked.reference]
    own, windows = texts(Path(asked.documents)), study.data / "windows"
    copies = None
    if asked.corpus:
        read = pl.concat(
            tables.read(windows / f"{name}.parquet", WINDOWS)
            .filter(~pl.col("reference"), intervention=BASELINE.name, reading=ROLLING)
            .select(pl.lit(name).alias("model"), *WINDOWS)
            for name in models
        )
        copies = counted(own, list(texts(Path(asked.corpus)).values()), read)
    write_documents(
        study.study,
        windows,
        models,
        own,
        study.reports / "document",
        copies=copies,
        reference=asked.reference,
        show_text=study.report.show_text,
    )
