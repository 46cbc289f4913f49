"""Fetch the checkpoint of a published model, and describe it without loading its weights.

The weights stay in the Hugging Face cache; what the stage keeps is a manifest that pins every file.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.checkpoints.describe import FILES, describe
from pipeline.checkpoints.manifest import Manifest, write_manifest
from pipeline.errors import InputError, Problem
from pipeline.files import atomic
from pipeline.hub import snapshot

SIZE_TOLERANCE = 0.1
"""How far the parameters may be from the size that the study gives; it rounds, and may count
embeddings otherwise."""


def fetch(
    folder: Path, repo: str, commit: str, *, name: str, family: str, billions: float | None
) -> Manifest:
    """Fetch a checkpoint into the Hugging Face cache, and write its manifest, atomically.

    Args:
        folder: gets the manifest, and nothing else.
        repo: OWNER/NAME.
        commit: 40 hexadecimal digits.
        name: of the model, as the study calls it.
        family: of the model, as the study calls it.
        billions: of parameters, as the study says; None where nobody said.

    Raises:
        InputError: what `pipeline.hub.snapshot` and `describe` raise; another size than the study
            says.
    """
    got = snapshot(repo, commit, FILES)
    where = f"{repo} at {commit}"
    model, tokens = describe(got, where)
    parameters = model.num_parameters()
    if billions is not None and abs(parameters / 1e9 - billions) > SIZE_TOLERANCE * billions:
        raise InputError(
            Problem(
                f"the size of {where}",
                f"{parameters / 1e9:.4g} billion parameters",
                f"{billions:g}, as the study says of {name}",
                "name the right repository, or correct `billions` of this model",
            )
        )
    with atomic(folder, directory=True) as temporary:
        return write_manifest(
            temporary,
            model,
            name=name,
            family=family,
            tokens=tokens,
            seed=None,
            origin={"repo": repo, "commit": commit},
            files=got.files,
        )
