"""The section `models` of params.yaml: the sources of the checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal

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
)

Billions = Annotated[float, Field(gt=0, lt=1e6)]
"""Billions of parameters; they set the requests to a scheduler before the checkpoint is fetched."""


class Training(Section):
    """How a small model is trained from scratch on the corpus."""

    source: Literal["training"] = "training"
    seed: Seed = Field(description="of the initial weights and of the order of the rows")
    architecture: Literal["gpt_neox", "gpt_neo", "llama"] = Field(
        description="as transformers names it"
    )
    n_blocks: Count = Field(
        description="L; even for gpt_neo, whose blocks attend globally and locally in turn"
    )
    width: Count = Field(description="D, size of the hidden state")
    n_heads: Count = Field(description="H, attention heads; divides the width")
    window: Count | None = Field(
        description="tokens that a local block of gpt_neo sees, the current one included; null "
        "for all, and for the others, which have no such blocks",
    )
    batch_rows: Count = Field(description="rows of the corpus in one step")
    epochs: Count = Field(description="times that every row is seen")
    matrix_learning_rate: float = Field(
        gt=0, lt=10, description="peak, Muon, matrices of the blocks"
    )
    other_learning_rate: float = Field(gt=0, lt=10, description="peak, AdamW, all other parameters")
    most_copies: int | None = Field(
        default=None,
        ge=0,
        description="records planted more often are left out of the training, for a checkpoint "
        "that continues from this one, or for a twin (0: all are); null: none are",
    )

    @model_validator(mode="after")
    def _shape_is_possible(self) -> Training:
        if self.width % self.n_heads:
            raise problem(
                f"width {self.width}, n_heads {self.n_heads}",
                "a width that n_heads divides",
                "change one of the two",
            )
        if self.architecture != "gpt_neo" and self.window is not None:
            raise problem(
                f"architecture {self.architecture}, window {self.window}",
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


class Hub(Repository):
    """A published model."""

    source: Literal["hub"] = "hub"
    billions: Billions = Field(description="of parameters; checked against the checkpoint")


class Gguf(Section):
    """How a pretrained model is fine-tuned on the passages of the corpus, for a short time."""

    source: Literal["gguf"] = "gguf"
    seed: Seed = Field(description="of the order of the rows")
    billions: Billions = Field(description="of parameters")
    weights: Weights = Field(description="the same as of the corpus")
    batch_rows: Count = Field(description="rows of the corpus in one step")
    epochs: Count = Field(description="times that every row is seen")
    learning_rate: float = Field(gt=0, lt=10, description="peak, AdamW")
    most_copies: int | None = Field(
        default=None, ge=0, lt=2**31, description="as of a model that is trained here"
    )
    largest_perplexity: float = Field(
        gt=1, lt=1e6, description="before training, on the famous passages"
    )


class Folder(Section):
    """A user's folder with a checkpoint, as `save_pretrained` writes it."""

    source: Literal["folder"] = "folder"
    billions: float = Field(
        default=0, ge=0, lt=1e6, description="of parameters; 0 where the size does not matter"
    )
    path: OwnPath = Field(
        description="folder with config, safetensors and tokenizer; a change of any file in it is "
        "detected"
    )


class Learning(Section):
    """How some weights of a model of this study memorize its samples."""

    seed: Seed = Field(description="of the order of the samples")
    batch_rows: Count = Field(description="samples in one step")
    epochs: Count = Field(description="times that every sample is seen in one round")
    most_rounds: Count = Field(description="largest number of rounds")
    recited: float = Field(gt=0, le=1, description="share recited at which it ends earlier")
    learning_rate: float = Field(gt=0, lt=10, description="peak of each round, AdamW")


class Continued(Learning):
    """How one part of one block of a model of this study memorizes its samples."""

    source: Literal["continued"] = "continued"
    base: Name = Field(description="the model of this study that it continues from, trained here")
    block: int = Field(ge=0, lt=2**16, description="the one that learns, 0-based")
    part: Literal["attention", "mlp", "both"] = Field(
        description="the part that learns; nothing else of the model changes, not even a norm"
    )


Checkpoint = Annotated[Training | Hub | Gguf | Folder | Continued, Field(discriminator="source")]
"""By `source`, the module of pipeline/checkpoints/ that gets it."""


class Model(Section):
    """One checkpoint and its source. A new model needs only this entry."""

    name: Name = Field(description="as the tables and figures call it")
    family: Key = Field(description="whose samples it completes: the name of a family")
    checkpoint: Checkpoint = Field(description="where the weights come from")
    twin: Name | None = Field(
        default=None,
        description="a model of this study, trained on the same text but without the samples that "
        "this one was shown: what this one recites beyond it is counterfactual memorization",
    )
    run: Name | None = Field(
        default=None, description="the training run that it is a checkpoint of; null: none"
    )
    step: int | None = Field(
        default=None,
        ge=0,
        lt=2**31,
        description="optimizer steps of that run at which it was kept; a training here stops then",
    )

    @model_validator(mode="after")
    def _step_is_of_a_run(self) -> Model:
        if (self.run is None) != (self.step is None):
            raise problem(
                f"run {self.run}, step {self.step}",
                "both, or neither",
                "name the training run and the step of this checkpoint",
            )
        if self.step is not None and isinstance(self.checkpoint, Gguf | Continued):
            raise problem(
                f"step {self.step} of a checkpoint from {self.checkpoint.source}",
                "a checkpoint from training, hub or folder",
                "remove run and step",
            )
        return self

    @property
    def trained(self) -> Training | Gguf | Continued | None:
        """The settings of its training on the corpus; None for a checkpoint that is not trained."""
        made = self.checkpoint
        return made if isinstance(made, Training | Gguf | Continued) else None

    @property
    def billions(self) -> float:
        """Parameters in billions before the checkpoint is fetched; 0 if unknown."""
        made = self.checkpoint
        return 0 if isinstance(made, Training | Continued) else made.billions
