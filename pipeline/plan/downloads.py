"""The downloads of a study's stages, and the parts that are already cached."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import constants, get_cached_repo_tree
from huggingface_hub.errors import CachedRepoTreeNotFoundError
from huggingface_hub.hf_api import RepoFile

from pipeline.checkpoints.manifest import BYTES
from pipeline.checkpoints.schema import Hub
from pipeline.plan.scheduling import EVALUATE
from pipeline.samples import pile
from pipeline.samples.schema import Inserted, Pile, Pythia
from pipeline.study.loops import model_key
from pipeline.study.schema import Study
from pipeline.workflow.dag import Stage
from pipeline.workflow.errors import InputError, Problem
from pipeline.workflow.hub import (
    CHECKPOINT_FILES,
    TOKENIZER_FILES,
    Kind,
    listing,
    missing_bytes,
    select,
)
from pipeline.workflow.network import NoNetworkError, no_network, online, unreachable

STORED = {"pythia": "float16", "pile": "float32", "inserted": "bfloat16"}
"""Source of a family's samples -> the precision in which the hub keeps its models."""


def amount(value: float, unit: str) -> str:
    """Such as ``1.2 GB``."""
    power = min(6, max(0, math.floor(math.log10(max(value, 1) * 1.0005) / 3)))
    return f"{value / 1000**power:.3g} {' kMGTPE'[power].strip()}{unit}"


@dataclass(frozen=True)
class Want:
    """Files of a repository that a stage reads.

    Args:
        repo: OWNER/NAME.
        commit: of it.
        patterns: of the files; None: those that `datasets` finds.
        kind: of repository.
        guess: bytes, where the hub cannot be asked; None: unknown.
        name: of a dataset's configuration, where the patterns are None.
    """

    repo: str
    commit: str
    patterns: tuple[str, ...] | None
    kind: Kind
    guess: float | None = None
    name: str | None = None

    def files(self) -> list[RepoFile]:
        """The wanted files, by the hub's listing and, for a dataset, its metadata.

        Raises:
            InputError: the hub lacks it, or it cannot be asked.
        """
        listed = listing(self.repo, self.commit, self.kind)
        if self.patterns is not None:
            return select(listed, self.patterns)
        from pipeline.tasks.datasets import find_files  # slow to import, rarely needed

        chosen = find_files(self.repo, self.commit, self.name)
        return [file for file in listed if file.path in chosen]


@dataclass
class Fetch:
    """Downloads of a stage.

    Args:
        missing: bytes.
        cached: bytes.
        estimated: repositories whose size is estimated.
        unknown: repositories of unknown size.
    """

    missing: float = 0
    cached: float = 0
    estimated: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Such as ``~0.3 GB + unknown``."""
        if not self.missing and self.unknown:
            return "unknown"
        text = ("~" if self.estimated else "") + amount(self.missing, "B") if self.missing else "-"
        return text + (" + unknown" if self.unknown else "")


def wants(study: Study, stage: Stage) -> list[Want]:
    """The files that a stage reads from the hub, by the patterns with which it fetches them."""
    key = model_key(stage.address)
    if stage.group == "datasets":
        return [
            Want(each.repo, each.commit, None, "dataset", name=each.name)
            for each in study.datasets[key].values()
        ]
    if stage.group == "samples":
        source = study.families[key].samples
        made = []
        if isinstance(source, Pythia):
            evals = source.evals
            # whole names: `duped.12b` begins `duped.12b.23000`
            files = tuple(f"data/{split}-?????-of-?????*" for split in source.splits)
            made.append(Want(evals.repo, evals.commit, files, "dataset"))
        if isinstance(source, Pythia | Pile | Inserted):
            texts, tokenizer = (
                (source.texts, source.tokenizer)
                if isinstance(source, Inserted)
                else (source.control.documents, source.control.tokenizer)
            )
            made.append(Want(*texts.pin, None, "dataset"))
            made.append(Want(*tokenizer.pin, TOKENIZER_FILES, "model", 3e6))
        return made
    if stage.group in ("checkpoint", *EVALUATE):  # evaluations too read the Hugging Face cache
        model = study.models[key]
        if isinstance(pinned := model.checkpoint, Hub):
            stored = STORED[study.family(model.family).samples.source]
            guess = pinned.billions * 1e9 * BYTES[stored]
            return [Want(pinned.repo, pinned.commit, CHECKPOINT_FILES, "model", guess)]
    return []


def pile_bytes(study: Study, stage: Stage) -> tuple[float, float]:
    """Bytes to download and bytes already there, of the three files of GPT-Neo's samples."""
    source = study.families[stage.address.partition("@")[2]].samples
    if not isinstance(source, Pile) or study.run.pile_folder:
        return 0, 0
    sizes = {name: 128 + 15_000 * tokens * 2 for name, tokens in pile.FILES.items()}
    here = sum(size for name, size in sizes.items() if (Path("data/downloads") / name).exists())
    return sum(sizes.values()) - here, here


def fetch_of(study: Study, stage: Stage, ask: bool) -> Fetch:
    """The downloads of a stage; evaluations find theirs in the cache, where `checkpoint` put them.

    Args:
        study: in force.
        stage: of it.
        ask: whether the hub may be asked.
    """
    made = Fetch()
    if stage.group not in ("datasets", "samples", "checkpoint"):
        return made
    if stage.group == "samples":
        made.missing, made.cached = pile_bytes(study, stage)
    for want in wants(study, stage):
        sizes = _sizes(want, ask)
        if sizes is None:
            (made.unknown if want.guess is None else made.estimated).append(want.repo)
        missing, cached = sizes or (want.guess or 0, 0)
        made.missing += missing
        made.cached += cached
    return made


def _sizes(want: Want, ask: bool) -> tuple[float, float] | None:
    """Bytes that are missing, and bytes that are cached; None if the listing is not known."""
    try:
        if not ask:
            get_cached_repo_tree(want.repo, repo_type=want.kind, revision=want.commit)
        files = want.files()
    except (InputError, CachedRepoTreeNotFoundError):
        return None
    missing = missing_bytes(files, want.repo, want.commit, want.kind)
    return missing, sum(file.size for file in files) - missing


def require_downloads(study: Study, stages: Iterable[Stage]) -> None:
    """Raise before anything runs if needed files can neither be fetched nor are cached.

    Args:
        study: in force.
        stages: that are about to run.

    Raises:
        NoNetworkError: they need what the cache lacks, and the hub, or the host of GPT-Neo's
            samples, cannot be reached or may not be used.
    """
    running = list(stages)
    wanted = {want: None for stage in running for want in wants(study, stage)}
    lost: list[str] = []
    why: str | None = None
    if wanted and not online():
        why = unreachable(constants.ENDPOINT)
        if constants.HF_HUB_OFFLINE:
            why = f"HF_HUB_OFFLINE is set, and {constants.HF_HUB_CACHE} does not hold all of it"
        lost = list(
            dict.fromkeys(want.repo for want in wanted if (_sizes(want, ask=False) or [1])[0])
        )
    hosts = {
        source.url
        for stage in running
        if stage.group == "samples" and pile_bytes(study, stage)[0]
        for source in [study.families[stage.address.partition("@")[2]].samples]
        if isinstance(source, Pile)
    }
    for url in sorted(hosts):
        if refused := unreachable(url):
            why = why if lost else refused
            lost.append(url)
    if lost:
        raise NoNetworkError(no_network(str(why), *lost))


def check(study: Study, stages: Iterable[Stage]) -> list[str]:
    """Check that the hub has each pin of the stages and that it fits, by listings and metadata.

    Args:
        study: in force.
        stages: whose pins are looked up.

    Returns:
        One line per pin.

    Raises:
        InputError: lists all pins that are missing or do not fit; or there is no network.
    """
    lines: list[str] = []
    problems: list[Problem] = []
    for want in {want: None for stage in stages for want in wants(study, stage)}:
        try:
            files = want.files()
        except NoNetworkError:
            raise
        except InputError as error:
            problems += error.problems
            continue
        if problem := _misfit(want, files):
            problems.append(problem)
            continue
        size = amount(sum(file.size for file in files), "B")
        lines.append(f"{want.repo} at {want.commit[:8]}: {len(files)} files, {size}")
    if problems:
        raise InputError(*problems)
    return lines


def _misfit(want: Want, files: list[RepoFile]) -> Problem | None:
    """The problem of the listing of a pin; None if it fits."""
    names = {file.path for file in files}
    needed = {"data files": bool(files)}
    if want.patterns is not None and want.kind == "model":
        needed = {"config.json": "config.json" in names}
        if want.patterns == CHECKPOINT_FILES:
            weights = any(name.endswith(".safetensors") for name in names)
            needed["weights as safetensors"] = weights
    if all(needed.values()):
        return None
    return Problem(
        f"{want.repo} at {want.commit}",
        "the files " + (", ".join(sorted(names)[:20]) or "none"),
        " and ".join(name for name, there in needed.items() if not there),
        "name a commit that has them",
    )
