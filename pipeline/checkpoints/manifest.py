"""The manifest of a checkpoint, which lies beside the weights or names their origin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, PositiveInt
from pydantic.dataclasses import dataclass

from pipeline.models.context import context_length
from pipeline.workflow.errors import bad_input, shorten
from pipeline.workflow.files import checksums, write_json

if TYPE_CHECKING:  # reading a manifest needs no torch
    from transformers import PreTrainedModel

MANIFEST = "manifest.json"

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Precision -> bytes per number."""


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise ValueError(f"{path!r} is not below its folder")
    return path


InsidePath = Annotated[str, AfterValidator(_inside)]
"""A file's path below its folder."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Manifest:
    """The description of a checkpoint.

    Args:
        name: of the model, as the study calls it.
        family: of the model, as the study calls it.
        n_blocks: L.
        width: D.
        n_heads: H.
        context: the longest text, tokens.
        vocabulary: V, rows of the embedding.
        tokens: number of tokens of the tokenizer; usually at most V, which may be padded.
        parameters: count, tied ones once.
        dtype: of the stored weights, such as ``float32``.
        seed: of initial weights and row order; None if the model was not trained here.
        origin: the origin of the weights: ``{"recipe": {…}}`` of the training, ``{"repo": …,
            "commit": …}`` of the hub, ``{"folder": …}`` of a user.
        files: name, relative to their folder -> sha256. They lie beside the manifest if they were
            made here, else at `origin`.
    """

    name: str
    family: str
    n_blocks: PositiveInt
    width: PositiveInt
    n_heads: PositiveInt
    context: PositiveInt
    vocabulary: PositiveInt
    tokens: PositiveInt
    parameters: PositiveInt
    dtype: Literal["float64", "float32", "float16", "bfloat16"]
    seed: int | None
    origin: dict[str, Any]
    files: dict[InsidePath, str]

    def weight_bytes(self, dtype: str) -> int:
        """The size of the weights in memory as `dtype`, one of `BYTES`."""
        return self.parameters * BYTES[dtype]


def write_manifest(
    folder: Path,
    model: PreTrainedModel,
    *,
    name: str,
    family: str,
    tokens: int,
    seed: int | None = None,
    origin: Mapping[str, Any],
    files: Mapping[str, str] | None = None,
) -> Manifest:
    """Describe a checkpoint by the fields of `Manifest`, and write them into its folder.

    The model's weights are not read, and may be on the meta device. `origin` has JSON values only.
    Without `files` they are all that lie in `folder`.
    """
    config = model.config
    dtype: Any = str(model.dtype).removeprefix("torch.")  # one of `BYTES`, which pydantic checks
    manifest = Manifest(
        name=name,
        family=family,
        n_blocks=config.num_hidden_layers,
        width=config.hidden_size,
        n_heads=config.num_attention_heads,
        context=context_length(config),
        vocabulary=config.vocab_size,
        tokens=tokens,
        parameters=model.num_parameters(),
        dtype=dtype,
        seed=seed,
        origin=dict(origin),
        files=checksums(folder) if files is None else dict(files),
    )
    write_json(folder / MANIFEST, asdict(manifest))
    return manifest


def read_manifest(folder: str | Path) -> Manifest:
    """Read the manifest of a checkpoint, without reading its weights.

    Raises:
        InputError: there is no manifest, or it is not valid.
    """
    path = Path(folder) / MANIFEST
    try:
        return Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise bad_input(
            str(path),
            shorten(str(error)),
            "the manifest of a checkpoint",
            "make the checkpoint again: delete its folder and run its stage",
        ) from error
