"""The stage that puts every number of the report into one table."""

from pathlib import Path

from pipeline.analysis.aggregate import write_summary
from pipeline.analysis.headline import write_headline
from pipeline.study.schema import Study
from pipeline.workflow.shards import remove_finished


def aggregate(study: Study, partial: bool = False) -> None:
    """Write every number of the report, with its interval, into one table.

    A `partial` one leaves out what failed or has not run; the page says what.
    """
    summary, evidence = write_summary(
        study.study,
        study.listed,
        study.data,
        study.statistics.seed,
        _stale() if partial else None,
        benchmarked=study.benchmarks is not None,
        limits=study.statistics.thresholds,
        twins=study.twins,
    )
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
