"""Accept edits that cannot change a result: comments, docstrings, layout, texts of errors.

A stage depends on the files of the modules that it imports, so DVC calls it stale after an error is
reworded, too. `accept` compares each changed module with the version that the stage last ran with
(found in git's history by the checksum in dvc.lock). Snakemake does so before each run.
"""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline.workflow.dag import Dag
from pipeline.workflow.dependencies import meaning


def accept(dag: Dag) -> list[str]:
    """Commit every stage that is stale only because of wording, without running it.

    Returns:
        the addresses of these stages, in the order of dvc.yaml.
    """
    file = Path("dvc.lock")
    if not file.exists():
        return []
    changes, lock = dag.changes, YAML(typ="safe").load(file)["stages"]
    accepted = [
        address
        for address in dag.stages
        if address in changes and _is_reworded(changes[address], lock.get(address))
    ]
    for address in accepted:
        dag.repo.commit(address, force=True)
    if accepted:
        del dag.changes
    return accepted


def _is_reworded(entries: list[Any], locked: dict[str, Any] | None) -> bool:
    """Whether a stage that ran before is stale only because of reworded modules."""
    if locked is None:
        return False
    checksums = {dep["path"]: dep["md5"] for dep in locked.get("deps", [])}
    changed = [entry.get("changed deps") if isinstance(entry, dict) else None for entry in entries]
    return all(changed) and all(
        path.endswith(".py")
        and state == "modified"
        and path in checksums
        and _same_code(Path(path), checksums[path])
        for deps in changed
        for path, state in (deps or {}).items()
    )


@cache
def _same_code(path: Path, md5: str) -> bool:
    """Whether `path` has the same code as the version with checksum `md5`."""
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
