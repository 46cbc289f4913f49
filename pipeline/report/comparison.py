"""Read the two sides of a comparison: studies as they are on disk, or as of a revision."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from pipeline.analysis.rows import SUMMARY
from pipeline.report.compare import Side
from pipeline.workflow import tables
from pipeline.workflow.dag import read_at
from pipeline.workflow.errors import bad_input, shorten


def read_sides(before: str, after: str) -> tuple[Side, Side]:
    """Both sides, each as for `read_side`.

    Raises:
        InputError: the two are the same, or what `read_side` raises.
    """
    if before.partition("@")[::2] == after.partition("@")[::2]:
        raise bad_input(
            "comparison",
            f"{shorten(before)} twice",
            "two studies, or two versions of one",
            "name another: STUDY, or STUDY@REVISION",
        )
    return read_side(before), read_side(after)


def read_side(name: str) -> Side:
    """The summary of a study, and what determined it.

    Args:
        name: ``STUDY``, whose summary lies in data/STUDY/; or ``STUDY@REVISION``: as its dvc.lock
            was at that commit, branch or tag, read from DVC's cache or remote.

    Raises:
        InputError: that is no name of a study, there is no such summary, or it does not fit its
            schema.
    """
    study, _, revision = name.partition("@")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", study, re.ASCII):
        raise bad_input(
            shorten(name),
            f"the study {shorten(study)}",
            "letters, digits, dots, hyphens, underscores; a letter or digit first",
            "name a study as its folder in data/ is named",
        )
    path = Path("data") / study / "summary.parquet"
    if not revision:
        if not path.exists():
            raise bad_input(
                name,
                f"no {path}",
                "a study that has been run, or STUDY@REVISION",
                f"run it: make run STUDY={study}",
            )
        return Side(study, tables.read(path, SUMMARY), tables.provenance(path))
    try:
        content = read_at(str(path), revision)
    except Exception as error:  # DVC, git and file systems each have their own
        raise bad_input(
            name,
            shorten(f"{type(error).__name__}: {error}", 200),
            f"{path} in the dvc.lock of {revision}, and its content in the cache or a remote",
            "name a revision at which the study had been run; dvc pull fetches from a remote",
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        then = Path(folder) / "summary.parquet"
        then.write_bytes(content)
        return Side(f"{study} at {revision}", tables.read(then, SUMMARY), tables.provenance(then))
