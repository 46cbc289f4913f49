"""What the stages of a study download: how much is cached, and how much is missing."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from huggingface_hub import constants, get_cached_repo_tree
from huggingface_hub.errors import CachedRepoTreeNotFoundError
from huggingface_hub.hf_api import RepoFile

from pipeline.checkpoints.manifest import BYTES
from pipeline.checkpoints.schema import Hub
from pipeline.samples import pile
from pipeline.samples.schema import Inserted, Pile, Pythia
from pipeline.study.loops import parsed
from pipeline.study.schema import Study
from pipeline.workflow.dag import Stage
from pipeline.workflow.errors import InputError, Problem
from pipeline.workflow.hub import (
    CHECKPOINT_FILES,
    TOKENIZER_FILES,
    WEIGHTS,
    Kind,
    listing,
    missing_bytes,
    select,
)
from pipeline.workflow.network import CACHED, NoNetworkError, no_network, unreachable
from pipeline.workflow.running import DOWNLOADS

STORED = {"pythia": "float16", "pile": "float32", "inserted": "bfloat16"}
"""Source of a family's samples -> the precision in which the hub keeps its models."""


@dataclass(frozen=True)
class Want:
    """Files that a stage reads, of a repository of the hub; or of a URL, whose sizes are `known`.

    Without patterns they are those that `datasets` finds for a configuration's name. A file must
    match each of the `needed` patterns. `guess` are the bytes where the hub cannot be asked, None:
    unknown; `known` those that are missing, and those that are cached.
    """

    repo: str
    commit: str = ""
    kind: Kind = "dataset"
    patterns: tuple[str, ...] | None = None
    needed: tuple[str, ...] = ()
    guess: float | None = None
    name: str | None = None
    known: tuple[float, float] | None = None

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

    def sizes(self, *, ask: bool) -> tuple[float, float] | None:
        """Bytes that are missing, and bytes that are cached; None if the listing is not known."""
        if self.known is not None:
            return self.known
        try:
            if not ask:
                get_cached_repo_tree(self.repo, repo_type=self.kind, revision=self.commit)
            files = self.files()
        except (InputError, CachedRepoTreeNotFoundError):
            return None
        missing = missing_bytes(files, self.repo, self.commit, self.kind)
        return missing, sum(file.size for file in files) - missing

    def refused(self) -> str | None:
        """Why nothing of it can be fetched now; None if it can."""
        if self.known is not None:
            return unreachable(self.repo)
        if constants.HF_HUB_OFFLINE:
            return f"HF_HUB_OFFLINE is set, and {constants.HF_HUB_CACHE} does not hold all of it"
        return unreachable(constants.ENDPOINT)


def amount(value: float, unit: str) -> str:
    """Such as ``1.2 GB``."""
    power = min(6, max(0, math.floor(math.log10(max(value, 1) * 1.0005) / 3)))
    return f"{value / 1000**power:.3g} {' kMGTPE'[power].strip()}{unit}"


def wants(study: Study, stage: Stage) -> list[Want]:
    """The files that a stage reads, by the patterns with which it fetches them."""
    _, key, _ = parsed(stage.address)
    if stage.group == "datasets":
        return [Want(*each.pin, name=each.name) for each in study.datasets[key].values()]
    if stage.group == "samples":
        source, made = study.families[key].samples, []
        if isinstance(source, Pythia):
            # whole names: `duped.12b` begins `duped.12b.23000`
            files = tuple(f"data/{split}-?????-of-?????*" for split in source.splits)
            made.append(Want(*source.evals.pin, patterns=files, needed=files))
        if isinstance(source, Pile) and not study.run.pile_folder:
            sizes = {name: 128 + 15_000 * tokens * 2 for name, tokens in pile.FILES.items()}
            here = sum(sizes[name] for name in sizes if (DOWNLOADS / name).exists())
            made.append(Want(source.url, known=(sum(sizes.values()) - here, here)))
        if isinstance(source, Pythia | Pile | Inserted):
            texts = source.texts if isinstance(source, Inserted) else source.control.documents
            cut_by = source if isinstance(source, Inserted) else source.control
            made.append(Want(*texts.pin))
            tokenizer = cut_by.tokenizer.pin
            made.append(Want(*tokenizer, "model", TOKENIZER_FILES, ("config.json",), 3e6))
        return made
    if key in study.models:  # evaluations too read the Hugging Face cache
        model = study.models[key]
        if isinstance(pinned := model.checkpoint, Hub):
            stored = STORED.get(study.family(model.family).samples.source, "float32")
            guess = pinned.billions * 1e9 * BYTES[stored]
            needed = ("config.json", *WEIGHTS)
            return [Want(*pinned.pin, "model", CHECKPOINT_FILES, needed, guess)]
    return []


def require_downloads(study: Study, stages: Iterable[Stage]) -> None:
    """Raise before any of the stages runs if files can neither be fetched nor are cached.

    Raises:
        NoNetworkError: they need what the cache lacks, and the hub, or the host of GPT-Neo's
            samples, cannot be reached or may not be used.
    """
    lost = {
        want: reason
        for want in {want: None for stage in stages for want in wants(study, stage)}
        if (want.sizes(ask=False) or (1, 0))[0] and (reason := want.refused())
    }
    if lost:
        elsewhere = all(want.known for want in lost)  # GPT-Neo's samples are not on the hub
        names, remedy = [want.repo for want in lost], pile.BY_HAND if elsewhere else CACHED
        raise NoNetworkError(no_network(next(iter(lost.values())), *names, remedy=remedy))


def check(study: Study, stages: Iterable[Stage]) -> list[str]:
    """Check that the hub has each pin of the stages and that it fits, by listings and metadata.

    Returns:
        One line per pin.

    Raises:
        InputError: lists all pins that are missing or do not fit; or there is no network.
    """
    lines: list[str] = []
    problems: list[Problem] = []
    for want in {want: None for stage in stages for want in wants(study, stage) if want.commit}:
        try:
            files = want.files()
        except NoNetworkError:
            raise
        except InputError as error:
            problems += error.problems
            continue
        lacking = [pattern for pattern in want.needed if not select(files, [pattern])]
        if lacking or not files:
            where, needed = f"{want.repo} at {want.commit}", " and ".join(lacking) or "data files"
            got = "the files " + (", ".join(file.path for file in files[:20]) or "none")
            problems.append(Problem(where, got, needed, "name a commit that has them"))
        size = amount(sum(file.size for file in files), "B")
        lines.append(f"{want.repo} at {want.commit[:8]}: {len(files)} files, {size}")
    if problems:
        raise InputError(*problems)
    return lines
