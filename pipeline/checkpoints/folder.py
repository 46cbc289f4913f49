"""Describes a checkpoint that was not made here, without loading its weights, which stay in place.

What the stage keeps is a manifest that pins every file. `where` is the checkpoint's name in errors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.checkpoints.manifest import Manifest, write_manifest
from pipeline.workflow.errors import bad_input
from pipeline.workflow.files import atomic, sha256
from pipeline.workflow.hub import CHECKPOINT_FILES, Snapshot

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipeline.checkpoints.schema import Model

SIZE_TOLERANCE = 0.1
"""Relative tolerance between the number of parameters and the size in the study, which is rounded
and may count embeddings differently."""


def describe_folder(folder: Path, model: Model, source: Path) -> Manifest:
    """Write the manifest of a model's checkpoint in a user's folder, atomically.

    Raises:
        InputError: as for `checkpoint_files`, `require_tokenizer` and `write_description`.
    """
    checkpoint, origin = checkpoint_files(source), {"folder": str(source.resolve())}
    described = describe(checkpoint, str(source))  # refuses a tokenizer that needs its own code
    require_tokenizer(checkpoint.files, str(source))
    return write_description(folder, checkpoint, described, str(source), model, origin)


def describe(checkpoint: Snapshot, where: str) -> tuple[PreTrainedModel, int]:
    """The model without its weights, and the number of tokens that its tokenizer knows.

    It is on torch's meta device, in the precision of its stored weights.

    Raises:
        InputError: as for `fit.skeleton` and `verified.tokenizer_of`.
    """
    from pipeline.checkpoints.fit import skeleton  # imports torch, which takes seconds
    from pipeline.checkpoints.verified import tokenizer_of

    return skeleton(checkpoint, where), len(tokenizer_of(checkpoint, where))


def write_description(
    folder: Path,
    checkpoint: Snapshot,
    described: tuple[PreTrainedModel, int],
    where: str,
    model: Model,
    origin: Mapping[str, str],
) -> Manifest:
    """Write the manifest of a model's checkpoint whose files lie elsewhere, atomically.

    Files without a checksum get one.

    Raises:
        InputError: a size other than the study's, or weights that are NaN.
    """
    from pipeline.checkpoints.fit import require_numbers  # imports torch, which takes seconds

    bare, tokens = described
    size, made = bare.num_parameters() / 1e9, model.checkpoint
    if made.source == "hub" and abs(size - made.billions) > SIZE_TOLERANCE * made.billions:
        raise bad_input(
            f"the size of {where}",
            f"{size:.4g} billion parameters",
            f"{made.billions:g}, as the study says of {model.name}",
            "name the right repository, or correct `billions` of this model",
        )
    require_numbers(checkpoint, where)
    stored = checkpoint.files.items()
    files = {path: known or sha256(checkpoint.folder / path) for path, known in stored}
    with atomic(folder, directory=True) as temporary:
        return write_manifest(
            temporary,
            bare,
            name=model.name,
            family=model.family,
            tokens=tokens,
            origin=origin,
            files=files,
        )


def checkpoint_files(source: Path) -> Snapshot:
    """The files of a checkpoint in a user's folder, without checksums.

    Raises:
        InputError: it is not a folder, or has no safetensors.
    """
    if not source.is_dir():
        expected, remedy = "a folder with a checkpoint", "name an existing one"
        raise bad_input(str(source), "no such folder", expected, remedy)
    found = sorted({path.name for kind in CHECKPOINT_FILES for path in source.glob(kind)})
    checkpoint = Snapshot(source.resolve(), dict.fromkeys(found, ""))
    if not checkpoint.weights:
        raise bad_input(
            str(source),
            "no safetensors" + (f"; {', '.join(found)}" if found else ", nor any other file of it"),
            "config, safetensors and tokenizer of a checkpoint; a pickle is never loaded",
            "save it there: from_pretrained(…).save_pretrained(FOLDER), of model and tokenizer",
        )
    return checkpoint


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
