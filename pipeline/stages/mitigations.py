"""The stage that compares the methods."""

from __future__ import annotations

from pipeline.analysis.mitigations import (
    CLAIMS,
    DURABILITY,
    MITIGATIONS,
    Measured,
    claims,
    durability,
)
from pipeline.analysis.mitigations import (
    mitigations as compared,
)
from pipeline.mitigations.schemas import OUTCOMES
from pipeline.study.schema import Study, given
from pipeline.workflow import tables


def mitigations(study: Study) -> None:
    """Every number of every method with its interval, and the verdicts."""
    asked = given(study.mitigations)
    read = {
        method: tables.read(study.data / "mitigation" / f"{method}.parquet", OUTCOMES)
        for method in asked.methods
    }
    measured, provenance = Measured(asked.model, read), {"study": study.study}
    for file, table, schema in (
        ("mitigations", compared(measured), MITIGATIONS),
        ("durability", durability(measured), DURABILITY),
        ("mitigation_claims", claims(measured), CLAIMS),
    ):
        tables.write(table, study.data / f"{file}.parquet", schema, provenance)
