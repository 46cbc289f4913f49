"""A comment can be mended without days of work; code cannot be slipped through."""

from __future__ import annotations

import subprocess
import sys

from tests.dag.conftest import Project

ACCEPT = "from pipeline.workflow.accept import accept; print(*accept())"
MODULE = "pipeline/interventions/interventions.py"


def _accept(project: Project, check: bool = True) -> subprocess.CompletedProcess[str]:
    return project.command(sys.executable, "-c", ACCEPT, check=check)


def test_a_comment_is_accepted_without_running(project: Project) -> None:
    text = (project.root / MODULE).read_text()
    edited = "# a comment\n" + text.replace('"""Interventions:', '"""Interventions, that is:', 1)
    edited += '\nQUARTILE = 4\n"""What stands under a constant is no code either."""\n'
    edited = edited.replace("\nQUARTILE = 4\n", "\n")
    assert edited.count('"""') == text.count('"""') + 2
    (project.root / MODULE).write_text(edited)
    assert "memorization@mini-p-1_4b" in project.dvc("status").stdout
    accepted = _accept(project).stdout.splitlines()[-1].split()
    readers = {name for name, stage in project.describe().items() if MODULE in stage["deps"]}
    assert set(accepted) == readers
    assert "memorization@mini-p-1_4b" in readers
    project.assert_idle()


def test_code_is_refused_and_nothing_is_committed(project: Project) -> None:
    with (project.root / MODULE).open("a") as file:
        file.write("\nQUARTILES = 5\n")
    with (project.root / "pipeline/report/page.py").open("a") as file:
        file.write("\n# only a comment\n")
    lock = (project.root / "dvc.lock").read_text()
    refused = _accept(project, check=False)
    assert refused.returncode != 0
    assert "its code differs" in refused.stderr
    assert "dvc repro memorization@mini-p-1_4b" in refused.stderr
    assert (project.root / "dvc.lock").read_text() == lock


def test_a_changed_param_is_not_accepted(project: Project) -> None:
    old = "  pythia:\n    dtype: float32"
    project.replace("params.yaml", old, "  pythia:\n    dtype: float16")
    refused = _accept(project, check=False)
    assert refused.returncode != 0
    assert "expected: an edited module" in refused.stderr
    assert "evaluation" in refused.stderr
