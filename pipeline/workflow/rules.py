"""The rules of the Snakefile, read from dvc.yaml; the only file that imports Snakemake.

Snakemake's own staleness check is switched off: data inputs are ancient, and each rule has one more
input, a mark that is newer than the outputs if DVC calls the stage stale. A stage scheduled without
need costs a second: its command, ``dvc repro --single-item``, finds nothing to do, or restores
missing files from DVC's cache.
"""

import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stderr
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

from snakemake.cli import parse_args
from snakemake.io import ancient, directory, report

from pipeline.workflow.dag import Dag, Stage
from pipeline.workflow.files import write_text

MARKS = Path(".snakemake/dvc")

VEGA = Path(".dvc/tmp/vega.js")
"""What the pages of `dvc plots` are drawn with: .dvc/plots.html."""

FILE_SUFFIXES = frozenset({".parquet", ".json", ".html"})
"""Outputs with other endings are folders; a missing suffix is no test, since names have dots."""

LOOKS = (
    *("dryrun", "lint", "dag", "rulegraph", "filegraph", "d3dag", "summary", "detailed_summary"),
    *("list_rules", "list_target_rules", "list_changes", "list_input_changes", "unlock"),
    *("list_params_changes", "list_untracked", "print_compilation", "report", "containerize"),
    *("generate_unit_tests", "archive", "list_conda_envs", "cleanup_metadata"),
)
"""Options of Snakemake's command line with which it runs no stage."""


def only_looks() -> bool:
    """Whether this `snakemake` runs no stage, so that it may write neither params nor dvc.lock."""
    if Path(sys.argv[0]).stem not in ("snakemake", "__main__"):
        return False
    with redirect_stderr(StringIO()):  # it has named the profile once
        _, options = parse_args(sys.argv[1:])
    return any(getattr(options, name, None) for name in LOOKS)


def write_marks(dag: Dag) -> None:
    """Tell Snakemake what is stale: a stale stage gets a mark of now, a fresh one of 1970."""
    MARKS.mkdir(parents=True, exist_ok=True)
    for address in dag.stages:
        mark = MARKS / address
        if address in dag.stale:  # new content too: an equal checksum makes a new file old
            mark.write_text(f"{time.time_ns()}\n")
        else:
            mark.touch()
            os.utime(mark, (1, 1))


def copy_vega() -> None:
    """Copy the Vega that comes with Snakemake, so that `dvc plots` needs no network."""
    if not VEGA.exists():
        assets = files("snakemake") / "assets" / "data"
        scripts = (assets / name / f"{name}.js" for name in ("vega", "vega-lite", "vega-embed"))
        write_text(VEGA, "\n".join(script.read_text(encoding="utf-8") for script in scripts))


class RuleParts:
    """The parts of the Snakemake rule of one group of stages of a study, which is in force.

    Its wildcards are the fields of an item of dvc.yaml's loop that its outputs are named by.
    """

    def __init__(self, dag: Dag, study: str, group: str) -> None:
        self._dag, self._study = dag, study
        body = dag.declared[group]["do"]
        kinds = (body.get(kind, []) for kind in ("outs", "metrics", "plots"))
        outs = [out if isinstance(out, str) else next(iter(out)) for kind in kinds for out in kind]
        self._outs = [self._pattern(out) for out in outs]
        item = ".".join(re.findall(r"\{\w+\}", self._outs[0]))
        name = f"{group}/{item}" if item else group
        self.docstring: str = body["desc"]
        self.log = f"logs/{study}/{name}.log"
        self.benchmark = f"logs/{study}/benchmark/{name}.tsv"

    def _pattern(self, out: str) -> str:
        out = out.replace("${study}", self._study).replace("${key}", self._study)
        return re.sub(r"\$\{item\.(\w+)\}", r"{\1}", out)

    @property
    def output(self) -> list[Any]:
        """Output patterns; ``snakemake --report`` shows the figures and the page."""
        return [self._output(out) for out in self._outs]

    def _output(self, out: str) -> Any:
        if out == f"reports/{self._study}/figures":
            return report(directory(out), patterns=["{figure}.svg"], category="Figures")
        if out == f"reports/{self._study}/index.html":
            return report(out, category="Report")
        return out if Path(out).suffix in FILE_SUFFIXES else directory(out)

    def input(self, wildcards: Mapping[str, str]) -> list[Any]:
        """What the stage of a job reads, and its mark.

        Snakemake takes braces in a user's file name for wildcards, so such a file is left out; DVC
        checks it in any case.
        """
        stage = self._stage(wildcards)
        files = [file for file in self._dag.inputs(stage) if "{" not in file]
        stale = self._dag.stale
        data = [file if self._dag.producer.get(file) in stale else ancient(file) for file in files]
        return [*data, str(MARKS / stage.address)]

    def address(self, wildcards: Mapping[str, str]) -> str:
        """The address of the stage that a job runs."""
        return self._stage(wildcards).address

    def _stage(self, wildcards: Mapping[str, str]) -> Stage:
        return self._dag.stages[self._dag.producer[self._outs[0].format(**dict(wildcards))]]
