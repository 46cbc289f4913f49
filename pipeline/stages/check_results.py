"""The stage that checks the tables of all models."""

from pipeline.analysis import results
from pipeline.study.schema import Study
from pipeline.workflow.files import write_json


def check_results(study: Study) -> None:
    """Check that all tables are complete and possible, before they are used."""
    checked = results.check_results(
        study.listed,
        study.data,
        study.divergence.samples if study.divergence else None,
        benchmarked=study.benchmarks is not None,
    )
    write_json(study.data / "results.json", checked)
