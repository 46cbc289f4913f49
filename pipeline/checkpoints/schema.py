"""The section `models` of params.yaml: where each checkpoint comes from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipeline.corpus.schema import Weights
from pipeline.workflow.schema import (
    Count,
    Key,
    Name,
    OwnPath,
    Repository,
    Section,
    Seed,
    problem,
    require_input,
    require_section,
)

TRAINED = ("training", "gguf")
"""Sources of checkpoints that are trained here, on the corpus."""


class Training(Section):
    """How a small model is trained from scratch on the corpus."""

    architecture: Literal["gpt_neox", "gpt_neo"] = Field(description="as transformers names it")
    n_blocks: Count = Field(
        description="L; even for gpt_neo, whose blocks attend globally and locally in turn"
    )
    width: Count = Field(description="D, size of the hidden state")
    n_heads: Count = Field(description="H, attention heads; divides the width")
    window: Count | None = Field(
        description="tokens that a local block of gpt_neo sees, the current one included; null "
        "for all, and for gpt_neox, which has no such blocks",
    )
    batch_rows: Count = Field(description="rows of the corpus in one step")
    epochs: Count = Field(description="times that every row is seen")
    matrix_learning_rate: float = Field(
        gt=0, lt=10, description="peak, Muon, matrices of the blocks"
    )
    other_learning_rate: float = Field(gt=0, lt=10, description="peak, AdamW, all other parameters")

    @model_validator(mode="after")
    def _shape_is_possible(self) -> Training:
        if self.width % self.n_heads:
            raise problem(
                f"width {self.width}, n_heads {self.n_heads}",
                "a width that n_heads divides",
                "change one of the two",
            )
        if self.architecture == "gpt_neox" and self.window is not None:
            raise problem(
                f"architecture gpt_neox, window {self.window}",
                "a window for gpt_neo alone",
                "remove the window",
            )
        if self.architecture == "gpt_neo" and self.n_blocks % 2:
            raise problem(
                f"architecture gpt_neo, n_blocks {self.n_blocks}",
                "an even number of blocks",
                "add or remove a block",
            )
        return self


class Gguf(Section):
    """How a pretrained model is fine-tuned on the passages of the corpus, for a short time."""

    weights: Weights = Field(description="the same as of the corpus")
    batch_rows: Count = Field(description="rows of the corpus in one step")
    epochs: Count = Field(description="times that every row is seen")
    learning_rate: float = Field(gt=0, lt=10, description="peak, AdamW")
    largest_perplexity: float = Field(
        gt=1, lt=1e6, description="before training, on the famous passages"
    )


class Folder(Section):
    """A user's folder with a checkpoint, as `save_pretrained` writes it."""

    path: OwnPath = Field(
        description="of the folder: config, safetensors and tokenizer; a change of any file in it "
        "is noticed"
    )


class Model(Section):
    """One checkpoint, and where it comes from. This is the one entry that adds a model."""

    name: Name = Field(description="as the tables and figures call it")
    family: Key = Field(description="whose samples it completes: the name of a family")
    source: Literal["training", "hub", "gguf", "folder"] = Field(
        description="the module of pipeline/checkpoints/, and the section below that it reads"
    )
    input: Literal["corpus", "study.json"] | None = Field(
        default=None,
        description="what below data/STUDY/ that stage reads: the generated corpus, or, for a "
        "checkpoint that is fetched, nothing but the checked study; null for a folder",
    )
    seed: Seed | None = Field(
        default=None, description="of the initial weights and the order of the rows, if trained"
    )
    training: Training | None = None
    hub: Repository | None = None
    gguf: Gguf | None = None
    folder: Folder | None = None
    billions: float = Field(
        default=0,
        ge=0,
        lt=1e6,
        description="parameters, in billions, from which a scheduler is asked for memory and time "
        "before the checkpoint is there; checked against it; 0 for a model that is trained here, "
        "and for a folder whose size does not matter",
    )

    @model_validator(mode="after")
    def _source_fits(self) -> Model:
        require_section(self, ("training", "hub", "gguf", "folder"), self.source)
        require_input(self, TRAINED)
        if (self.source in TRAINED) != (self.seed is not None):
            raise problem(
                f"source {self.source} with seed {self.seed}",
                "a seed with source: training or gguf, and with no other source",
                "give the seed of a model that is trained here; remove it elsewhere",
            )
        fetched = self.source in ("hub", "gguf")
        if self.source != "folder" and fetched != (self.billions > 0):
            raise problem(
                f"source {self.source} with billions {self.billions:g}",
                "billions above 0 with source: hub or gguf, and none with source: training",
                "give the size of a checkpoint that is fetched; remove it elsewhere",
            )
        return self
