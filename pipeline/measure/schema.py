"""The sections of params.yaml that set the measurements and the interventions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from pipeline.interventions.interventions import EDITS, GROUPS, IDENTITY, Group
from pipeline.workflow.schema import Count, Dtype, Once, Section, Seed, problem

FITTING = (
    "interventions that its blocks and heads allow, each once",
    "change the lines under `interventions` in params.yaml",
)
"""The expectation and the remedy in errors about interventions that do not fit a model."""


Index = Annotated[int, Field(ge=0, lt=2**16)]
"""The number of a block or an attention head, from 0."""


class Edited(Section):
    """A line of `interventions`: the blocks that are edited together, and the edit."""

    blocks: str | Annotated[list[Index], Once] = Field(
        description=f"a list of blocks, 0-based, or one of {', '.join(GROUPS)}: each block alone, "
        "the four quartiles, the first k, the last k, all windows of k neighbours, k at random, "
        "each attention head of every block alone"
    )
    edit: str = Field(
        default=IDENTITY, description=f"what is done to a block, one of {', '.join(EDITS)}"
    )
    k: Count | None = Field(default=None, description="blocks, for first, last, windows and random")
    draws: int = Field(
        default=1, ge=1, le=1000, description="random sets of blocks, or of directions of noise"
    )
    seed: int = Field(default=0, ge=0, lt=4_000_000, description="of random draws")
    heads: Annotated[list[Index], Field(min_length=1), Once] | None = Field(
        default=None, description="attention heads, 0-based, of listed blocks with edit: heads"
    )

    @model_validator(mode="after")
    def _means_something(self) -> Edited:
        try:
            self.group()
        except ValueError as error:
            raise _misfit(error) from None
        return self

    def group(self) -> Group:
        """The same, as `interventions.sweep` takes it."""
        return Group(
            blocks=self.blocks if isinstance(self.blocks, str) else tuple(self.blocks),
            edit=self.edit,
            k=self.k,
            draws=self.draws,
            seed=self.seed,
            heads=None if self.heads is None else tuple(self.heads),
        )


class Generations(Section):
    """Texts that the models write under some of the interventions (Fig. 4)."""

    prompts: Annotated[list[Annotated[str, Field(min_length=1)]], Once] = Field(
        min_length=1, description="prompts that every model continues"
    )
    depths: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Once] = Field(
        min_length=1, description="depths of the bypassed blocks: 0 is a model's first, 1 its last"
    )
    new_tokens: Count = Field(description="tokens per continuation")
    seed: Seed = Field(description="of the sampled continuations, at temperature 1")


class Attribution(Section):
    """Gradient times activation: the effect of each block's outputs on the loss, to first order."""

    samples: Count = Field(description="of the memorized split, and as many of the control split")


class Evaluation(Section):
    """How the models of one family are evaluated, in all stages that evaluate."""

    dtype: Dtype = Field(description="of the weights while evaluating; float32 is the reference")
    baseline_floor: float = Field(
        ge=0, le=1, description="exact match that the baseline has to reach on memorized samples"
    )
    below_floor: Literal["stop", "warn"] = Field(
        description="if it significantly does not: stop before the sweep, or warn and continue"
    )
    decode: Literal["all", "none"] | Count = Field(
        default="all",
        description="continuations to decode to the end, which takes most of the time: all, none, "
        "or a number of samples per split. Exact match, correct length, entropy and "
        "log-probabilities are exact without; token accuracy covers only these samples",
    )


def _misfit(error: ValueError) -> PydanticCustomError:
    """A message of `Group`, "got: expected …; remedy", as a problem."""
    got, _, expected = str(error).partition(": expected ")
    return problem(
        got,
        expected or "a group of blocks and its edit",
        "correct the line; docs/studies.md describes its fields",
    )
