"""Accept an edit that cannot change a result, without running the stages that it made stale.

A stage depends on the files of the modules that it imports, so DVC calls it stale after a comment
is mended, too. `accept` compares each changed module with the version that the stage last ran with
(found in git's history by the checksum in dvc.lock). Where the two differ in comments, docstrings,
layout and texts of errors alone, the stage is committed as it is; anything else is refused.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline.workflow.dag import Dag
from pipeline.workflow.dependencies import meaning
from pipeline.workflow.errors import InputError, Problem


def accept() -> list[str]:
    """Commit every stage that is stale through comments, docstrings or layout alone.

    Returns:
        the addresses of the accepted stages, in the order of dvc.yaml.

    Raises:
        InputError: a stage is stale for another reason; nothing is committed then.
    """
    dag = Dag()
    changes = {name: entries for name, entries in dag.repo.status().items() if name in dag.stages}
    lock = YAML(typ="safe", pure=True).load(Path("dvc.lock"))["stages"] if changes else {}
    problems = [
        problem
        for address, entries in changes.items()
        for problem in _reasons(address, entries, lock.get(address))
    ]
    if problems:
        raise InputError(*problems)
    accepted = [address for address in dag.stages if address in changes]
    for address in accepted:
        dag.repo.commit(address, force=True)
    return accepted


def _reasons(address: str, entries: list[Any], locked: dict[str, Any] | None) -> list[Problem]:
    """Why the stage cannot be accepted; nothing where it can."""
    if locked is None:
        return [_refusal(address, "it never ran", "a stage that ran before")]
    checksums = {dep["path"]: dep["md5"] for dep in locked.get("deps", [])}
    problems = []
    for entry in entries:
        changed = entry.get("changed deps", {}) if isinstance(entry, dict) else {}
        if not changed:
            problems.append(_refusal(address, str(entry), "nothing changed but modules"))
        for path, state in changed.items():
            if not path.endswith(".py") or state != "modified" or path not in checksums:
                problems.append(_refusal(address, f"{path}: {state}", "an edited module"))
            elif not _same_code(Path(path), checksums[path]):
                problems.append(
                    _refusal(
                        address,
                        f"{path}: its code differs from that of the last run",
                        "a change in comments, docstrings and layout alone, from a version that "
                        "git has",
                    )
                )
    return problems


def _refusal(address: str, got: str, expected: str) -> Problem:
    return Problem(f"stage {address}", got, expected, f"run it: dvc repro {address}")


def _same_code(path: Path, md5: str) -> bool:
    """Whether `path` does what the version with checksum `md5` did."""
    before = _version(path, md5)
    try:
        return before is not None and meaning(before) == meaning(path.read_text(encoding="utf-8"))
    except SyntaxError:  # an edit that is not finished
        return False


def _version(path: Path, md5: str) -> str | None:
    """The text of the version of `path` in git's history that has this checksum."""
    commits = _git("log", "--all", "--format=%H", "--", str(path)).decode().split()
    for commit in commits:
        try:
            content = _git("show", f"{commit}:./{path}")
        except subprocess.CalledProcessError:  # the commit that removed it
            continue
        if hashlib.md5(content, usedforsecurity=False).hexdigest() == md5:
            return content.decode()
    return None


def _git(*arguments: str) -> bytes:
    done = subprocess.run(  # noqa: S603  a list of arguments
        ["git", *arguments],  # noqa: S607  whichever git the user has
        capture_output=True,
        check=True,
    )
    return done.stdout
