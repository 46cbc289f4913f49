"""The sections of params.yaml that set the measurements and the interventions."""

from typing import Annotated, Any, Literal, cast

from pydantic import Field, GetCoreSchemaHandler

from pipeline.interventions.interventions import BASELINE, Group
from pipeline.workflow.schema import Count, Dtype, Length, Name, Once, OwnPath, Section, Seed

FITTING = (
    "interventions that its blocks and heads allow, each once",
    "change the lines under `interventions` in params.yaml",
)
"""The expectation and the remedy in errors about interventions that do not fit a model."""


class _OfMapping:
    """Lets pydantic make a dataclass of a mapping where its fields are strict."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        made = handler(source)
        cast("dict[str, object]", handler.resolve_ref_schema(made))["strict"] = False
        return made


Line = Annotated[Group, _OfMapping()]
"""A line of `interventions`: the blocks that are edited together, and the edit."""


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


class Windows(Section):
    """Every window of a user's documents: which passages a model knows, and how surely."""

    documents: OwnPath = Field(description="a text file, or a folder of text files")
    reference_text: OwnPath | None = Field(
        default=None, description="the same, of texts that the models cannot know; or none"
    )
    reference: Name | None = Field(
        default=None, description="a model of the study that does not know the documents; or none"
    )
    corpus: OwnPath | None = Field(
        default=None, description="texts in which copies of the windows are counted; or none"
    )
    prefix_length: Length = Field(description="tokens")
    suffix_length: Length = Field(description="tokens")
    stride: Length = Field(default=8, description="tokens from one window to the next")
    exact: int = Field(
        default=64, ge=0, le=100_000, description="windows that are read alone as well"
    )
    interventions: Annotated[list[str], Once] = Field(
        default=[], description="names of interventions, beside the baseline"
    )

    def of(self, model: str) -> list[str]:
        """Names of the interventions under which a model is read: of the reference the baseline."""
        edits = [] if model == self.reference else self.interventions
        return list(dict.fromkeys((BASELINE.name, *edits)))


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
