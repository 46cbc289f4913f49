"""The stage that draws every figure."""

from pipeline.report.figures import write_figures
from pipeline.study.schema import Study


def figures(study: Study) -> None:
    """Draw every figure."""
    write_figures(study.data, study.reports / "figures", steps=study.steps)
