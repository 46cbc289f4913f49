"""The stage that writes the page."""

from pipeline.report.page import write_page
from pipeline.study.schema import DERIVED, RUN_SECTION, Study
from pipeline.workflow import tables
from pipeline.workflow.errors import run_command


def report(study: Study) -> None:
    """Write the page, its appendices and its tables."""
    measured_with = tables.provenance(study.data / "summary.parquet").get("versions", {})
    commands = [run_command(study.study), f"dvc repro report@{study.study}"]
    if study.report.command:
        commands = [study.report.command]
    write_page(
        study.study,
        study.reported,
        study.data,
        study.tasks,
        study.reports,
        {
            "study": study.study,
            "params": study.model_dump(exclude={RUN_SECTION, DERIVED}),
            "versions": measured_with,
            "commands": commands,
        },
        show_text=study.report.show_text,
        thresholds=study.statistics.thresholds,
    )
