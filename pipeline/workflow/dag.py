"""The stages of dvc.yaml as DVC resolves them, and which of them DVC would run."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import dvc.api
import networkx
from dvc.dependency.param import ParamsDependency
from dvc.stage import PipelineStage
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.workflow.digest import CODE, entry
from pipeline.workflow.files import safe_yaml
from pipeline.workflow.locks import naming_the_holder, opened

LOCK = Path("dvc.lock")

FIRST = ("check", "code")
"""Groups that run before all others. What they write moves no result: that the study passed its
check, and the digests, of which each stage has its own among its params."""


@dataclass(frozen=True)
class Stage:
    """A stage of dvc.yaml, its loops and values filled in; paths are relative to the root.

    Its address is group and item, such as ``memorization@tiny-neo-8``. It reads `deps` and writes
    `outs`, files and folders; `params` are a file of params -> the keys that it depends on.
    """

    address: str
    deps: tuple[str, ...]
    outs: tuple[str, ...]
    params: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The name in dvc.yaml, which is the name of the rule: ``memorization``."""
        return self.address.partition("@")[0]


class Dag:
    """The stages of dvc.yaml for the params.yaml on disk.

    Args:
        decide: whether to ask DVC which stages are stale. A job on a cluster node reads the
            Snakefile again after that decision, while other jobs write the files it would check.

    Raises:
        InputError: the folder is no git repository, or not DVC's.
        dvc.exceptions.DvcException: dvc.yaml or params.yaml cannot be resolved.
    """

    def __init__(self, *, decide: bool = True) -> None:
        self._decide = decide
        self.repo = opened()
        with self.repo.lock:  # no other process is writing dvc.lock, which DVC reads as well
            _set_aside_damaged_lock(LOCK)
            self.stages = {stage.addressing: _stage(stage) for stage in self._resolved()}
        self.producer = {out: stage.address for stage in self.stages.values() for out in stage.outs}

    def _resolved(self) -> list[PipelineStage]:
        return [stage for stage in self.repo.index.stages if isinstance(stage, PipelineStage)]

    @cached_property
    def declared(self) -> dict[str, Any]:
        """The groups of stages as in dvc.yaml, with loops and values not filled in."""
        groups: dict[str, Any] = safe_yaml("dvc.yaml")["stages"]
        return groups

    @cached_property
    def graph(self) -> networkx.DiGraph:
        """The addresses of all stages, each with an edge to those that read its outputs."""
        graph = self.repo.index.graph.reverse()
        return networkx.relabel_nodes(graph, {stage: stage.addressing for stage in graph})

    @cached_property
    def changed(self) -> set[str]:
        """The stages that DVC would run, if the digests were those of the code as it is now.

        Raises:
            InputError: another run is active in this checkout.
        """
        with naming_the_holder(), self.repo.lock:  # repo.status() would read all files again
            locked = _locked()
            return {
                stage.addressing
                for stage in self._resolved()
                if _differs(stage) or self._runs_other_code(stage.addressing, locked)
            }

    def _runs_other_code(self, address: str, locked: Mapping[str, Any]) -> bool:
        """Whether the code differs from that of the stage's last run."""
        before = locked.get(address, {}).get("params", {}).get(str(CODE), {})
        keys = self.stages[address].params.get(str(CODE), ())
        return any(before.get(key) != entry(key) for key in keys)

    @cached_property
    def stale(self) -> frozenset[str]:
        """The stages that DVC would run, and those that read their outputs; undecided: all.

        Those of `FIRST` are left out; `run_first` runs them.

        Raises:
            InputError: another run is active in this checkout.
        """
        later = {name for name, stage in self.stages.items() if stage.group not in FIRST}
        if not self._decide:
            return frozenset(later)
        changed = self.changed & later
        after = (networkx.descendants(self.graph, name) for name in changed)
        return frozenset(changed.union(*after))

    def run_first(self) -> None:
        """Run the stages of `FIRST` that are stale.

        Raises:
            SystemExit: one failed, after it has printed its error.
            InputError: another run is active in this checkout.
        """
        todo = [name for name in self.changed if self.stages[name].group in FIRST]
        if todo:
            reproduce("--single-item", *sorted(todo), quiet=True)
            self.repo = opened()  # which has read dvc.lock again

    def inputs(self, stage: Stage) -> list[str]:
        """The files that a stage reads; those of `FIRST` are left out.

        A folder that other stages write into stands for the files that they write.
        """
        read = []
        for dep in stage.deps:
            within = [out for out in self.producer if out.startswith(f"{dep}/")]
            read += [dep] if dep in self.producer or not within else within
        return [
            file
            for file in dict.fromkeys(read)
            if file not in self.producer or self.stages[self.producer[file]].group not in FIRST
        ]


def resolved(address: str) -> Stage:
    """One stage of the study in force, without resolving the others.

    Raises:
        dvc.exceptions.DvcException: there is no such stage.
    """
    repo = opened()
    with repo.lock:  # no other process is writing dvc.lock, which DVC reads as well
        return _stage(repo.stage.load_one("dvc.yaml", address))


def reproduce(*words: str, quiet: bool = False) -> None:
    """Run stale stages one after the other, as `dvc repro` does with these words; none: all stages.

    A quiet run prints errors alone.

    Raises:
        SystemExit: a stage failed, after it has printed its error.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PATH"] = path  # the stages' `python` is this one
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", *words]
    # a stage that fails prints its error itself
    if status := subprocess.run([*command, *["--quiet"] * quiet], check=False).returncode:  # noqa: S603 - this Python, without a shell
        sys.exit(status)


def cached(address: str, out: str | Path) -> Path | None:
    """The place in DVC's cache of a file that a stage's last run wrote; None if it is not there.

    DVC and Snakemake remove a stage's outputs before it runs; dvc.lock names them until the stage
    has ended. `out` is relative to the root.
    """
    if not LOCK.exists():
        return None
    repo = opened()
    with repo.lock:  # no other process is writing dvc.lock
        outs = _locked().get(address, {}).get("outs", [])
    md5 = next((each["md5"] for each in outs if each["path"] == str(out)), None)
    path = Path(repo.cache.local.oid_to_path(md5)) if md5 else None
    return path if path and path.is_file() else None


def read_at(path: str, revision: str) -> bytes:
    """The content of an output of a stage as it was at a git revision, from DVC's cache or remote.

    Raises:
        dvc.exceptions.DvcException: no such revision or output, or its content is not found.
        FileNotFoundError: likewise.
    """
    content: bytes = dvc.api.read(path, rev=revision, mode="rb")
    return content


def _stage(stage: PipelineStage) -> Stage:
    root = stage.repo.root_dir

    def path(file: Any) -> str:
        return str(os.path.relpath(file.fs_path, root))

    params = [dep for dep in stage.deps if isinstance(dep, ParamsDependency)]
    files = [path(dep) for dep in stage.deps if not isinstance(dep, ParamsDependency)]
    return Stage(
        address=stage.addressing,
        deps=tuple(dict.fromkeys(files)),
        outs=tuple(path(out) for out in stage.outs),
        params={path(dep): tuple(dep.params) for dep in params},
    )


def _differs(stage: PipelineStage) -> bool:
    """Whether DVC would run a stage for another reason than its code."""
    changes = [change for entries in stage.status().values() for change in entries]
    deps = [change.pop("changed deps", {}) for change in changes if isinstance(change, dict)]
    return any(changes) or any(set(each) - {str(CODE)} for each in deps)


def _set_aside_damaged_lock(lock: Path) -> None:
    """Rename a truncated dvc.lock; a killed DVC leaves one, since it writes the file in place.

    Without dvc.lock, DVC finds the results of every stage in its run cache, and reruns none.
    """
    if not lock.exists():
        return
    content = lock.read_bytes()
    try:
        # a file that is cut within a line may still be valid YAML
        complete = content.endswith(b"\n") and isinstance(YAML(typ="safe").load(content), dict)
    except (YAMLError, UnicodeDecodeError):
        complete = False
    if not complete:
        aside = lock.with_name("dvc.lock.damaged")
        lock.replace(aside)
        print(
            f"dvc.lock was cut short by a killed run. It is now {aside.name}; "
            "DVC's cache still has what every stage made.",
            file=sys.stderr,
        )


def _locked() -> dict[str, Any]:
    """Stage -> what dvc.lock records of its last run; empty without the file."""
    recorded = (safe_yaml(LOCK) if LOCK.exists() else None) or {}
    stages: dict[str, Any] = recorded.get("stages", {})
    return stages
