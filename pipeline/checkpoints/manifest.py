"""A checkpoint: a folder with the weights, and a manifest that says what they are.

The weights are safetensors, never a pickle; every file's sha256 is checked before it is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from pipeline.errors import InputError, Problem, shorten
from pipeline.files import write_json

MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is.

    Args:
        name: of the model, as the study calls it.
        family: of the model, as the study calls it.
        n_blocks: L.
        width: D.
        n_heads: H.
        context: the longest text, tokens.
        vocabulary: V, rows of the embedding.
        parameters: count, tied ones once.
        dtype: of the stored weights, such as ``float32``.
        seed: of initial weights and row order; None where it was not ours to choose.
        origin: where the weights come from: ``{"recipe": {…}}`` of the training.
        files: name, relative to the folder -> sha256, for every file but the manifest itself.
    """

    name: str
    family: str
    n_blocks: int
    width: int
    n_heads: int
    context: int
    vocabulary: int
    parameters: int
    dtype: str
    seed: int | None
    origin: Mapping[str, Any]
    files: Mapping[str, str]


def write_manifest(
    folder: Path,
    model: PreTrainedModel,
    *,
    name: str,
    family: str,
    seed: int | None,
    origin: Mapping[str, Any],
) -> Manifest:
    """Describe the checkpoint whose files lie in `folder`, and write its manifest there.

    Args:
        folder: holds the saved model and tokenizer, and nothing else.
        model: the same model, to be described.
        name: as in `Manifest`, and so are the others.
        family: as in `Manifest`.
        seed: as in `Manifest`.
        origin: as in `Manifest`; JSON values only.
    """
    config = model.config
    manifest = Manifest(
        name=name,
        family=family,
        n_blocks=config.num_hidden_layers,
        width=config.hidden_size,
        n_heads=config.num_attention_heads,
        context=config.max_position_embeddings,
        vocabulary=config.vocab_size,
        parameters=model.num_parameters(),
        dtype=str(model.dtype).removeprefix("torch."),
        seed=seed,
        origin=dict(origin),
        files={
            path.relative_to(folder).as_posix(): _sha256(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        },
    )
    write_json(folder / MANIFEST, asdict(manifest))
    return manifest


def read_manifest(folder: str | Path) -> Manifest:
    """Read what a checkpoint is, without reading its weights.

    Raises:
        InputError: there is no manifest, or it is not one.
    """
    path = Path(folder) / MANIFEST
    try:
        return Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            Problem(
                str(path),
                shorten(str(error)),
                "the manifest of a checkpoint",
                "make the checkpoint again: delete its folder and run its stage",
            )
        ) from error


def load_model(
    folder: str | Path, dtype: torch.dtype | str, device: str = "cpu"
) -> PreTrainedModel:
    """The model of a checkpoint, in eval mode.

    Args:
        folder: a checkpoint.
        dtype: to which the stored weights are converted, or its name, such as ``float32``.
        device: where it goes, such as ``cuda``.

    Raises:
        InputError: the manifest is missing, or a file is missing or is not the one it names.
    """
    _verify(Path(folder))
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, use_safetensors=True, local_files_only=True
    )
    model.to(device).eval()  # type: ignore[arg-type]
    return model


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint.

    Raises:
        InputError: the manifest is missing, or a file is missing or is not the one it names.
    """
    _verify(Path(folder))
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        folder, local_files_only=True
    )
    return tokenizer


def _verify(folder: Path) -> None:
    """Compare every file with the manifest, and report all that differ at once."""
    manifest = read_manifest(folder)
    problems = []
    for name, expected in manifest.files.items():
        path = folder / name
        got = f"sha256 {_sha256(path)}" if path.is_file() else "no such file"
        if got != f"sha256 {expected}":
            problems.append(
                Problem(
                    str(path),
                    got,
                    f"sha256 {expected}",
                    "restore the checkpoint (dvc checkout), or delete its folder and run its stage",
                )
            )
    if WEIGHTS not in manifest.files:
        problems.append(
            Problem(
                f"{folder / MANIFEST}: files",
                ", ".join(manifest.files) or "no file",
                WEIGHTS,
                "make the checkpoint again: delete its folder and run its stage",
            )
        )
    if problems:
        raise InputError(*problems)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
