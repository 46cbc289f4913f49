"""Snapshots of Hugging Face repositories: pinned, verified, fetched again until they are whole.

huggingface_hub resumes a body that is cut and retries some failures. It does not retry others, and
it keeps a body of the right length whatever it holds. Here every wanted file of a commit is fetched
and compared with the hub's own record of it; what differs is dropped and fetched anew.

Files are named by their kind, not by a list for each repository. transformers and datasets read
them from a folder and never from the hub itself: transformers takes an error of the hub for a file
that the repository does not have, and datasets reads nothing offline that it has not loaded before
(tests/hub/test_libraries.py shows both).

Respects HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE, and takes a token from HF_TOKEN alone. Nothing
here changes a result: a commit and its checksums determine the bytes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Literal, TypeVar

import httpx2
import tenacity
from huggingface_hub import HfApi, constants, get_cached_repo_tree, snapshot_download
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile

from pipeline.workflow.errors import InputError, Problem, shorten
from pipeline.workflow.progress import bar_class

Kind = Literal["model", "dataset"]

TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
"""The kinds of file of which a tokenizer and a configuration are made: config.json is among them,
which alone names the tokenizer of some repositories."""

CHECKPOINT_FILES = ("*.safetensors", *TOKENIZER_FILES)
"""The kinds of file that a model is loaded from. No pickles, no code, no weights of other
frameworks."""

TRIES = 7
LONGEST_WAIT = 60.0
"""Seconds; the waits between tries double from about one, with jitter: some two minutes in all."""

WORTH_ANOTHER_TRY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that may pass."""

SPARE_BYTES = 1 << 30
"""Of a disk, which a download must leave free."""

CONNECT_SECONDS = 8.0
"""In which a hub must answer to count as reachable. A name server can take longer to give up."""

CACHED = (
    "name a mirror in HF_ENDPOINT; or, where a cache has it all, set HF_HOME to that cache and "
    "HF_HUB_OFFLINE=1"
)
"""How to go on where the hub cannot be reached."""

# Large files lie in Xet storage. Its client fails with a RuntimeError after retries of its own that
# take minutes, and resumes nothing; the same files can be had by HTTP, whose faults are known here.
constants.HF_HUB_DISABLE_XET = True

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Snapshot:
    """The wanted files of a repository at one commit, whole and verified.

    Args:
        folder: holds them, under their own paths; inside the Hugging Face cache, not to be written.
        files: path -> sha256, sorted by path.
    """

    folder: Path
    files: dict[str, str]

    @contextmanager
    def alone(self) -> Iterator[Path]:
        """A folder of links to these files and to no other: a library may take what it finds."""
        with TemporaryDirectory(prefix="snapshot-") as temporary:
            for name in self.files:
                link = Path(temporary, name)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to((self.folder / name).resolve())
            yield Path(temporary)


class NoNetworkError(InputError):
    """The hub cannot be reached; whatever else would be fetched cannot be had either."""


class _CorruptError(Exception):
    """Files whose content is not what the hub's record says."""


def snapshot(repo: str, commit: str, wanted: Sequence[str], kind: Kind = "model") -> Snapshot:
    """Fetch what is missing of the wanted files, and verify them all.

    Whole files are kept between tries and between runs; a file that was cut is resumed.

    Args:
        repo: OWNER/NAME.
        commit: 40 hexadecimal digits.
        wanted: patterns of the paths to fetch, such as ``*.safetensors``; each may match nothing,
            but not all of them.
        kind: of repository.

    Raises:
        InputError: no such repository, commit or file, no access, no network, no room, a path
            that leads out of its folder, or content that stays corrupt through `TRIES` tries.
    """
    where = f"{repo} at {commit}"
    record = _select(listing(repo, commit, kind), wanted, where)
    if missing := missing_bytes(record, repo, commit, kind):
        require_network(where)
        _require_room(missing, repo)

    def fetch() -> Snapshot:
        folder = Path(
            snapshot_download(
                repo,
                repo_type=kind,
                revision=commit,
                allow_patterns=[file.path for file in record],
                token=_token(),
                tqdm_class=bar_class(),
            )
        )
        return Snapshot(folder, _verify(folder, record))

    return _persistently(fetch, where)


def listing(repo: str, commit: str, kind: Kind = "model") -> list[RepoFile]:
    """The hub's own record of every file of a commit: path, size, checksum.

    It is kept in the cache, from where it is read when it was asked for before.

    Raises:
        InputError: as for `snapshot`.
    """
    try:
        return get_cached_repo_tree(repo, repo_type=kind, revision=commit)
    except CachedRepoTreeNotFoundError:
        pass

    require_network(f"{repo} at {commit}")

    def ask() -> list[RepoFile]:
        entries = HfApi(token=_token()).list_repo_tree(
            repo, recursive=True, revision=commit, repo_type=kind
        )
        return [entry for entry in entries if isinstance(entry, RepoFile)]

    return _persistently(ask, f"{repo} at {commit}")


def missing_bytes(files: Sequence[RepoFile], repo: str, commit: str, kind: Kind = "model") -> int:
    """What of these files the cache does not hold yet, bytes."""
    folder = _cached(repo, kind) / "snapshots" / commit
    return sum(file.size for file in files if not (folder / file.path).exists())


def select(files: Sequence[RepoFile], wanted: Sequence[str]) -> list[RepoFile]:
    """Those files whose path one of the patterns matches (* stops at a slash), sorted by path."""

    def is_wanted(path: str) -> bool:
        return any(
            path.count("/") == pattern.count("/") and fnmatchcase(path, pattern)
            for pattern in wanted
        )

    return sorted((file for file in files if is_wanted(file.path)), key=lambda file: file.path)


def require_inside(paths: Sequence[str], where: str) -> None:
    """Refuse paths that lead out of the folder that they are relative to.

    Args:
        paths: of a listing.
        where: what to call the repository in an error.

    Raises:
        InputError: one does.
    """
    outside = [path for path in paths if not _stays_inside(path)]
    if outside:
        raise InputError(
            Problem(
                where,
                f"the path {shorten(outside[0])}",
                "paths inside the repository's folder",
                "do not use this repository: its listing tries to write elsewhere",
            )
        )


# --------------------------------------------------------------------------- the network


def require_network(*wanted: str) -> None:
    """Say at once, and once, that the hub cannot be reached. Does nothing where it is not asked.

    Args:
        wanted: what would be fetched.

    Raises:
        NoNetworkError: no connection to the hub can be made, or its name does not resolve.
    """
    if not constants.HF_HUB_OFFLINE and (why := unreachable(constants.ENDPOINT)):
        raise NoNetworkError(no_network(why, *wanted))


def no_network(why: str, *wanted: str, remedy: str = CACHED) -> Problem:
    """The problem of a machine without a network.

    Args:
        why: no connection could be made.
        wanted: what would be fetched.
        remedy: how to go on with what is there.
    """
    return Problem(
        "to fetch " + ", ".join(wanted),
        why,
        "a network, or all of it on this machine",
        f"mend the network; or {remedy}; or choose a study that fetches nothing: "
        "make run STUDY=tiny",
    )


@cache
def unreachable(url: str) -> str | None:
    """Why no connection to the host of a URL can be made; None: it answers, whatever it says.

    Asked once, and never for longer than `CONNECT_SECONDS`.
    """
    answers: list[str | None] = []

    def ask() -> None:
        try:
            httpx2.head(url, timeout=CONNECT_SECONDS)
        except (
            httpx2.ConnectError,
            httpx2.TimeoutException,
            httpx2.ProxyError,
            httpx2.UnsupportedProtocol,
            httpx2.InvalidURL,
        ) as error:
            answers.append(f"no connection to {url}: {_brief(error)}")
        except httpx2.HTTPError:  # an answer, if a bad one
            answers.append(None)
        else:
            answers.append(None)

    asking = Thread(target=ask, daemon=True)  # a name server may keep it waiting for longer
    asking.start()
    asking.join(CONNECT_SECONDS)
    return answers[0] if answers else f"no answer of {url} in {CONNECT_SECONDS:.0f} s"


# --------------------------------------------------------------------------- before


def _select(files: Sequence[RepoFile], wanted: Sequence[str], where: str) -> list[RepoFile]:
    chosen = select(files, wanted)
    if not chosen:
        raise InputError(
            Problem(
                where,
                "the files " + (", ".join(file.path for file in files[:20]) or "none"),
                "one or more that match " + ", ".join(wanted),
                "name a commit that has them",
            )
        )
    require_inside([file.path for file in chosen], where)
    return chosen


def _stays_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return not path.startswith("/") and "\\" not in path and ".." not in parts and ":" not in path


def _require_room(missing: int, repo: str) -> None:
    where = Path(constants.HF_HUB_CACHE)
    existing = next(folder for folder in (where, *where.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if missing + SPARE_BYTES > free:
        raise InputError(
            Problem(
                f"the disk that holds {where}",
                f"{free / 1e9:.1f} GB free",
                f"{(missing + SPARE_BYTES) / 1e9:.1f} GB: {missing / 1e9:.1f} for {repo}, and "
                f"{SPARE_BYTES / 1e9:.1f} to spare",
                "free some (hf cache ls shows what lies there), or set HF_HOME to another disk",
            )
        )


def _cached(repo: str, kind: Kind) -> Path:
    return Path(constants.HF_HUB_CACHE) / f"{kind}s--{repo.replace('/', '--')}"


def _token() -> str | bool:
    """Never one that lies in a file: who runs this must have meant it."""
    return os.environ.get("HF_TOKEN") or False


# --------------------------------------------------------------------------- after


def _verify(folder: Path, record: Sequence[RepoFile]) -> dict[str, str]:
    """Path -> sha256 of every file; a file that differs from the record is removed.

    Raises:
        _CorruptError: some did differ.
    """
    with ThreadPoolExecutor() as pool:
        digests = list(pool.map(lambda file: _digests(folder / file.path, file), record))
    corrupt = [file for file, (_, same) in zip(record, digests, strict=True) if not same]
    for file in corrupt:
        link = folder / file.path
        link.resolve().unlink(missing_ok=True)  # the content, which other commits may share
        link.unlink(missing_ok=True)
    if corrupt:
        raise _CorruptError(", ".join(file.path for file in corrupt))
    return {file.path: digest for file, (digest, _) in zip(record, digests, strict=True)}


def _digests(path: Path, file: RepoFile) -> tuple[str, bool]:
    """The sha256 of a file, and whether it is what the hub's record says.

    The record holds the sha256 of large files, and of others the name that git gives their content.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as content:
            sha256 = hashlib.file_digest(content, "sha256").hexdigest()
            if file.lfs is not None:
                return sha256, sha256 == file.lfs.sha256
            content.seek(0)
            blob = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
            blob.update(content.read())
            return sha256, blob.hexdigest() == file.blob_id
    except FileNotFoundError:
        return "", False


# --------------------------------------------------------------------------- persistence


def _persistently(work: Callable[[], _Result], where: str) -> _Result:
    """What `work` returns, tried again while its failure may pass.

    Raises:
        InputError: it failed for good.
    """
    try:
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_pass),
            stop=tenacity.stop_after_attempt(TRIES),
            wait=tenacity.wait_exponential_jitter(initial=1, max=LONGEST_WAIT),
            before_sleep=lambda state: _say(state, where),
            reraise=True,
        )(work)
    except (OSError, ValueError, httpx2.HTTPError, HfHubHTTPError, _CorruptError) as error:
        # hub errors, transport errors and broken JSON; the token is in none of their texts
        raise InputError(_explain(error, where)) from error


def _say(state: tenacity.RetryCallState, where: str) -> None:
    error = state.outcome.exception() if state.outcome else None
    pause = state.next_action.sleep if state.next_action else 0
    print(
        f"{where}: {_brief(error)}; try {state.attempt_number + 1} of {TRIES} in {pause:.0f} s",
        flush=True,
    )


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, (RepositoryNotFoundError, RevisionNotFoundError, OfflineModeIsEnabled)):
        return False
    if isinstance(error, LocalEntryNotFoundError):  # raised for any failure to ask the hub
        return error.__cause__ is not None and _may_pass(error.__cause__)
    if isinstance(error, HfHubHTTPError):
        return error.response is not None and error.response.status_code in WORTH_ANOTHER_TRY
    if isinstance(error, httpx2.TransportError):
        return not _is_unresolved(error)
    if isinstance(error, _CorruptError):
        return True
    if isinstance(error, ValueError):  # a page of a proxy in place of JSON
        return "JSON" in type(error).__name__
    return isinstance(error, OSError) and "Consistency check failed" in str(error)


def _is_unresolved(error: BaseException) -> bool:
    """Whether a name did not resolve; to ask again is of no use."""
    chain: BaseException | None = error
    while chain is not None and not isinstance(chain, socket.gaierror):
        chain = chain.__cause__ or chain.__context__
    return chain is not None


def _explain(error: BaseException, where: str) -> Problem:
    cause = error
    while isinstance(cause, LocalEntryNotFoundError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if _is_unresolved(cause):
        return no_network(_brief(cause), where)
    if isinstance(cause, OfflineModeIsEnabled) or (
        isinstance(cause, LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE
    ):
        return Problem(
            where,
            "HF_HUB_OFFLINE is set, and the cache does not hold all of it",
            f"the wanted files in {constants.HF_HUB_CACHE}",
            "run once with a network, or point HF_HOME at the cache that has them",
        )
    if isinstance(cause, GatedRepoError) or _is_denied(cause):
        return Problem(
            where,
            "the hub wants a token that may read it",
            "a repository that anyone may read, or HF_TOKEN",
            "ask for access on the hub, then set HF_TOKEN in the environment",
        )
    if isinstance(cause, (RepositoryNotFoundError, RevisionNotFoundError)):
        missing = "commit" if isinstance(cause, RevisionNotFoundError) else "repository"
        return Problem(
            where,
            f"{constants.ENDPOINT} has no such {missing}, or shows it only with a token",
            "a repository and a commit of it that the hub has",
            "look both up on the hub; for a private repository set HF_TOKEN in the environment",
        )
    if isinstance(cause, _CorruptError):
        return Problem(
            where,
            f"other content than the hub lists, in {TRIES} tries: {cause}",
            "the content that its checksum names",
            "look for a proxy or a mirror that changes files, then run again: whole files are kept",
        )
    if isinstance(cause, OSError) and cause.errno is not None:
        return Problem(
            where,
            _brief(cause),
            f"a cache that can be written: {constants.HF_HUB_CACHE}",
            "free or mend the disk, or set HF_HOME to another",
        )
    return Problem(
        where,
        f"{_brief(cause)}, in {TRIES} tries" if _may_pass(cause) else _brief(cause),
        f"an answer of the hub at {constants.ENDPOINT}",
        "check the network and HF_ENDPOINT, then run again: whole files are kept",
    )


def _is_denied(error: BaseException) -> bool:
    """Whether the hub has refused, without a word about why."""
    response = error.response if isinstance(error, HfHubHTTPError) else None
    return response is not None and response.status_code in (401, 403)


def _brief(error: Any) -> str:
    lines = str(error).strip().splitlines()
    return shorten(f"{type(error).__name__}: {lines[0] if lines else 'no more is known'}", 200)
