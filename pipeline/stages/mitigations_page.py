"""The stage that writes the page of mitigations."""

from pipeline.report.mitigations import write_page
from pipeline.study.schema import Study


def mitigations_page(study: Study) -> None:
    """Write the page of mitigations."""
    write_page(study.study, study.data, study.reports / "mitigations.html")
