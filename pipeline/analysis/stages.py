"""The stages that check the tables of all models and summarize them.

Each reads its inputs, calls what computes, and writes its outputs; it holds no logic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.study.composition import load


def check_results() -> None:
    """Check that all tables are complete and possible, before they are used."""
    from pipeline.analysis.results import check_results as check_tables
    from pipeline.workflow.files import write_json

    study = load()
    models = [(model.name, model.family) for model in study.models.values()]
    checked = check_tables(
        models,
        study.data,
        study.divergence.samples if study.divergence else None,
        benchmarked=study.benchmarks is not None,
    )
    write_json(study.data / "results.json", checked)


def localization() -> None:
    """Score every block of the models whose memorizing block is known."""
    from pipeline.analysis.localization import scores
    from pipeline.workflow import tables

    study = load()
    models = [(model.name, model.family) for model in study.models.values()]
    made = scores(
        models,
        study.data,
        divergence=study.divergence is not None,
        attribution=study.attribution is not None,
    )
    path = study.data / "localization.parquet"
    tables.write(made, path, tables.LOCALIZATION, {"study": study.study})


def aggregate(
    partial: Annotated[
        bool, typer.Option(help="Leave out what failed or has not run; the page says what.")
    ] = False,
) -> None:
    """Write every number of the report, with its interval, into one table."""
    from pipeline.analysis.aggregate import write_summary
    from pipeline.analysis.evidence import EVIDENCE
    from pipeline.analysis.headline import write_headline
    from pipeline.workflow import tables
    from pipeline.workflow.shards import remove_finished

    study = load()
    stale = _stale() if partial else None
    models = [(model.name, model.family) for model in study.models.values()]
    path = study.data / "summary.parquet"
    summary = write_summary(
        study.study,
        models,
        study.data,
        path,
        study.statistics.seed,
        stale,
        benchmarked=study.benchmarks is not None,
        twins={model.name: model.twin for model in study.models.values() if model.twin},
    )
    evidence = tables.read(study.data / EVIDENCE, tables.EVIDENCE)
    write_headline(summary, evidence, study.data / "metrics.json", study.data / "curves")
    remove_finished(study.data)


def _stale() -> dict[str, list[Path]]:
    """The files of the measuring stages that have not run on the current study."""
    from pipeline.workflow.dag import Dag

    dag = Dag()
    of_the_page = ("check_results", "aggregate", "figures", "report")
    return {
        address: [Path(out) for out in dag.stages[address].outs]
        for address in dag.stale
        if dag.stages[address].group not in of_the_page
    }
