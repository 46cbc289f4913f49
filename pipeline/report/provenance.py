"""The provenance of a report, for the page and for machines.

What determines the numbers is kept apart from the times, memory and events of one run, which
differ from run to run. Nothing here fails where a part is missing: the part is null or absent.
"""

import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.analysis.results import NUMBERS
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError

CITATION = Path(__file__).parents[2] / "CITATION.cff"

MOST_CHANGED = 50
"""At most this many changed files are named."""

_TABLES = (
    *("samples", "memorization", "tokens", "displacement", "benchmarks", "generations"),
    *("divergence", "attribution", "theory"),
)


def collect(
    study: str,
    data: Path,
    manifests: Sequence[Mapping[str, Any]],
    determined_by: Mapping[str, object],
    repository: Path | None = None,
) -> dict[str, Any]:
    """The provenance of a report, as JSON values, from a study's folder ``data/STUDY``.

    `determined_by` has params, versions, commands and other entries of the caller. The commit is
    that of the repository, by default that of this code.

    Returns:
        ``study``, ``git``, `determined_by`'s own entries, ``models`` (with commits and sha256),
        ``datasets`` (likewise), ``tables`` (what determines each, and its sha256), ``python``,
        ``citation``, ``runs`` (stage -> name -> time, device, memory, events).
    """
    git = git_state(repository or Path(__file__).resolve().parents[2])
    return {
        "study": study,
        "git": git,
        **{key: value for key, value in determined_by.items() if key not in ("study", "commands")},
        "commands": commands(git, determined_by.get("commands")),
        "models": list(manifests),
        "datasets": _json(data / "datasets" / "datasets.json"),
        "tables": _tables(data),
        "python": platform.python_version(),
        "citation": CITATION.read_text(encoding="utf-8") if CITATION.exists() else None,
        "runs": runs(data),
    }


def git_state(repository: Path) -> dict[str, Any] | None:
    """Commit, remote, and whether files differ from it; null without git or outside of one.

    An audit's folder has links to the files of the repository that it uses; others do not count.
    """
    links = (path.resolve() for path in Path().iterdir() if path.is_symlink())
    used = [path.name for path in links if path.parent == repository.resolve()]
    commit = _git(repository, "rev-parse", "HEAD")
    status = _git(repository, "status", "--porcelain", "--", *used)
    if commit is None or status is None:
        return None
    changed = [line[3:] for line in status.splitlines()]
    return {
        "commit": commit.strip(),
        "remote": _address((_git(repository, "remote", "get-url", "origin") or "").strip()),
        "dirty": bool(changed),
        "changed": changed[:MOST_CHANGED],
    }


def commands(git: Mapping[str, Any] | None, given: object) -> list[str]:
    """The commands that make the report again, from a bare machine where the remote is known."""
    own = [str(each) for each in given] if isinstance(given, Sequence) else []
    if not own or git is None:
        return own
    clone = [f"git clone {git['remote']} study && cd study"] if git["remote"] else []
    return [*clone, f"git checkout {git['commit']}", *own]


def runs(data: Path) -> dict[str, dict[str, Any]]:
    """Stage -> name -> time, memory, events, from its sidecar; unreadable ones are left out."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((data / "cost").glob("*/*.json")):
        if (sidecar := _json(path)) is not None:
            found.setdefault(path.parent.name, {})[path.stem] = sidecar
    return found


def _tables(data: Path) -> dict[str, Any]:
    """Path -> sha256 and what determines it; a damaged table has an error instead."""
    paths = [path for each in _TABLES for path in sorted((data / each).glob("*.parquet"))]
    found: dict[str, Any] = {}
    for path in (*paths, *(data / f"{name}.parquet" for name in NUMBERS)):
        name = str(path.relative_to(data))
        try:
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            found[name] = {"sha256": sha256, "determined_by": tables.provenance(path)}
        except (OSError, ValueError, pl.exceptions.PolarsError, InputError) as error:
            found[name] = {"error": str(error).partition("\n")[0]}
    return found


def _git(repository: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(repository), *arguments],  # noqa: S607  whichever git the user has
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _address(url: str) -> str:
    """The address without a user name, a token or a query; empty for a folder of this machine."""
    url = re.split(r"[?#]", url)[0]
    if re.match(r"(https?|ssh|git)://", url):
        return re.sub(r"://[^/]*@", "://", url)
    return url if re.match(r"[\w.-]+@[\w.-]+:", url) else ""


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
