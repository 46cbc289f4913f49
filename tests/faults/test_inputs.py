"""An input that is edited while a stage runs ends that stage, so that DVC records nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.workflow.errors import InputError
from pipeline.workflow.inputs import held_still
from tests.project import commit_all, copy_files

STAGE = "theory@tiny-low-rank"
PARAMS = "params.yaml"
MODULE = "pipeline/theory/low_rank.py"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy_files(tmp_path)
    commit_all(tmp_path)
    subprocess.run(["dvc", "repro", "--quiet", "check@tiny", "code"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


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
        (MODULE, "\n\n\n", "\n\nCHANGED = True\n\n", r"theory\.low_rank of code"),
    ],
)
def test_what_the_stage_reads_may_not_change(
    project: Path, file: str, old: str, new: str, named: str
) -> None:
    with pytest.raises(InputError, match=f"changed while it ran: {named}"), held_still(STAGE):
        _replace(project / file, old, new)


def test_nor_may_data(project: Path) -> None:
    table = project / "data/tiny/study.json"
    named = r"changed while it ran: data/tiny/study\.json"
    with pytest.raises(InputError, match=named), held_still("corpus@tiny"):
        table.write_text("{}")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        (PARAMS, "tiny-lookup:", "tiny-looking:"),
        ("pipeline/report/page.py", '"""', '"""1 / 0 '),
        (MODULE, '"""', '"""1 / 0 '),  # a docstring
    ],
)
def test_anything_else_may(project: Path, file: str, old: str, new: str) -> None:
    with held_still(STAGE):
        _replace(project / file, old, new)


@pytest.mark.slow
def test_nothing_is_recorded(project: Path) -> None:
    """Neither in dvc.lock nor in the cache of runs, so that the same command runs it again."""
    command = project / "pipeline/stages/theory.py"
    edits = "open('params.yaml', 'a').write('\\n'); "
    edits += f"open({MODULE!r}, 'a').write('EDITED = 1')\n"
    runs = '    with costed(study.data, "theory", grid.name):\n'
    _replace(command, runs, f"    {edits}{runs}")
    environment = {**os.environ, "PYTHONPATH": str(project)}
    dvc = str(Path(sys.executable).parent / "dvc")
    for edited in (True, False):
        subprocess.run([dvc, "repro", "--quiet", "code"], env=environment, check=True)
        lock = (project / "dvc.lock").read_text()
        done = subprocess.run(
            [dvc, "repro", "--single-item", STAGE],
            env=environment, capture_output=True, text=True,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == edited, said
        assert ("changed while it ran: theory.low_rank of code" in said) == edited
        assert ((project / "dvc.lock").read_text() == lock) == edited
        _replace(command, edits, "\n") if edited else None
