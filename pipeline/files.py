"""Whole files or none: what is written appears under its final name complete, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic(path: str | Path, *, directory: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` on success, remove it on failure.

    Every file below the temporary path is flushed to the disk before the rename, so a name that
    exists after a power cut has its content. An existing file or folder of that name is replaced.

    Args:
        path: the final name; missing parent folders are made.
        directory: yield an empty folder instead of the name of a file to be.

    Raises:
        OSError: the disk is full, the folder is read-only, …; nothing is left under `path`
            that was not there before.
    """
    final = Path(path)
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
        if directory:  # a rename cannot replace a folder that holds files
            _remove(final)
        temporary.replace(final)
        _flush(final.parent)
    finally:
        _remove(temporary)


def write_json(path: str | Path, value: object) -> None:
    """Write `value` as indented JSON with a final newline, atomically, keys in their own order."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


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
