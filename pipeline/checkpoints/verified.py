"""The files of a checkpoint, each verified against the manifest; and its tokenizer."""

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from pipeline.checkpoints.fit import not_understood
from pipeline.checkpoints.manifest import MANIFEST, read_manifest
from pipeline.workflow.errors import InputError, Problem, bad_input
from pipeline.workflow.files import sha256
from pipeline.workflow.hub import Snapshot, snapshot

WEIGHTS = (".safetensors", ".safetensors.index.json")
AGAIN = "delete its folder and run its stage"


def verified(folder: Path, *, weights: bool = True) -> Snapshot:
    """The files of a checkpoint, each compared with the manifest in its folder.

    Files of the hub that are not in the cache are fetched, at the commit that the manifest names.
    The checksums of weights, which may be left out, take long.

    Raises:
        InputError: the manifest is missing or names no weights, or a file is missing or differs
            from the manifest.
    """
    manifest = read_manifest(folder)
    if not Snapshot(folder, manifest.files).weights:
        raise bad_input(
            f"{folder / MANIFEST}: files",
            ", ".join(manifest.files) or "no file",
            "weights as safetensors",
            "make the checkpoint again: " + AGAIN,
        )
    wanted = {
        name: expected
        for name, expected in manifest.files.items()
        if weights or not name.endswith(WEIGHTS)
    }
    origin, remedy = manifest.origin, "restore the checkpoint (dvc checkout), or " + AGAIN
    if "repo" in origin:
        got = snapshot(origin["repo"], origin["commit"], tuple(wanted))
    else:
        below = Path(origin.get("folder", folder))
        files = {name: sha256(below / name) for name in wanted if (below / name).is_file()}
        got = Snapshot(below, files)
    if "folder" in origin:
        remedy = "run its stage again: the user's folder has changed since"
    problems = [
        Problem(
            str(got.folder / name),
            f"sha256 {got.files[name]}" if name in got.files else "no such file",
            f"sha256 {expected}",
            remedy,
        )
        for name, expected in wanted.items()
        if got.files.get(name) != expected
    ]
    if problems:
        raise InputError(*problems)
    return got


def tokenizer_of(checkpoint: Snapshot, where: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer among some files, whatever lies beside them.

    Raises:
        InputError: transformers cannot read it without running code of the repository.
    """
    try:
        with checkpoint.alone() as folder:
            return read_tokenizer(folder)
    except Exception as error:  # each of transformers' many parts raises its own
        raise not_understood(where or str(checkpoint.folder), error) from error


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a local folder, without running any code of it."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    return tokenizer


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint.

    Raises:
        InputError: as for `verified`; the weights are not read.
    """
    return tokenizer_of(verified(Path(folder), weights=False))
