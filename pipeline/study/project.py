"""Creates a project folder in which studies run, for an installed package.

The wheel's data folder holds the same files for both engines as the checkout. They are copied, and
so is the package: a study becomes stale when the code of a stage changes, and the code of a result
is committed beside it. With a link to
the installed package, an upgrade would silently change the code of every study.
"""

import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pipeline
from pipeline.workflow.errors import bad_input, shorten
from pipeline.workflow.files import atomic

DISTRIBUTION = "bypass-memorization"
SHARED = f"share/{DISTRIBUTION}/"
"""In the wheel's data folder; pyproject.toml puts the files there."""

FILES = (
    ".dvc/.gitignore", ".dvc/config", ".dvc/plots.html", ".dvcignore", ".gitignore",
    "CITATION.cff", "Snakefile", "constraints.txt", "dvc.yaml", "loops.yaml", "mine/README.md",
    "params.yaml", "profiles/default/config.yaml", "profiles/slurm/config.yaml",
)  # fmt: skip
"""Files that a run needs beside the package."""


def init(folder: Path) -> None:
    """Write a project into a folder, which is created if missing, and make it a git repository if
    it is in none.

    Raises:
        InputError: the folder is not empty except for git's files, or the package is incomplete.
    """
    if there := sorted(each.name for each in folder.glob("*") if each.name != ".git"):
        raise bad_input(
            str(folder.resolve()),
            shorten(", ".join(there)),
            "an empty folder",
            "make one, and run the command in it",
        )
    package = Path(pipeline.__file__).parent
    sources = _sources(package)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic(folder / package.name, directory=True) as copy:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, copy, ignore=ignored, dirs_exist_ok=True)
    for name, source in sources.items():
        with atomic(folder / name) as copy:
            shutil.copyfile(source, copy)
    if not _git(folder, "rev-parse", "--is-inside-work-tree"):
        _git(folder, "init", "--quiet")


def _sources(package: Path) -> Mapping[str, Path]:
    """The places of the files: beside the package in a checkout, else in the wheel's data folder.

    Raises:
        InputError: some are missing.
    """
    found = {name: package.parent / name for name in FILES}
    if not (package.parent / "dvc.yaml").is_file():
        try:
            installed = files(DISTRIBUTION) or []
        except PackageNotFoundError:
            installed = []
        found = {
            str(each).partition(SHARED)[2]: Path(str(each.locate()))
            for each in installed
            if SHARED in str(each)
        }
    if missing := [name for name in FILES if not found.get(name, Path("nowhere")).is_file()]:
        raise bad_input(
            f"the package {DISTRIBUTION}",
            f"no {', '.join(missing)}",
            "a checkout, or an installed wheel",
            f"install it again: pip install --force-reinstall --no-deps {DISTRIBUTION}",
        )
    return {name: found[name] for name in FILES}


def _git(folder: Path, *words: str) -> bool:
    """Whether the git command succeeded; without git, DVC reports the problem later."""
    try:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True).returncode == 0  # noqa: S603, S607 - a list of fixed words
    except FileNotFoundError:
        return False
