"""A copy of the project whose stages are stubs: the DAG is the real one, the work is not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import tests.project
from tests.project import commit_all, copy_files

HERE = Path(__file__).parent
ENGINES = {"snakemake": ("snakemake", "--cores", "8"), "dvc": ("dvc", "repro")}


class Project(tests.project.Project):
    """A project whose stages are stubs."""

    def snakemake(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.command(*ENGINES["snakemake"], *arguments, check=check)

    def dvc(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.command("dvc", *arguments, check=check)

    def run(self, engine: str, *, check: bool = True) -> str:
        """Run the whole study by an engine; what it says."""
        return self.said(*ENGINES[engine], check=check)

    def compose(self, study: str) -> None:
        """Put a study in force."""
        script = f"from pipeline.study.composition import compose; compose({{'study': '{study}'}})"
        self.command(sys.executable, "-c", script)

    def derive(self) -> None:
        """Write loops.yaml of an edited params.yaml."""
        script = "from pipeline.study.composition import derive; derive()"
        self.command(sys.executable, "-c", script)

    @contextmanager
    def params(self) -> Iterator[dict[str, Any]]:
        """The values of params.yaml, to be changed."""
        yaml, path = YAML(), self.root / "params.yaml"
        values = yaml.load(path)
        yield values
        yaml.dump(values, path)

    def set(self, key: str, value: object) -> None:
        """Set one value of params.yaml, which is named by its keys with dots between them."""
        *parents, last = key.split(".")
        with self.params() as values:
            reduce(getitem, parents, values)[last] = value

    def describe(self) -> dict[str, dict[str, object]]:
        """Write stages.json, from which the stub knows what each stage reads and writes."""
        script = (
            "import json; from dataclasses import asdict; from pipeline.workflow.dag import Dag;"
            "print(json.dumps({a: asdict(s) for a, s in Dag().stages.items() if a != 'code'}))"
        )
        described = self.command(sys.executable, "-c", script).stdout.splitlines()[-1]
        (self.root / "stages.json").write_text(described)
        return json.loads(described)

    def ran(self) -> Counter[str]:
        """The stages whose command ran since the last call."""
        log = self.root / "ran.txt"
        stages = Counter(log.read_text().split()) if log.exists() else Counter()
        log.unlink(missing_ok=True)
        return stages

    def planned(self) -> str:
        """What `snakemake -n` would do."""
        return self.said(*ENGINES["snakemake"], "-n")

    def assert_idle(self) -> None:
        """Neither engine has anything to do."""
        assert "Nothing to be done" in self.planned()
        assert "up to date" in self.dvc("repro").stdout
        assert not self.ran()


def wait(until: Callable[[], bool], seconds: float = 300) -> None:
    """Wait for what running stages do."""
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, "the stages did not get that far"
        time.sleep(0.05)


def stub_project(root: Path) -> Project:
    """A project in an empty folder, in which nothing has run."""
    copy_files(root)
    shutil.copy(HERE / "stub_main.py", root / "pipeline" / "__main__.py")
    for study in ("mini", "other"):
        text = (HERE / "mini.yaml").read_text().replace("NAME", study)
        (root / "pipeline/conf/study" / f"{study}.yaml").write_text(text)
    project = Project(root)
    project.compose("mini")
    commit_all(root)
    project.describe()
    return project


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project in which nothing has run. Not to be changed: take `fresh`."""
    return stub_project(tmp_path_factory.mktemp("stubs"))


@pytest.fixture(scope="session")
def finished(stubs: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose study snakemake has run once. Not to be changed: take `project`."""
    project = stubs.copied(tmp_path_factory.mktemp("finished") / "project")
    project.snakemake()
    return project


@pytest.fixture
def fresh(stubs: Project, tmp_path: Path) -> Project:
    """A project in which nothing has run, to be changed."""
    return stubs.copied(tmp_path / "fresh")


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Project:
    """A copy of the finished project, to be changed."""
    copy = finished.copied(tmp_path / "project")
    copy.ran()
    return copy
