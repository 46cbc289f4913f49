"""The wheel in a fresh environment, and studies that it starts in an empty folder."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import polars as pl
import pytest

from pipeline.study.project import FILES, init
from pipeline.workflow.errors import InputError
from tests import own
from tests.test_readme import blocks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAME = "bypass-memorization"
EDIT = """from pipeline.interventions import edit


@edit(site="attention")
def halve(here):
    return 0.5 * here.now
"""


def tracked(*folders: str) -> set[str]:
    """The files that git has."""
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(listed.stdout.split())


def run(*command: str | Path, cwd: Path, python: Path, code: int = 0) -> str:
    """What a command prints, with the fresh environment first, and no path to the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from what git has, so that no leftover of an earlier build is in it."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in tracked():
        if not name.startswith(("tests/", "docs/")) and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(made), str(source)], check=True)
    (found,) = made.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a fresh environment with the wheel; its dependencies are those of this one."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, env=environment)
    # only now, or pip would find this environment's own installation of the project
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.fixture(scope="module")
def project(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    said = run(python.with_name(NAME), "init", cwd=folder, python=python)
    assert "this folder is a project now" in said
    return folder


def test_the_wheel_has_all_of_the_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert tracked("pipeline") - names == set()
    assert {name for name in names if name.startswith("pipeline/")} == tracked("pipeline")
    assert wheel.name.startswith("bypass_memorization-")


def test_init_writes_what_the_checkout_has(project):
    written = {str(each.relative_to(project)) for each in project.rglob("*") if each.is_file()}
    own_files = {name for name in written if not name.startswith(".git/")}
    assert own_files - {name for name in own_files if "__pycache__" in name} == {
        *tracked("pipeline"),
        *FILES,
    }
    for name in (*FILES, "pipeline/conf/study/tiny.yaml", "pipeline/report/page.html.jinja"):
        assert (project / name).read_bytes() == (ROOT / name).read_bytes(), name


def test_both_engines_know_the_study(project, python):
    planned = run(python.with_name(NAME), "plan", cwd=project, python=python)
    assert "memorization tiny-neo-8" in planned
    dry = run(python, "-m", "snakemake", "--dry-run", cwd=project, python=python)
    assert re.search(r"^memorization +4$", dry, re.M), dry
    where = "import pipeline; print(pipeline.__file__)"
    assert run(python, "-c", where, cwd=project, python=python).strip() == str(
        project / "pipeline" / "__init__.py"
    )


def test_an_edit_of_ones_own_is_tracked(project, python):
    (project / "edits").mkdir()
    (project / "edits" / "mine.py").write_text(EDIT)
    params = project / "params.yaml"
    before = params.read_text("utf-8")
    params.write_text(before.replace("edit: noise", "edit: edits/mine.py:halve"), "utf-8")
    assert "tiny: 4 models" in run(python.with_name(NAME), "study", cwd=project, python=python)
    dry = run(python, "-m", "snakemake", "--dry-run", cwd=project, python=python)
    assert re.search(r"rule memorization:\n    input: .*\bedits\b", dry), dry
    params.write_text(before, "utf-8")
    run(python.with_name(NAME), "study", cwd=project, python=python)


def test_a_study_of_ones_own_runs_through_to_its_page(project, python):
    mine = project / "mine"
    examples = blocks("docs/your-own.md", "python")
    for name, word in (("metrics.py", "METRICS = "), ("figures.py", "def plots")):
        (example,) = [code for code in examples if word in code]
        (mine / name).write_text(example.replace('"rouge_l"', '"top_10_accuracy"'))
    own.write_checkpoint(mine / "model", steps=20)
    (mine / "text.txt").write_text(own.text(300))
    command = [python.with_name(NAME), "audit", "--model", "mine/model", "--samples"]
    command += ["mine/text.txt", "--name", "mine", "--prefix-length", "8", "--suffix-length", "8"]
    said = run(*command, cwd=project, python=python)
    page = project / "reports" / "audit-mine" / "index.html"
    assert f"the report: {page}" in said
    assert "ROUGE-L ranges over" in page.read_text("utf-8")
    numbers = page.with_name("numbers.html").read_text("utf-8")
    assert "suffix tokens of rank 10 or better" in numbers
    summary = pl.read_parquet(project / "data" / "audit-mine" / "summary.parquet")
    assert summary.filter(metric="top_10_accuracy")["value"].is_between(0, 1).all()
    said = run(python, "-m", "dvc", "status", cwd=project / "audits" / "mine", python=python)
    assert "up to date" in said
    with (mine / "metrics.py").open("a") as code:
        code.write("METRICS[0] = METRICS[0]\n")
    run(python, "-m", "dvc", "repro", "code", cwd=project / "audits" / "mine", python=python)
    said = run(python, "-m", "dvc", "status", cwd=project / "audits" / "mine", python=python)
    stale = set(re.findall(r"^(\w+)@", said, re.M))
    assert {"memorization", "aggregate"} <= stale
    assert not stale & {"samples", "checkpoint", "tokens", "interventions"}


def test_init_works_from_a_checkout_too(tmp_path):
    init(tmp_path / "new")
    assert (tmp_path / "new" / "dvc.yaml").read_bytes() == (ROOT / "dvc.yaml").read_bytes()
    assert (tmp_path / "new" / ".git").is_dir()
    with pytest.raises(InputError, match="an empty folder"):
        init(tmp_path / "new")
    inside = tmp_path / "new" / "inside"  # a repository is around it already
    init(inside)
    assert not (inside / ".git").exists()
