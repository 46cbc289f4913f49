"""The stage that comes first: params.yaml is complete and consistent."""

from contextlib import suppress
from pathlib import Path

from pipeline.study.schema import Study
from pipeline.workflow.dag import Dag
from pipeline.workflow.errors import InputError
from pipeline.workflow.files import write_json


def check(study: Study) -> None:
    """Record that the study was checked, which reading it has done, and remove its other tables.

    A table that no stage of the study writes is of a section or a model that it had before; the
    page would show it. DVC's cache keeps it.
    """
    with suppress(InputError):  # run by hand in a folder without DVC, which knows the outputs
        written = {Path(out) for stage in Dag(decide=False).stages.values() for out in stage.outs}
        for table in [*study.data.glob("*.parquet"), *study.data.glob("*/*.parquet")]:
            if not written & {table, *table.parents}:
                table.unlink()
    write_json(study.data / "study.json", {"study": study.study})
