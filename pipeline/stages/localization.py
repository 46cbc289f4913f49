"""The stage that joins the scores of all bases, and what deletion leaves."""

from __future__ import annotations

import polars as pl

from pipeline.localization.schemas import LOCALIZATION, REMOVAL
from pipeline.study.schema import Study, given
from pipeline.workflow import tables


def localization(study: Study) -> None:
    """Join the tables of the bases, in the order of the section."""
    for folder, name, schema in (
        ("scores", "localization", LOCALIZATION),
        ("removal", "removal", REMOVAL),
    ):
        parts = [
            tables.read(study.data / folder / f"{model}.parquet", schema)
            for model in given(study.localization).models
        ]
        path = study.data / f"{name}.parquet"
        tables.write(pl.concat(parts), path, schema, {"study": study.study})
