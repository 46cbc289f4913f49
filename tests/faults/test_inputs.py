"""An input that is edited while a stage runs ends that stage, so that DVC records nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.workflow.errors import InputError
from pipeline.workflow.inputs import held_still
from tests.project import Project, commit_all, copy_files

STAGE = "theory@tiny-low-rank"
PARAMS = "params.yaml"
MODULE = "pipeline/theory/low_rank.py"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    copy_files(tmp_path)
    commit_all(tmp_path)
    project = Project(tmp_path)
    project.command("dvc", "repro", "--quiet", "check@tiny", "code")
    monkeypatch.chdir(tmp_path)
    return project


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        (
            PARAMS,
            "    name: low_rank",
            "    name: lookup",
            r"theory\.tiny-low-rank of params\.yaml",
        ),
        (PARAMS, "tiny-low-rank:", "tiny-lower-rank:", r"theory\.tiny-low-rank of params\.yaml"),
        (MODULE, "from __future__", "CHANGED = True\nfrom __future__", r"theory\.low_rank of code"),
    ],
)
def test_what_the_stage_reads_may_not_change(
    project: Project, file: str, old: str, new: str, named: str
) -> None:
    with pytest.raises(InputError, match=f"changed while it ran: {named}"), held_still(STAGE):
        project.replace(file, old, new)


def test_nor_may_data(project: Project) -> None:
    table = project.root / "data/tiny/study.json"
    named = r"changed while it ran: data/tiny/study\.json"
    with pytest.raises(InputError, match=named), held_still("corpus@tiny"):
        table.write_text("{}")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        (PARAMS, "tiny-lookup:", "tiny-looking:"),
        ("pipeline/report/page.py", '"""The page:', '"""1 / 0 The page:'),
        (MODULE, '"""The best linear', '"""1 / 0 The best linear'),  # a docstring
    ],
)
def test_anything_else_may(project: Project, file: str, old: str, new: str) -> None:
    with held_still(STAGE):
        project.replace(file, old, new)


@pytest.mark.slow
def test_nothing_is_recorded(project: Project) -> None:
    """Neither in dvc.lock nor in the cache of runs, so that the same command runs it again."""
    stage = "pipeline/stages/theory.py"
    edits = "open('params.yaml', 'a').write('\\n'); "
    edits += f"open({MODULE!r}, 'a').write('EDITED = 1')\n"
    runs = '    with costed(study.data, "theory", grid.name):\n'
    project.replace(stage, runs, f"    {edits}{runs}")
    for edited in (True, False):
        project.command("dvc", "repro", "--quiet", "code")
        lock = (project.root / "dvc.lock").read_text()
        done = project.command("dvc", "repro", "--single-item", STAGE, check=False)
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == edited, said
        assert ("changed while it ran: theory.low_rank of code" in said) == edited
        assert ((project.root / "dvc.lock").read_text() == lock) == edited
        project.replace(stage, edits, "\n") if edited else None
