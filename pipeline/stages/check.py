"""The stage that comes first: params.yaml is complete and consistent."""

from __future__ import annotations

from pipeline.study.schema import Study
from pipeline.workflow.files import write_json


def check(study: Study) -> None:
    """Record that the study was checked; reading it has done so."""
    write_json(study.data / "study.json", {"study": study.study})
