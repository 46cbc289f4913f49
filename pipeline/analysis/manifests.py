"""The models' manifests: architecture and training data, read without torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.workflow.errors import bad_input, shorten


def read_manifest(data: Path, name: str) -> dict[str, Any]:
    """The manifest of a model's checkpoint.

    Raises:
        InputError: it is missing, is not JSON, or has no number of blocks.
    """
    path = data / "checkpoints" / name / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        return {**manifest, "n_blocks": int(manifest["n_blocks"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise bad_input(
            str(path),
            shorten(str(error)),
            "the manifest of a checkpoint, with n_blocks",
            "make the checkpoint again: delete its folder and run its stage",
        ) from error


def trained_here(manifest: Mapping[str, Any]) -> bool:
    """Whether the model was trained on generated text, so that nothing it recites is private."""
    origin = manifest.get("origin")
    return isinstance(origin, Mapping) and "recipe" in origin


def pretrained(manifest: Mapping[str, Any]) -> bool:
    """Whether the model was pretrained elsewhere and only fine-tuned here."""
    return trained_here(manifest) and "weights" in manifest["origin"]["recipe"]


def recipe_key(manifest: Mapping[str, Any]) -> str | None:
    """A key that models share if they differ only in their training seed; None without a seed.

    It covers all of the manifest except name, seed and files. Models that were not trained here
    have no seed, so each of them is its own recipe.
    """
    if manifest.get("seed") is None:
        return None
    own = ("name", "seed", "files", "origin")
    origin = manifest.get("origin")
    recipe = dict(origin.get("recipe") or {}) if isinstance(origin, Mapping) else {}
    recipe.pop("seed", None)
    kind = {word: value for word, value in manifest.items() if word not in own}
    return json.dumps([kind, recipe], sort_keys=True, default=str)
