"""Atomic writes: a file appears under its final name complete, or not at all."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline.workflow.errors import DISK, bad_input

PARAMS = Path("params.yaml")
"""The study in force."""


@contextmanager
def atomic(path: str | Path, *, directory: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` on success, remove it on failure.

    Every file below the temporary path is flushed to the disk before the rename, so a name that
    exists after a power cut has its content. A file replaces a file; a folder replaces either, as
    a whole.

    Args:
        path: the final name; missing parent folders are made.
        directory: yield an empty folder instead of the name of a file to be.

    Raises:
        OSError: the disk is full, the folder is read-only, …, also if the writing library raised
            its own exception; the earlier content of `path` is kept.
    """
    final = Path(path)
    if final.is_dir() and not directory:  # checked before the work, not after it
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(final))
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.parent / f".{final.name}.{os.getpid()}.part"
    _remove(temporary)
    try:
        if directory:
            temporary.mkdir()
        yield temporary
        for each in sorted(temporary.rglob("*")) if directory else []:
            _flush(each)
        _flush(temporary)
        _replace(temporary, final, directory)
        _flush(final.parent)
    except Exception as error:
        if (refused := _refused(error, temporary, final)) is not None:
            raise refused from error
        raise
    finally:
        with suppress(OSError):  # if this fails as well, an earlier error is already raised
            _remove(temporary)


def free_on_disk(path: str | Path) -> int:
    """Free bytes of the disk that holds a path, which need not exist yet."""
    where = Path(path).absolute()
    return shutil.disk_usage(next(p for p in (where, *where.parents) if p.exists())).free


def files_of(path: Path) -> list[Path]:
    """A file, or the files below a folder, sorted, without what Python caches; else none."""
    below = path.rglob("*") if path.is_dir() else [path]
    return sorted(each for each in below if each.is_file() and "__pycache__" not in each.parts)


def bytes_of(path: Path) -> int:
    """Bytes of a file, or of the files below a folder; 0 of what is not there."""
    return sum(file.stat().st_size for file in files_of(path))


def sha256(path: Path) -> str:
    """The checksum of a file.

    Raises:
        InputError: it is not a regular file; reading a pipe or a device might never end.
    """
    if not path.is_file():
        got = "a folder, a pipe or a device" if path.exists() else "no such file"
        raise bad_input(str(path), got, "a regular file", "put one there")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(folder: Path) -> dict[str, str]:
    """Path below the folder -> sha256, of every file as of `files_of`."""
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files_of(folder)}


def safe_yaml(path: str | Path) -> Any:
    """The content of a YAML file of the project itself."""
    return YAML(typ="safe").load(Path(path))


def write_json(path: str | Path, value: object) -> None:
    """Write `value` as indented JSON with a final newline, atomically, keys in their own order."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _replace(temporary: Path, final: Path, directory: bool) -> None:
    if not (directory and os.path.lexists(final)):
        temporary.replace(final)
        return
    # a rename cannot replace a folder that holds files, and removing the files one by one would
    # leave half a folder if this process were killed
    aside = final.parent / f".{final.name}.{os.getpid()}.old.part"
    _remove(aside)
    final.rename(aside)
    try:
        temporary.replace(final)
    except BaseException:  # SIGTERM, too
        aside.rename(final)
        raise
    with suppress(OSError):  # the new content is in place, and leftover files end in `.part`
        _remove(aside)


def _refused(error: Exception, temporary: Path, final: Path) -> OSError | None:
    """The disk's error behind `error`, about the final name; None for any other error.

    Libraries written in Rust raise exceptions of their own, which end in ``(os error 28)``.
    """
    if isinstance(error, OSError) and error.errno in DISK:
        named = str(error.filename or temporary)
        code = error.errno if named.startswith(str(temporary)) else None
    else:
        found = re.search(r"\(os error (\d+)\)", str(error))
        code = int(found[1]) if found and int(found[1]) in DISK else None
    return None if code is None else OSError(code, os.strerror(code), str(final))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
