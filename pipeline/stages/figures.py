"""The stage that draws every figure."""

from __future__ import annotations

from pipeline.report.figures import write_figures
from pipeline.study.schema import Study


def figures(study: Study) -> None:
    """Draw every figure."""
    write_figures(
        study.data / "summary.parquet",
        study.reports / "figures",
        study.data,
        divergence=study.divergence is not None,
        experiments=[experiment.name for experiment in study.theory.values()],
        localization=study.localized,
        steps=study.steps,
    )
