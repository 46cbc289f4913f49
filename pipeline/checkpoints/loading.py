"""Load a checkpoint: safetensors, never a pickle, and no file that its manifest does not know."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from pipeline.checkpoints.fit import require_fit, skeleton
from pipeline.checkpoints.manifest import MANIFEST, Manifest, read_manifest, sha256
from pipeline.errors import InputError, Problem
from pipeline.hub import Snapshot, snapshot


def load_model(
    folder: str | Path, dtype: torch.dtype | str, device: str = "cpu"
) -> PreTrainedModel:
    """The model of a checkpoint, in eval mode.

    Args:
        folder: of the checkpoint's manifest. Weights of the hub that are not in the cache are
            fetched, at the commit that the manifest names.
        dtype: to which the stored weights are converted, or its name, such as ``float32``.
        device: where it goes, such as ``cuda``.

    Raises:
        InputError: the manifest is missing, a file is missing or is not the one it names, or the
            weights are not those of the configuration.
    """
    return _model(_verified(Path(folder)), dtype, device)


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint.

    Raises:
        InputError: the manifest is missing, or a file is missing or is not the one it names.
    """
    return _tokenizer(_verified(Path(folder)))


def load(
    folder: str | Path, dtype: torch.dtype | str, device: str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer; the checksums of a large checkpoint take long, and are taken once.

    Args:
        folder: as for `load_model`, and so are the others.
        dtype: likewise.
        device: likewise.

    Raises:
        InputError: as for `load_model`.
    """
    verified = _verified(Path(folder))
    return _model(verified, dtype, device), _tokenizer(verified)


def _model(checkpoint: Snapshot, dtype: torch.dtype | str, device: str) -> PreTrainedModel:
    where = str(checkpoint.folder)
    if not sys.stderr.isatty():  # a bar would fill the log
        disable_progress_bar()  # type: ignore[no-untyped-call]
    model: PreTrainedModel
    report: dict[str, Any]
    with checkpoint.alone() as folder:
        skeleton(folder, checkpoint.files, where)  # refused before gigabytes are read
        model, report = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]
            folder,
            dtype=dtype,
            output_loading_info=True,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,  # and nobody is asked
        )
    require_fit(report, where)
    model.to(device).eval()  # type: ignore[arg-type]
    return model


def _tokenizer(checkpoint: Snapshot) -> PreTrainedTokenizerBase:
    with checkpoint.alone() as folder:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    return tokenizer


def _verified(folder: Path) -> Snapshot:
    """The files of a checkpoint where they lie, each compared with the manifest."""
    manifest = read_manifest(folder)
    if not any(name.endswith(".safetensors") for name in manifest.files):
        raise InputError(
            Problem(
                f"{folder / MANIFEST}: files",
                ", ".join(manifest.files) or "no file",
                "weights as safetensors",
                "make the checkpoint again: delete its folder and run its stage",
            )
        )
    if "repo" in manifest.origin:
        origin = manifest.origin
        fetched = snapshot(origin["repo"], origin["commit"], tuple(manifest.files))
        _compare(manifest, fetched.files, fetched.folder)
        return fetched
    below = Path(manifest.origin.get("folder", folder))
    found = {name: sha256(below / name) for name in manifest.files if (below / name).is_file()}
    _compare(manifest, found, below)
    return Snapshot(below, found)


def _compare(manifest: Manifest, found: dict[str, str], folder: Path) -> None:
    """Report all files that differ from the manifest at once."""
    problems = [
        Problem(
            str(folder / name),
            f"sha256 {found[name]}" if name in found else "no such file",
            f"sha256 {expected}",
            "restore the checkpoint (dvc checkout), or delete its folder and run its stage",
        )
        for name, expected in manifest.files.items()
        if found.get(name) != expected
    ]
    if problems:
        raise InputError(*problems)
