"""Snapshots of Hugging Face repositories: pinned files, each compared with the hub's checksum.

A file that differs is dropped and fetched again. Files are selected by patterns, not by a list for
each repository. transformers and datasets read them from a folder and never from the hub itself:
transformers takes a failure of the hub for a missing file, and datasets reads nothing offline that
it has not loaded before (tests/hub/test_libraries.py shows both).

Respects HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE, and takes a token only from HF_TOKEN.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Literal

from huggingface_hub import HfApi, constants, get_cached_repo_tree, snapshot_download
from huggingface_hub.errors import CachedRepoTreeNotFoundError
from huggingface_hub.hf_api import RepoFile

from pipeline.workflow.errors import bad_input, shorten
from pipeline.workflow.files import free_on_disk
from pipeline.workflow.network import CorruptError, answer, require_network
from pipeline.workflow.progress import bar_class

Kind = Literal["model", "dataset"]

TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
"""Patterns of the files of a tokenizer and a configuration. config.json is among them, since in
some repositories only it names the tokenizer."""

WEIGHTS = ("*.safetensors",)
"""Patterns of the files of weights."""

CHECKPOINT_FILES = (*WEIGHTS, *TOKENIZER_FILES)
"""Patterns of the files from which a model is loaded: no pickles, no code, no weights of other
frameworks."""

SPARE_BYTES = 1 << 30
"""Bytes of a disk that a download must leave free."""


# Xet's client fails with a RuntimeError after minutes, and resumes nothing; HTTP serves the same.
constants.HF_HUB_DISABLE_XET = True


@dataclass(frozen=True)
class Snapshot:
    """The wanted files of a repository at one commit, whole and verified.

    Args:
        folder: holds them under their own paths, inside the Hugging Face cache; read-only.
        files: path -> sha256, sorted by path.
    """

    folder: Path
    files: dict[str, str]

    @property
    def weights(self) -> list[str]:
        """The paths of its weights."""
        return [name for name in self.files if name.endswith(".safetensors")]

    @contextmanager
    def alone(self) -> Iterator[Path]:
        """A folder of links to only these files, since a library may load any file it finds."""
        with TemporaryDirectory(prefix="snapshot-") as temporary:
            for name in self.files:
                link = Path(temporary, name)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to((self.folder / name).resolve())
            yield Path(temporary)


def snapshot(repo: str, commit: str, wanted: Sequence[str], kind: Kind = "model") -> Snapshot:
    """Fetch the missing ones of the wanted files, and verify all of them.

    Args:
        repo: OWNER/NAME.
        commit: 40 hexadecimal digits.
        wanted: patterns of the paths to fetch, such as ``*.safetensors``; each may match nothing,
            but not all of them.
        kind: of repository.

    Raises:
        InputError: no such repository, commit or file, no access, no network, no room, a path
            that leads out of its folder, or content that stays corrupt.
    """
    where = f"{repo} at {commit}"
    listed = listing(repo, commit, kind)
    record = select(listed, wanted)
    if not record:
        raise bad_input(
            where,
            "the files " + (", ".join(file.path for file in listed[:20]) or "none"),
            "one or more that match " + ", ".join(wanted),
            "name a commit that has them",
        )
    require_inside([file.path for file in record], where)
    if missing := missing_bytes(record, repo, commit, kind):
        require_network(where)
        _require_room(missing, repo)

    def download() -> Snapshot:
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

    return answer(download, where)


def listing(repo: str, commit: str, kind: Kind = "model") -> list[RepoFile]:
    """The hub's own record of every file of a commit: path, size, checksum.

    It is kept in the cache, and read from there the next time.

    Raises:
        InputError: as for `snapshot`.
    """
    with suppress(CachedRepoTreeNotFoundError):
        return get_cached_repo_tree(repo, repo_type=kind, revision=commit)
    require_network(f"{repo} at {commit}")

    def ask() -> list[RepoFile]:
        entries = HfApi(token=_token()).list_repo_tree(
            repo, recursive=True, revision=commit, repo_type=kind
        )
        return [entry for entry in entries if isinstance(entry, RepoFile)]

    return answer(ask, f"{repo} at {commit}")


def commit_of(repo: str, branch: str, kind: Kind = "model") -> str:
    """The commit that a branch or a tag stands for now, 40 hexadecimal digits.

    Where the hub is not to be used, that which it stood for when it was cached.

    Raises:
        InputError: no such repository or branch, no access, or no network.
    """
    where = f"{repo} at {branch}"
    known = _cached(repo, kind) / "refs" / branch
    if constants.HF_HUB_OFFLINE and known.is_file():
        return known.read_text(encoding="utf-8").strip()
    require_network(where)

    ask = partial(HfApi(token=_token()).repo_info, repo, repo_type=kind, revision=branch)
    return str(answer(ask, where).sha)


def missing_bytes(files: Sequence[RepoFile], repo: str, commit: str, kind: Kind = "model") -> int:
    """The size of those files that the cache does not hold yet, bytes."""
    folder = _cached(repo, kind) / "snapshots" / commit
    return sum(file.size for file in files if not (folder / file.path).exists())


def select(files: Sequence[RepoFile], wanted: Sequence[str]) -> list[RepoFile]:
    """Those files whose path one of the patterns matches (* stops at a slash), sorted by path."""
    chosen = {
        file.path: file
        for pattern in wanted
        for file in files
        if file.path.count("/") == pattern.count("/") and fnmatchcase(file.path, pattern)
    }
    return [chosen[path] for path in sorted(chosen)]


def require_inside(paths: Sequence[str], where: str) -> None:
    """Raise if a path of a listing leads out of its repository's folder, `where` in errors.

    Raises:
        InputError: the first such path is named.
    """
    outside = [
        path
        for path in paths
        if path.startswith("/") or {"\\", ":"} & {*path} or ".." in PurePosixPath(path).parts
    ]
    if outside:
        raise bad_input(
            where,
            f"the path {shorten(outside[0])}",
            "paths inside the repository's folder",
            "do not use this repository: its listing tries to write elsewhere",
        )


def _require_room(missing: int, repo: str) -> None:
    where = constants.HF_HUB_CACHE
    free = free_on_disk(where)
    if missing + SPARE_BYTES > free:
        raise bad_input(
            f"the disk that holds {where}",
            f"{free / 1e9:.1f} GB free",
            f"{(missing + SPARE_BYTES) / 1e9:.1f} GB: {missing / 1e9:.1f} for {repo}, and "
            f"{SPARE_BYTES / 1e9:.1f} to spare",
            "free some (hf cache ls shows what lies there), or set HF_HOME to another disk",
        )


def _cached(repo: str, kind: Kind) -> Path:
    return Path(constants.HF_HUB_CACHE) / f"{kind}s--{repo.replace('/', '--')}"


def _token() -> str | bool:
    """The token of `HF_TOKEN`; a token stored in a file is not used."""
    return os.environ.get("HF_TOKEN") or False


def _verify(folder: Path, record: Sequence[RepoFile]) -> dict[str, str]:
    """Path -> sha256 of every file; a file that differs from the record is removed.

    Raises:
        CorruptError: some files differed.
    """
    paths = [file.path for file in record]
    with ThreadPoolExecutor() as pool:
        digests = list(pool.map(_sha256, (folder / path for path in paths), record))
    whole = {path: digest for path, digest in zip(paths, digests, strict=True) if digest}
    corrupt = [path for path in paths if path not in whole]
    for path in corrupt:
        (folder / path).resolve().unlink(missing_ok=True)  # which other commits may share
        (folder / path).unlink(missing_ok=True)
    if corrupt:
        raise CorruptError(", ".join(corrupt))
    return whole


def _sha256(path: Path, file: RepoFile) -> str | None:
    """The sha256 of a file; None if it differs from the hub's record.

    The record holds the sha256 of large files, and the git blob hash of others.
    """
    try:
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
            if file.lfs is not None:
                return digest if digest == file.lfs.sha256 else None
            content.seek(0)
            text = content.read()
    except FileNotFoundError:
        return None
    blob = hashlib.sha1(b"blob %d\0" % len(text) + text, usedforsecurity=False).hexdigest()
    return digest if blob == file.blob_id else None
