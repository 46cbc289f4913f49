"""The section `mitigations` of params.yaml: what is to be forgotten, and by which methods."""

from itertools import chain
from typing import Annotated

from pydantic import Field, field_validator

from pipeline.workflow.schema import Count, Name, Once, Section, Seed, problem

REFERENCES = ("none", "twin", "oracle")
"""Methods that every study has, since all others are judged by them."""
CONTROLS = ("random", "random-block")
PANELS = {
    "blocks and neurons": (
        *("block-identity", "block-zero"),
        *("neurons-activation", "neurons-gradients", "neurons-mask"),
    ),
    "single weights": ("wanda", "obd", "balanced-subnet"),
    "flat block of curvature": ("kfac", "identity", "noise", "coherent"),
    "unlearning": ("gradient-difference", "npo"),
}
"""The other methods by panel of the figure, in the order drawn."""
NAMES = (*REFERENCES, *CONTROLS, *chain.from_iterable(PANELS.values()))
"""Without their code, so that a study is checked without torch."""

REMOVED = 0.1
"""The share of the recitations of the seen rows that may stay where a dose removes them."""


class Relearning(Section):
    """Fine-tuning on the rows that the methods saw, to see whether the others come back."""

    learning_rate: float = Field(
        ge=0,
        le=1,
        description="AdamW, constant; low enough that the unedited model goes on to recite",
    )
    steps: Count = Field(description="of 16 rows or fewer; looked at after 0, 1, 2, 5, 10, 20, …")


class Mitigations(Section):
    """Methods that are to remove some of the records from a model that has a twin."""

    model: Name = Field(description="the model of this study; trained here, with a twin")
    forget: Annotated[list[str], Field(min_length=1), Once] = Field(
        description="kinds of records to forget; memorized records of the others are to stay"
    )
    methods: Annotated[list[str], Once] = Field(
        description="names of `pipeline/mitigations/methods.py`; none, twin and oracle among them"
    )
    seed: Seed = Field(description="of the halves, of noise, and of the order of rows")
    texts: Count = Field(description="rows of text that a method may read, and as many unseen ones")
    relearning: Relearning

    @field_validator("methods")
    @classmethod
    def _known(cls, methods: list[str]) -> list[str]:
        if unknown := [name for name in methods if name not in NAMES]:
            raise problem(", ".join(unknown), "some of " + ", ".join(NAMES), "correct the name")
        if missing := [name for name in REFERENCES if name not in methods]:
            raise problem(f"no {', '.join(missing)}", "all of them", "add to the list")
        return methods
