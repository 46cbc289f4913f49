"""One DAG, two engines: dvc.yaml declares the stages, Snakemake schedules them, DVC decides.

The only file that imports Snakemake. It answers the Snakefile's questions: which files a stage
reads and writes (from dvc.yaml, where they are declared once), and which stages DVC would run.
Snakemake's own staleness check is switched off: data inputs are ancient, and each rule has one more
input, a mark that is newer than the outputs if DVC calls the stage stale. A stage scheduled without
need costs a second: its command, ``dvc repro --single-item``, finds nothing to do, or restores
missing files from DVC's cache.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import dvc.api
import dvc.cli
import networkx
from dvc.stage import PipelineStage
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from snakemake.io import ancient, directory
from snakemake.logging import logger

from pipeline.workflow.locks import naming_the_holder, opened

MARKS = Path(".snakemake/dvc")
FILE_SUFFIXES = frozenset({".parquet", ".json", ".html"})
"""Outputs with other endings are folders; a missing suffix is no test, since names have dots."""

WILDCARDS = dict.fromkeys(
    (
        "models",
        "loops.checkpoint",
        "loops.attribution",
        "loops.memorization",
        "loops.memorization_part",
        "loops.benchmarks",
        "loops.benchmarks_part",
        "loops.divergence",
        "loops.generations",
    ),
    "model",
) | {"loops.samples": "family", "loops.theory": "experiment"}
"""The section of params.yaml that a group of stages loops over -> the wildcard of its rule."""


@dataclass(frozen=True)
class Stage:
    """A stage of dvc.yaml, its loops and values filled in; paths are relative to the root.

    Args:
        address: group and item, such as ``memorization@tiny-neo-8``.
        command: what DVC runs.
        deps: files and folders that it reads, code among them.
        outs: files and folders that it writes.
        constant: its output never changes (``meta: {constant: true}``), so what reads it stays
            fresh when it runs again.
    """

    address: str
    command: str
    deps: tuple[str, ...]
    outs: tuple[str, ...]
    constant: bool

    @property
    def group(self) -> str:
        """The name in dvc.yaml, which is the name of the rule: ``memorization``."""
        return self.address.partition("@")[0]


class Dag:
    """The stages of dvc.yaml for the params.yaml on disk.

    Args:
        root: the project's folder.
        decide: whether to ask DVC which stages are stale. A job on a cluster node reads the
            Snakefile again after that decision, while other jobs write the files it would check.

    Raises:
        InputError: the folder is no git repository, or not DVC's.
        dvc.exceptions.DvcException: dvc.yaml or params.yaml cannot be resolved.
    """

    def __init__(self, root: str | Path = ".", *, decide: bool = True) -> None:
        self._decide = decide
        self.repo = opened(root)
        if decide:
            with self.repo.lock:  # no other process is writing dvc.lock
                _set_aside_damaged_lock(Path(root) / "dvc.lock")
        self.stages = {stage.addressing: self._stage(stage) for stage in self._resolved()}
        self.producer = {out: s.address for s in self.stages.values() for out in s.outs}

    def _resolved(self) -> list[PipelineStage]:
        """DVC's own stages; it reads its files again only after a commit."""
        return [each for each in self.repo.index.stages if isinstance(each, PipelineStage)]

    def _stage(self, stage: PipelineStage) -> Stage:
        def paths(files: list[Any]) -> tuple[str, ...]:
            relative = (os.path.relpath(file.fs_path, self.repo.root_dir) for file in files)
            return tuple(dict.fromkeys(relative))

        return Stage(
            address=stage.addressing,
            command=stage.cmd,
            deps=paths([dep for dep in stage.deps if type(dep).__name__ == "Dependency"]),
            outs=paths(stage.outs),
            constant=bool((stage.meta or {}).get("constant")),
        )

    @cached_property
    def declared(self) -> dict[str, Any]:
        """The groups of stages as in dvc.yaml, with loops and values not filled in."""
        groups: dict[str, Any] = _read_yaml("dvc.yaml")["stages"]
        return groups

    @cached_property
    def study(self) -> str:
        """The name of the study in force."""
        return str(_read_yaml("params.yaml")["study"])

    @cached_property
    def edges(self) -> set[tuple[str, str]]:
        """(upstream, downstream) addresses."""
        return {(up.addressing, down.addressing) for down, up in self.repo.index.graph.edges}

    @cached_property
    def changes(self) -> dict[str, list[Any]]:
        """The stages that DVC would run, with their changes as ``dvc status`` reports them.

        After a commit of a stage, delete this property, so that DVC is asked again.

        Raises:
            InputError: another run is active in this checkout.
        """
        found: dict[str, list[Any]] = {}
        with naming_the_holder(), self.repo.lock:  # repo.status() would read all files again
            for stage in self._resolved():
                found |= stage.status()
        return found

    @cached_property
    def stale(self) -> frozenset[str]:
        """The stages that DVC would run, and those that read their outputs; undecided: all.

        Raises:
            InputError: another run is active in this checkout.
        """
        if not self._decide:
            return frozenset(self.stages)
        changed = set(self.changes)
        passing_on = networkx.DiGraph()
        passing_on.add_nodes_from(self.stages)
        passing_on.add_edges_from(e for e in self.edges if not self.stages[e[0]].constant)
        return frozenset(changed.union(*(networkx.descendants(passing_on, s) for s in changed)))

    def write_marks(self) -> None:
        """Tell Snakemake what is stale: a stale stage gets a mark of now, a fresh one of 1970."""
        MARKS.mkdir(parents=True, exist_ok=True)
        for address in self.stages:
            mark = MARKS / address
            if address in self.stale:  # new content too: an equal checksum makes a new file old
                mark.write_text(f"{time.time_ns()}\n")
            else:
                mark.touch()
                os.utime(mark, (1, 1))

    def read_by(self, stage: Stage) -> dict[str, list[str]]:
        """The inputs of a stage, by name: ``code``, or the folder below data/STUDY/.

        A folder that other stages write into stands for the files that they write.
        """
        files: dict[str, list[str]] = {}
        for dep in stage.deps:
            within = [out for out in self.producer if out.startswith(f"{dep}/")]
            for file in [dep] if dep in self.producer or not within else within:
                files.setdefault(_name(file), []).append(file)
        return files

    def rule(self, group: str) -> Rule:
        """The parts of the rule `group` of the Snakefile."""
        return Rule(self, group)


class Rule:
    """The parts of one Snakemake rule, read from the stages of one group of dvc.yaml."""

    def __init__(self, dag: Dag, group: str) -> None:
        self._dag = dag
        declared = dag.declared[group]
        section = re.fullmatch(r"\$\{([\w.]+)\}", str(declared["foreach"]))
        self._wildcard = WILDCARDS.get(section[1]) if section else None
        study = dag.study
        kinds = (declared["do"].get(kind, []) for kind in ("outs", "metrics", "plots"))
        outs = [out if isinstance(out, str) else next(iter(out)) for kind in kinds for out in kind]
        self._outs = [self._pattern(out, study) for out in outs]
        item = f"/{{{self._wildcard}}}" if self._wildcard else ""
        item += ".{part}" if group.endswith("_part") else ""
        self.log = f"logs/{study}/{group}{item}.log"
        self.benchmark = f"logs/{study}/benchmark/{group}{item}.tsv"

    def _pattern(self, out: str, study: str) -> str:
        out = out.replace("${study}", study).replace("${key}", study)
        out = out.replace("${item.part}", "{part}")
        return re.sub(r"\$\{item(\.name)?\}", f"{{{self._wildcard}}}", out)

    @property
    def output(self) -> dict[str, Any]:
        """Output patterns by name, for ``output: **rule.output``."""
        return {
            _name(out): out if Path(out).suffix in FILE_SUFFIXES else directory(out)
            for out in self._outs
        }

    @property
    def input(self) -> Callable[[Mapping[str, str]], dict[str, Any]]:
        """Input function, for ``input: unpack(rule.input)``."""

        def inputs(wildcards: Mapping[str, str]) -> dict[str, Any]:
            stage = self._stage(wildcards)
            data = {
                name: [self._as_input(file) for file in files if not self._ignored(file, stage)]
                for name, files in self._dag.read_by(stage).items()
            }
            return {**data, "mark": str(MARKS / stage.address)}

        return inputs

    @property
    def stage(self) -> Callable[[Mapping[str, str]], str]:
        """The address of the stage that a job runs, for ``params: stage=rule.stage``."""
        return lambda wildcards: self._stage(wildcards).address

    def _ignored(self, file: str, reader: Stage) -> bool:
        """Whether to leave a file out of Snakemake's inputs: braces in its name, or constant.

        Snakemake takes braces in a user's file name for wildcards; DVC checks the file in any case.

        A constant input of a fresh reader is left out, because when the stage that writes it runs
        again, Snakemake would run all stages below it, or (if the input is ancient, snakemake issue
        4166) none of them, stale or not. A stale reader keeps it, and so waits until it is written.
        """
        if "{" in file:
            return True
        writer = self._dag.stages.get(self._dag.producer.get(file, ""))
        return writer is not None and writer.constant and reader.address not in self._dag.stale

    def _as_input(self, file: str) -> str:
        stale = self._dag.producer.get(file) in self._dag.stale
        return file if stale else ancient(file)

    def _stage(self, wildcards: Mapping[str, str]) -> Stage:
        return self._dag.stages[self._dag.producer[self._outs[0].format(**dict(wildcards))]]


def reproduce() -> None:
    """Run the stale stages one after the other, as `dvc repro` does.

    Raises:
        SystemExit: a stage failed, after it has printed its error.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PATH"] = path  # the stages' `python` is this one
    if status := dvc.cli.main(["repro"]):
        sys.exit(status)


def _set_aside_damaged_lock(lock: Path) -> None:
    """Rename a truncated dvc.lock; a killed DVC leaves one, since it writes the file in place.

    Without dvc.lock, DVC finds the results of every stage in its run cache, and reruns none.
    """
    if not lock.exists():
        return
    content = lock.read_bytes()
    try:
        # a file that is cut within a line may still be valid YAML
        whole = content.endswith(b"\n") and isinstance(YAML(typ="safe").load(content), dict)
    except (YAMLError, UnicodeDecodeError):
        whole = False
    if not whole:
        aside = lock.with_name("dvc.lock.damaged")
        lock.replace(aside)
        logger.warning(
            f"dvc.lock was cut short by a killed run. It is now {aside.name}; "
            "DVC's cache still has what every stage made."
        )


def cached(address: str, out: str | Path) -> Path | None:
    """The place in DVC's cache of an output of a stage's last run; None if it is not there.

    DVC and Snakemake remove a stage's outputs before it runs; dvc.lock names them until the stage
    has ended.

    Args:
        address: of the stage, such as ``memorization@tiny-neo-8``.
        out: a file that it writes, relative to the root.
    """
    lock = Path("dvc.lock")
    if not lock.exists():
        return None
    repo = opened(".")
    with repo.lock:  # no other process is writing dvc.lock
        stages = YAML(typ="safe").load(lock)
    outs = stages.get("stages", {}).get(address, {}).get("outs", [])
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


def _name(path: str) -> str:
    """``benchmarks`` for data/tiny/benchmarks/{model}.parquet, ``code`` for a module."""
    if path.startswith("pipeline/"):
        return "code"
    if not path.startswith(("data/", "reports/")):
        return "own"
    below = path.split("/")[2:]
    kind = [part.partition(".")[0] for part in below[:1]]
    extra = re.findall(r"\.(attention|documents|bounds|blocks)\.|\.(json)$", path)
    return "_".join(kind + [first or second for first, second in extra])


def _read_yaml(path: str) -> Any:
    return YAML(typ="safe").load(Path(path))
