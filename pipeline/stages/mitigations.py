"""The stage that compares the methods."""

from pipeline.analysis.mitigations import TABLES, measured
from pipeline.mitigations.schemas import OUTCOMES
from pipeline.study.schema import Study, given
from pipeline.workflow import tables


def mitigations(study: Study) -> None:
    """Every number of every method with its interval, and the verdicts."""
    asked = given(study.mitigations)
    folder = study.data / "mitigation"
    read = {m: tables.read(folder / f"{m}.parquet", OUTCOMES) for m in asked.methods}
    found = measured(asked.model, read)
    for name, (make, schema) in TABLES.items():
        path = study.data / f"{name}.parquet"
        tables.write(make(found), path, schema, {"study": study.study})
