"""Describes the checkpoint in a user's folder; the weights stay where they are."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline.checkpoints.describe import describe, write_description
from pipeline.checkpoints.manifest import Manifest
from pipeline.workflow.errors import bad_input
from pipeline.workflow.hub import CHECKPOINT_FILES, Snapshot


def describe_folder(folder: Path, source: Path, *, name: str, family: str) -> Manifest:
    """Write the manifest of a checkpoint in a user's folder, atomically.

    Args:
        folder: receives only the manifest.
        source: the user's folder, with config, safetensors and tokenizer.
        name: of the model, as the study calls it.
        family: of the model, as the study calls it.

    Raises:
        InputError: as for `checkpoint_files`, `describe` and `require_tokenizer`.
    """
    checkpoint, where = checkpoint_files(source), str(source)
    described = describe(checkpoint, where)
    require_tokenizer(checkpoint.files, where)
    origin = {"folder": str(source.resolve())}
    return write_description(
        folder, checkpoint, described, where, name=name, family=family, origin=origin
    )


def checkpoint_files(source: Path) -> Snapshot:
    """The files of a checkpoint in a user's folder, without checksums.

    Raises:
        InputError: it is not a folder.
    """
    if not source.is_dir():
        raise bad_input(
            str(source),
            "no such folder",
            "a folder with a checkpoint",
            "name an existing one",
        )
    names = sorted(
        path.name
        for path in source.iterdir()
        if any(fnmatchcase(path.name, kind) for kind in CHECKPOINT_FILES)
    )
    return Snapshot(source.resolve(), dict.fromkeys(names, ""))


def require_tokenizer(files: Collection[str], where: str) -> None:
    """Raise if a checkpoint has no tokenizer; transformers would make up a nearly empty one.

    Raises:
        InputError: none of the files is a tokenizer's.
    """
    if "tokenizer.json" not in files and not {"vocab.json", "merges.txt"} <= set(files):
        raise bad_input(
            where,
            "no tokenizer; " + ", ".join(sorted(files)),
            "tokenizer.json, or vocab.json and merges.txt, beside the weights",
            "save it there: AutoTokenizer.from_pretrained(…).save_pretrained(FOLDER)",
        )
