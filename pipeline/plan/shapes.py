"""The shapes of a study's models, as far as they are known before the checkpoints are there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from pipeline.checkpoints.manifest import read_manifest
from pipeline.checkpoints.schema import Continued, Folder, Hub, Model, Training
from pipeline.study.schema import Study, given
from pipeline.workflow.errors import InputError
from pipeline.workflow.hub import snapshot


@dataclass(frozen=True)
class Shape:
    """The sizes that determine the cost of a model.

    Args:
        n_blocks: L.
        width: D.
        vocabulary: V.
        n_heads: H.
        tied: whether the embedding is the head as well.
        source: the source of these numbers; ``size`` if they were estimated.
    """

    n_blocks: int
    width: int
    vocabulary: int
    n_heads: int
    tied: bool
    source: str = "study"

    @property
    def parameters(self) -> int:
        """Approximate number: matrices and biases of the blocks, and the embeddings."""
        blocks = self.n_blocks * (12 * self.width**2 + 13 * self.width)
        return blocks + self.vocabulary * self.width * (1 if self.tied else 2)

    def block_flops(self, length: int) -> float:
        """FLOPs of one block for one token of a row of `length`: weights and attention."""
        return 24 * self.width**2 + 4 * length * self.width

    @property
    def head_flops(self) -> float:
        """FLOPs of one prediction."""
        return 2 * self.width * self.vocabulary


LADDER = (
    (6, 512, 8),
    (12, 768, 12),
    (24, 1024, 16),
    (16, 2048, 8),
    (24, 2048, 16),
    (32, 2560, 32),
    (32, 4096, 32),
    (36, 5120, 40),
)
"""Blocks, widths and heads of Pythia's models; GPT-Neo's are among them."""

VOCABULARY = 50_304


def shape_of_size(billions: float, tied: bool) -> Shape:
    """The usual shape of a model with this number of parameters."""
    shapes = [
        Shape(blocks, width, VOCABULARY, heads, tied, "size") for blocks, width, heads in LADDER
    ]
    return min(shapes, key=lambda each: abs(math.log(each.parameters / 1e9 / billions)))


def shape_of_config(config: Mapping[str, Any]) -> Shape:
    """The shape that a config.json of either family describes.

    Raises:
        KeyError: it describes another family.
    """
    return Shape(
        n_blocks=config.get("num_hidden_layers") or config["num_layers"],
        width=config["hidden_size"],
        vocabulary=config["vocab_size"],
        n_heads=config.get("num_attention_heads") or config["num_heads"],
        tied=bool(config.get("tie_word_embeddings", config.get("model_type") == "gpt_neo")),
        source="config.json",
    )


def shape_of(study: Study, model: Model, online: bool) -> Shape:
    """The shape of a model: from its training section, its manifest, its config.json or its size.

    Args:
        study: that it belongs to.
        model: of the study.
        online: whether config.json may be fetched from the hub.
    """
    tied = study.family(model.family).samples.source != "pythia"
    made = model.checkpoint
    if isinstance(made, Continued):
        made = study.model(made.base).checkpoint
    if isinstance(made, Training):
        vocabulary = given(next(iter(study.corpus.values())).vocabulary)
        return Shape(made.n_blocks, made.width, vocabulary, made.n_heads, tied=True)
    try:
        known = read_manifest(study.data / "checkpoints" / model.name)
        return Shape(known.n_blocks, known.width, known.vocabulary, known.n_heads, tied, "manifest")
    except InputError:
        pass
    try:
        return shape_of_config(_config(model, online))
    except (InputError, OSError, ValueError, KeyError):
        return shape_of_size(model.billions or _stored_billions(model), tied)


def _config(model: Model, online: bool) -> Mapping[str, Any]:
    """config.json of the pinned commit, or of the user's folder.

    Raises:
        OSError: it is not in the cache, and the hub may not be used; or the folder has none.
    """
    source = model.checkpoint
    if isinstance(source, Folder):
        own: Mapping[str, Any] = json.loads((Path(source.path) / "config.json").read_text())
        return own
    if not isinstance(source, Hub):
        raise FileNotFoundError
    repo, commit = source.repo, source.commit
    cached = try_to_load_from_cache(repo, "config.json", revision=commit)
    if not isinstance(cached, str):
        if not online:
            raise FileNotFoundError
        cached = str(snapshot(repo, commit, ["config.json"]).folder / "config.json")
    found: Mapping[str, Any] = json.loads(Path(cached).read_text("utf-8"))
    return found


def _stored_billions(model: Model) -> float:
    """Parameters of a user's folder, in billions, if each takes two bytes; never none."""
    source = model.checkpoint
    below = Path(source.path) if isinstance(source, Folder) else Path()
    return max(1, sum(path.stat().st_size for path in below.glob("*.safetensors"))) / 2e9
