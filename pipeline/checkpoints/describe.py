"""Describes a checkpoint that was not made here, without loading its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedModel

from pipeline.checkpoints.fit import skeleton
from pipeline.checkpoints.manifest import Manifest, sha256, write_manifest
from pipeline.checkpoints.verified import tokenizer_of
from pipeline.workflow.errors import bad_input
from pipeline.workflow.files import atomic
from pipeline.workflow.hub import Snapshot

SIZE_TOLERANCE = 0.1
"""Relative tolerance between the number of parameters and the size in the study, which is rounded
and may count embeddings differently."""


def describe(checkpoint: Snapshot, where: str) -> tuple[PreTrainedModel, int]:
    """The model without its weights, and the number of tokens that its tokenizer knows.

    Args:
        checkpoint: files of a model, safetensors among them.
        where: its name in errors.

    Returns:
        The model, on torch's meta device, in the precision of its stored weights; and the tokens.

    Raises:
        InputError: as for `fit.skeleton` and `verified.tokenizer_of`.
    """
    with checkpoint.alone() as folder:
        model = skeleton(folder, checkpoint.files, where)
    return model, len(tokenizer_of(checkpoint, where))


def write_description(
    folder: Path,
    checkpoint: Snapshot,
    described: tuple[PreTrainedModel, int],
    where: str,
    *,
    name: str,
    family: str,
    origin: Mapping[str, str],
    billions: float | None = None,
) -> Manifest:
    """Write the manifest of a checkpoint whose files lie elsewhere, atomically.

    Args:
        folder: receives only the manifest.
        checkpoint: its files; those without a checksum get one.
        described: as `describe` returns it.
        where: its name in errors.
        name: as in `Manifest`.
        family: as in `Manifest`.
        origin: as in `Manifest`.
        billions: of parameters, from the study; None if not given.

    Raises:
        InputError: a size other than the study's.
    """
    model, tokens = described
    parameters = model.num_parameters()
    if billions is not None and abs(parameters / 1e9 - billions) > SIZE_TOLERANCE * billions:
        raise bad_input(
            f"the size of {where}",
            f"{parameters / 1e9:.4g} billion parameters",
            f"{billions:g}, as the study says of {name}",
            "name the right repository, or correct `billions` of this model",
        )
    stored = checkpoint.files.items()
    files = {path: known or sha256(checkpoint.folder / path) for path, known in stored}
    with atomic(folder, directory=True) as temporary:
        return write_manifest(
            temporary,
            model,
            name=name,
            family=family,
            tokens=tokens,
            seed=None,
            origin=origin,
            files=files,
        )
