"""What the stages of a study download, and what of it is there already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from huggingface_hub import constants, get_cached_repo_tree
from huggingface_hub.errors import CachedRepoTreeNotFoundError
from huggingface_hub.hf_api import RepoFile

from pipeline.checkpoints import describe as checkpoints
from pipeline.checkpoints.manifest import BYTES
from pipeline.dag import Stage
from pipeline.errors import InputError
from pipeline.hub import Kind, listing, missing_bytes, select
from pipeline.outlook.words import amount
from pipeline.params import Study
from pipeline.samples import control, pile
from pipeline.scheduling import EVALUATE

STORED = {"pythia": "float16", "pile": "float32"}
"""Source of a family's samples -> the precision in which the hub keeps its models."""


@dataclass(frozen=True)
class Want:
    """Files of a repository that a stage reads.

    Args:
        repo: OWNER/NAME.
        commit: of it.
        patterns: of the files.
        kind: of repository.
        guess: bytes, where the hub cannot be asked; None: unknown.
    """

    repo: str
    commit: str
    patterns: tuple[str, ...]
    kind: Kind
    guess: float | None = None


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
    """What a stage reads from the hub, by the patterns that it fetches it with."""
    key = stage.address.partition("@")[2]
    if stage.group == "datasets":
        return [
            Want(each.repo, each.commit, tuple(each.files), "dataset")
            for each in study.datasets[key].values()
        ]
    if stage.group == "samples":
        family = study.families[key]
        made = []
        if family.pythia:
            evals = family.pythia.evals
            # whole names: `duped.12b` begins `duped.12b.23000`
            files = tuple(f"data/{split}-?????-of-?????*" for split in family.pythia.splits)
            made.append(Want(evals.repo, evals.commit, files, "dataset"))
        if source := family.pythia or family.pile:
            (documents, at), (tokenizer, its) = source.control.pins
            made.append(Want(documents, at, control.DOCUMENT_FILES, "dataset"))
            made.append(Want(tokenizer, its, control.TOKENIZER_FILES, "model", 3e6))
        return made
    if stage.group in ("checkpoint", *EVALUATE):  # evaluations too read the Hugging Face cache
        model = study.models[key]
        if model.hub:
            guess = model.billions * 1e9 * BYTES[STORED[study.family(model.family).source]]
            return [Want(model.hub.repo, model.hub.commit, checkpoints.FILES, "model", guess)]
    return []


def pile_bytes(study: Study, stage: Stage) -> tuple[float, float]:
    """Of the three files of GPT-Neo's samples: bytes to download, bytes that are there."""
    source = study.families[stage.address.partition("@")[2]].pile
    if source is None or study.run.pile_folder:
        return 0, 0
    sizes = {name: 128 + 15_000 * tokens * 2 for name, tokens in pile.FILES.items()}
    here = sum(size for name, size in sizes.items() if (Path("data/downloads") / name).exists())
    return sum(sizes.values()) - here, here


class Downloads:
    """Counts each file once, for the first stage that is counted.

    Args:
        online: whether the hub can be asked.
    """

    def __init__(self, online: bool) -> None:
        self._online = online
        self._seen: set[tuple[str, str, str]] = set()
        self._guessed: set[Want] = set()

    def of(self, wanted: Iterable[Want]) -> Fetch:
        """What of these is to be fetched, and what is there."""
        made = Fetch()
        for want in wanted:
            files = self._listing(want)
            if files is None:
                if want not in self._guessed:
                    self._guessed.add(want)
                    (made.unknown if want.guess is None else made.estimated).append(want.repo)
                    made.missing += want.guess or 0
                continue
            new = [
                file
                for file in select(files, want.patterns)
                if (want.repo, want.commit, file.path) not in self._seen
            ]
            self._seen |= {(want.repo, want.commit, file.path) for file in new}
            missing = missing_bytes(new, want.repo, want.commit, want.kind)
            made.missing += missing
            made.cached += sum(file.size for file in new) - missing
        return made

    def _listing(self, want: Want) -> list[RepoFile] | None:
        try:
            if self._online:
                return listing(want.repo, want.commit, want.kind)
            return get_cached_repo_tree(want.repo, repo_type=want.kind, revision=want.commit)
        except (InputError, CachedRepoTreeNotFoundError):
            return None


def online() -> bool:
    """Whether the hub answers, in one quick try; what it answers does not matter."""
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        httpx2.head(constants.ENDPOINT, timeout=5)
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return False
    return True
