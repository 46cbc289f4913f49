"""Copies of the project's own files, for tests that run it in a folder of their own."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import pytest
from ruamel.yaml import YAML

from pipeline.stages import registry
from pipeline.study.composition import check, compose, read_yaml, write
from pipeline.study.project import FILES
from pipeline.study.schema import Study
from pipeline.workflow.errors import InputError, Problem

ROOT = Path(__file__).parents[1]
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")


def copy_files(root: Path) -> None:
    """Copy what the stages and both engines read.

    Args:
        root: a folder that is there and empty.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pipeline", root / "pipeline", ignore=ignored)
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)


def commit_all(root: Path) -> None:
    """Make the folder a git repository, with all that is in it."""
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "start"]):
        subprocess.run([*GIT, *command], cwd=root, check=True)


@cache
def composed(study: str) -> dict[str, Any]:
    """The params of a study, as they are composed for a user."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "params.yaml")
        compose({"study": study}, ROOT / "pipeline/conf", path)
        return dict(read_yaml(path))


def begun(folder: Path, values: dict[str, Any], *addresses: str) -> Study:
    """The study of these params after some of its stages, in a folder that is the working one."""
    (folder / "pipeline").symlink_to(ROOT / "pipeline")
    write(values, folder / "params.yaml")
    study = check(values)
    for address in addresses:
        registry.run(study, address)
    return study


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Writing more bytes fails, as it does where a disk is full; any user can ask for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def pinned_datasets() -> dict[str, dict[str, Any]]:
    """Task of lm-eval -> its dataset, as the studies pin it."""
    files = sorted((ROOT / "pipeline/conf/shared/datasets").glob("*.yaml"))
    return {task: pin for file in files for task, pin in YAML(typ="safe").load(file).items()}


@dataclass(frozen=True)
class Project:
    """A folder with the project in it, and the commands of both engines.

    Args:
        root: the folder.
        more: of the environment.
    """

    root: Path
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The copy's own package comes first, and so does this Python's folder of commands."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **own, **self.more}

    def command(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder; it has to succeed if it is to be checked."""
        done = subprocess.run(
            arguments, cwd=self.root, env=self.environment, capture_output=True, text=True
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done

    def said(self, *arguments: str, check: bool = True) -> str:
        """What a command says, on both its outputs."""
        done = self.command(*arguments, check=check)
        return done.stdout + done.stderr

    def copied(self, root: Path) -> Self:
        """A copy at another path, to be changed."""
        return replace(self, root=shutil.copytree(self.root, root, symlinks=True))

    @contextmanager
    def start(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A command at work in a session of its own; what it says goes into said.txt.

        It is waited for in the end, and killed with all that it started if the test fails.
        """
        with (
            (self.root / "said.txt").open("w") as said,
            subprocess.Popen(
                arguments, cwd=self.root, env=self.environment,
                stdout=said, stderr=said, text=True, start_new_session=True,
            ) as running,
        ):  # fmt: skip
            try:
                yield running
            except BaseException:
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                raise

    def replace(self, file: str, old: str, new: str) -> None:
        """Replace a text that a file has once."""
        path = self.root / file
        text = path.read_text()
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {file}"
        path.write_text(text.replace(old, new))


def python(
    *arguments: str, cwd: Path = ROOT, check: bool = True, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run this Python with the checkout's package and `more` of the environment."""
    project = Project(cwd, {"PYTHONPATH": str(ROOT), **more})
    return project.command(sys.executable, *arguments, check=check)


def refused(work: Callable[..., object], *arguments: object, **options: Any) -> Problem:
    """The one problem with the input that `work` is told of."""
    with pytest.raises(InputError) as caught:
        work(*arguments, **options)
    (problem,) = caught.value.problems
    return problem


@contextmanager
def started(*arguments: str, cwd: Path = ROOT, **more: str) -> Iterator[subprocess.Popen[str]]:
    """This Python at work in a session of its own; its outputs are pipes. Killed in the end."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            yield running
        finally:
            running.kill()
