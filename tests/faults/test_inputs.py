"""An input that is edited while a stage runs ends that stage, so that DVC records nothing of it."""

from pathlib import Path

import pytest

from pipeline.workflow.errors import InputError
from pipeline.workflow.inputs import held_still
from tests.project import Project, commit_all, copy_files

STAGE = "theory@tiny-low-rank"
PARAMS = "params.yaml"
MODULE = "pipeline/theory/low_rank.py"


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose params were checked. Not to be changed: take `project`."""
    project = Project(tmp_path_factory.mktemp("checked"))
    copy_files(project.root)
    commit_all(project.root)
    project.command("dvc", "repro", "--quiet", "check@tiny", "code")
    return project


@pytest.fixture
def project(checked: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    copy = checked.copied(tmp_path / "project")
    monkeypatch.chdir(copy.root)
    return copy


@pytest.mark.parametrize(
    ("stage", "file", "old", "new", "named"),
    [
        (STAGE, PARAMS, "    name: low_rank", "    name: lookup", "theory.tiny-low-rank of params"),
        (STAGE, PARAMS, "tiny-low-rank:", "tiny-lower-rank:", "theory.tiny-low-rank of params"),
        (STAGE, MODULE, "from __future__", "X = 1\nfrom __future__", "theory.low_rank of code"),
        ("corpus@tiny", "data/tiny/study.json", "{", "{ ", "data/tiny/study.json"),
    ],
)
def test_what_the_stage_reads_may_not_change(
    project: Project, stage: str, file: str, old: str, new: str, named: str
) -> None:
    with pytest.raises(InputError, match=f"changed while it ran: {named}"), held_still(stage):
        project.replace(file, old, new)


def test_anything_else_may(project: Project) -> None:
    with held_still(STAGE):
        project.replace(PARAMS, "tiny-lookup:", "tiny-looking:")
        for file, docstring in (("pipeline/report/page.py", "The page:"), (MODULE, "The best lin")):
            project.replace(file, f'"""{docstring}', f'"""1 / 0 {docstring}')


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
