"""The stages that draw the figures and write the page.

Each reads its inputs, calls what computes, and writes its outputs; it holds no logic.
"""

from __future__ import annotations

from pipeline.study.composition import load
from pipeline.study.schema import DERIVED, RUN_SECTION


def figures() -> None:
    """Draw every figure."""
    from pipeline.report.figures import write_figures

    study = load()
    write_figures(
        study.data / "summary.parquet",
        study.reports / "figures",
        study.data,
        divergence=study.divergence is not None,
        experiments=[each.name for each in study.theory.values()],
        localization=study.localized,
        steps=study.steps,
    )


def report() -> None:
    """Write the page."""
    from pipeline.report.page import write_page
    from pipeline.workflow import tables

    study = load()
    measured_with = tables.provenance(study.data / "summary.parquet").get("versions", {})
    write_page(
        study.study,
        [(model.name, model.family) for model in study.models.values()],
        study.data,
        study.tasks,
        study.reports / "figures",
        study.reports / "index.html",
        study.reports / "tables",
        {
            "study": study.study,
            "params": study.model_dump(exclude={RUN_SECTION, DERIVED}),
            "versions": measured_with,
            "commands": [study.report.command]
            if study.report.command
            else [f"make run STUDY={study.study}", f"dvc repro report@{study.study}"],
        },
        show_text=study.report.show_text,
        thresholds=study.statistics.thresholds,
        generations=study.generations is not None,
        divergence=study.divergence is not None,
        experiments=[each.name for each in study.theory.values()],
        localization=study.localized,
    )
