"""The sections of params.yaml about the theorems."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from pipeline.workflow.schema import Count, Key, Once, Section, Seed, problem


class Divergence(Section):
    """How far a bypass moves the last token, against the bounds of the paper's theorems."""

    samples: Count = Field(description="of the memorized split, and as many of the control split")


Counts = Annotated[list[Count], Field(min_length=1), Once]
Seeds = Annotated[list[Seed], Field(min_length=1), Once]
Rate = Annotated[float, Field(gt=0, lt=10)]
Chances = Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=1), Once]


class Associative(Section):
    """Associative memories, filled until less than half of the pairs is right."""

    name: Literal["associative"] = "associative"
    widths: Counts = Field(description="D of the closed form, the sum of outer products")
    trained_widths: Counts = Field(description="D of the trained memories")
    spacing: float = Field(gt=1, le=4, description="ratio of one number of pairs to the one before")
    steps: Count = Field(description="of Adam, all pairs in each")
    learning_rate: Rate = Field(description="peak")
    seeds: Seeds = Field(description="embeddings and a permutation each")


class Lookup(Section):
    """Look-up tables of low entropy, and the bound on a linear map's loss on them."""

    name: Literal["lookup"] = "lookup"
    vocabulary: Count = Field(description="N")
    widths: Counts = Field(description="D")
    mistakes: Chances = Field(
        description="probability of all tokens but the answer, between 0 and 1 - 1/N"
    )
    contexts: Count = Field(description="T, equally likely")
    seeds: Seeds = Field(description="unembeddings and distributions each")

    @model_validator(mode="after")
    def _answers_are_likeliest(self) -> Lookup:
        most = 1 - 1 / self.vocabulary
        if wrong := [each for each in self.mistakes if not 0 < each < most]:
            raise problem(
                f"mistakes {wrong}, vocabulary {self.vocabulary}",
                f"between 0 and {most:.3f}",
                "change them",
            )
        return self


class LowRank(Section):
    """Least-squares maps of low rank, and the bounds on their loss."""

    name: Literal["low_rank"] = "low_rank"
    vocabulary: Count = Field(description="N")
    contexts: Count = Field(description="T")
    ranks: Counts = Field(description="of the maps, 1 to N - 2, and less than T")
    seeds: Seeds = Field(description="a table of each kind each")

    @model_validator(mode="after")
    def _ranks_are_low(self) -> LowRank:
        most = min(self.vocabulary - 2, self.contexts - 1)
        if max(self.ranks) > most:
            raise problem(
                f"rank {max(self.ranks)}, vocabulary {self.vocabulary}, contexts {self.contexts}",
                f"ranks of at most {most}: N - 2, and less than T",
                "lower the rank, or raise what bounds it",
            )
        return self


class Constructive(Section):
    """Attention-only transformers that are built, not trained: only outputs are solved for."""

    name: Literal["constructive"] = "constructive"
    vocabulary: Count = Field(description="N")
    context: int = Field(ge=2, lt=2**31, description="S, tokens of a sequence")
    width: Count = Field(description="D")
    head_width: Count = Field(description="K")
    heads: Counts = Field(description="H")
    loads: Annotated[list[Annotated[float, Field(gt=0, lt=1e6)]], Once] = Field(
        min_length=1,
        description="sequences, as shares of H K; H K, H K + D and one more than each are added",
    )
    unsolved: Chances = Field(description="probability of the sequences not solved for")
    seeds: Seeds = Field(description="random weights and a table each")


class AttentionOnly(Section):
    """Attention-only transformers that are trained to memorize a look-up table of pairs."""

    name: Literal["attention_only"] = "attention_only"
    vocabulary: Count = Field(description="N; there are N * N pairs")
    width: Count = Field(description="D, where it is not varied")
    head_width: Count = Field(description="K, where it is not varied")
    heads: Counts = Field(description="H, where it is varied; above 1, also MLPs of equal size")
    fixed_heads: Count = Field(description="H, where K or D is varied")
    head_widths: Counts = Field(description="K, with a projection a head, and with a shared one")
    widths: Counts = Field(description="D")
    square_widths: Counts = Field(description="D = K")
    square_heads: Counts = Field(description="H where D = K")
    narrow_vocabulary: Count = Field(description="N where D = K = 2")
    narrow_heads: Counts = Field(description="H where D = K = 2")
    steps: Count = Field(description="of Adam, all pairs in each")
    narrow_steps: Count = Field(description="the same where D = K = 2")
    learning_rate: Rate = Field(description="peak")
    seeds: Seeds = Field(description="a table and initial weights each")


Experiment = Associative | Lookup | LowRank | Constructive | AttentionOnly
"""On attention-only transformers, by `name`, the module of pipeline/theory/; none takes a model."""

Experiments = Annotated[
    dict[Key, Annotated[Experiment, Field(discriminator="name")]],
    BeforeValidator(lambda each: each or {}),
]
"""An empty section may also be null."""
