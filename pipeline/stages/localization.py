"""The stage that joins the scores of all bases, and what deletion leaves."""

import polars as pl

from pipeline.localization.schemas import TABLES
from pipeline.study.schema import Study, given
from pipeline.workflow import tables


def localization(study: Study) -> None:
    """Join the tables of the bases, in the order of the section."""
    bases = given(study.localization).models
    for folder, (name, schema) in TABLES.items():
        paths = [study.data / folder / f"{each}.parquet" for each in bases]
        joined = pl.concat(tables.read(path, schema) for path in paths)
        tables.write(joined, study.data / f"{name}.parquet", schema, {"study": study.study})
