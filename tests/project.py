"""Copies of the project's own files, for tests that run it in a folder of their own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
FILES = (
    "Snakefile",
    "dvc.yaml",
    "params.yaml",
    "loops.yaml",
    "CITATION.cff",
    ".dvcignore",
    ".gitignore",
)
FOLDERS = ("pipeline", "profiles")


def copy_files(root: Path) -> None:
    """Copy what the stages and both engines read.

    Args:
        root: a folder that is there and empty.
    """
    for name in FILES:
        shutil.copy(ROOT / name, root)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".dvc").mkdir()
    for name in ("config", ".gitignore"):
        shutil.copy(ROOT / ".dvc" / name, root / ".dvc")


def commit_all(root: Path) -> None:
    """Make the folder a git repository, with all that is in it."""
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "start"]):
        subprocess.run([*git, *command], cwd=root, check=True)


def pinned_datasets() -> dict[str, dict[str, Any]]:
    """Task of lm-eval -> its dataset, as the studies pin it."""
    files = sorted((ROOT / "pipeline/conf/shared/datasets").glob("*.yaml"))
    return {task: pin for file in files for task, pin in YAML(typ="safe").load(file).items()}
