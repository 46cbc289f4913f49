"""The section `localization` of params.yaml: where memory is put, and who looks for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.checkpoints.schema import Learning
from pipeline.models.grids import BLOCKS, GRID_OF
from pipeline.workflow.schema import Count, Key, Name, Once, Section, problem

OWN_SCORERS = Path("scorers")
"""The folder of a study's own scorers, beside params.yaml; all in it is an input."""
OWN = re.compile(r"scorers/(?:\w[\w-]*/)*\w[\w-]*\.py:[A-Za-z_]\w*")
ORACLE, RANDOM = "oracle", "random"
"""Scorers that know the place, and that know nothing."""


class Truth(Section):
    """Where some models memorize their samples."""

    part: Literal["attention", "mlp", "both", "head", "neurons", "weights"] = Field(
        description="of a block: what learns; neurons: a quarter of those of the MLP; weights: "
        "single ones of both parts, at random; norms never learn"
    )
    models: Count = Field(default=1, description="with each base, each in another place")
    spread: Count = Field(default=1, description="places of one model that learn together")
    share: float | None = Field(
        default=None, gt=0, lt=1, description="of the weights of a block that learn; null: all"
    )
    pretraining: bool = Field(
        default=False,
        description="whether the samples are read in the last quarter of a new training from "
        "scratch, in which they change the place alone; else the base is fine-tuned",
    )

    @property
    def grid(self) -> str:
        """The places that are compared, one of `grids.GRIDS`."""
        return GRID_OF.get(self.part, BLOCKS)

    @model_validator(mode="after")
    def _possible(self) -> Truth:
        if (self.share is None) != (self.part != "weights"):
            got = f"part {self.part}, share {self.share}"
            raise problem(got, "a share for weights, and for them alone", "add or remove it")
        return self


class Localization(Section):
    """Truths, planted in several bases, and the scorers that are compared on them."""

    bases: dict[Key, Annotated[list[Name], Field(min_length=1), Once]] = Field(
        min_length=1,
        description="base -> models of this study that are trained here, alike but for the seed",
    )
    truths: dict[Key, Truth] = Field(min_length=1, description="kind -> where the memory is")
    learning: Learning = Field(description="how a part memorizes the samples")
    scorers: Annotated[list[str], Once] = Field(
        default_factory=list,
        description="beside the built-in ones: functions in files of the folder scorers/, such as "
        "`scorers/mine.py:my_scorer`",
    )

    @property
    def models(self) -> dict[str, str]:
        """Model of this study -> the base that it stands for."""
        return {name: base for base, names in self.bases.items() for name in names}

    @field_validator("bases")
    @classmethod
    def _each_once(cls, bases: dict[str, list[str]]) -> dict[str, list[str]]:
        names = [name for each in bases.values() for name in each]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise problem(f"{', '.join(twice)} twice", "each model once", "remove one")
        return bases

    @field_validator("scorers")
    @classmethod
    def _in_the_folder(cls, scorers: list[str]) -> list[str]:
        if strange := [each for each in scorers if not OWN.fullmatch(each)]:
            expected = f"a file in {OWN_SCORERS}/ and a function, as scorers/mine.py:my_scorer"
            raise problem(", ".join(strange), expected, "correct the name")
        return scorers
