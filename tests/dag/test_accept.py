"""An error can be reworded without days of work; code cannot be slipped through."""

from __future__ import annotations

import sys

import pytest

from tests.dag.conftest import Project

pytestmark = pytest.mark.slow

ACCEPT = (
    "from pipeline.workflow.accept import accept; from pipeline.workflow.dag import Dag;"
    "print(*accept(Dag()))"
)
MODULE = "pipeline/interventions/interventions.py"


def _accept(project: Project) -> set[str]:
    said = project.command(sys.executable, "-c", ACCEPT).stdout
    return set(said.splitlines()[-1].split()) if said.strip() else set()


def test_wording_is_accepted_without_running(project: Project) -> None:
    text = (project.root / MODULE).read_text()
    edited = "# a comment\n" + text.replace('"""Interventions:', '"""Interventions, that is:', 1)
    edited = edited.replace('raise ValueError(f"', 'raise ValueError(f"Sorry: ', 1)
    assert edited.count("Sorry") == 1
    (project.root / MODULE).write_text(edited)
    assert "memorization@mini-p-1_4b" in project.dvc("status").stdout
    readers = {name for name, stage in project.describe().items() if MODULE in stage["deps"]}
    assert "memorization@mini-p-1_4b" in readers
    assert _accept(project) == readers
    project.assert_idle()


def test_snakemake_runs_nothing_for_a_reworded_error(project: Project) -> None:
    text = (project.root / MODULE).read_text()
    (project.root / MODULE).write_text(text.replace('ValueError(f"', 'ValueError(f"Sorry: ', 1))
    project.snakemake()
    assert not project.ran()
    project.assert_idle()


def test_code_and_params_are_not_accepted(project: Project) -> None:
    with (project.root / MODULE).open("a") as file:
        file.write("\nQUARTILES = 5\n")
    with (project.root / "pipeline/report/page.py").open("a") as file:
        file.write("\n# only a comment\n")
    old = "  pythia:\n    dtype: float32"
    project.replace("params.yaml", old, "  pythia:\n    dtype: float16")
    lock = (project.root / "dvc.lock").read_text()
    assert _accept(project) == set()  # the report reads the module, too
    assert (project.root / "dvc.lock").read_text() == lock
