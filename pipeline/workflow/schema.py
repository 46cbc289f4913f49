"""The types that the sections of params.yaml share."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from pipeline.workflow.errors import shorten

Key = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
"""Names a stage: lower case, digits, hyphen, underscore; no dot, which DVC would split at."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
"""Names a file and a line in a figure: letters, digits, hyphen, underscore, dot; no slash."""

RepoId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")]
"""A repository of the Hugging Face hub: OWNER/NAME."""


def _whole(commit: str) -> str:
    if not re.fullmatch("[0-9a-f]{40}", commit):
        raise problem(
            shorten(commit),
            "a whole commit, 40 hexadecimal digits; a branch or a tag could move",
            "name the commit, or let it be looked up: python -m pipeline pin STUDY",
        )
    return commit


Commit = Annotated[str, AfterValidator(_whole)]
"""A whole commit; a branch or a tag could move."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

Count = Annotated[int, Field(ge=1, lt=2**31, strict=True)]
"""An upper limit above any study's counts, below numbers that overflow in a library."""

Length = Annotated[int, Field(ge=1, lt=2**16, strict=True)]
"""Tokens of a prefix or a suffix, within the limits of a samples table."""

OwnPath = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*[^\x00-\x20\x7f]$")]
"""Path of a user's file or folder, absolute or relative to the folder of params.yaml."""

Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]

Dtype = Literal["float32", "float16", "bfloat16"]


def each_once(values: list[Any]) -> list[Any]:
    """Raise if an entry is listed twice, since it would be computed, or drawn, twice."""
    if repeated := [value for at, value in enumerate(values) if value in values[:at]]:
        raise problem(f"{shorten(repeated[0])} twice", "each once", "remove one")
    return values


Once = AfterValidator(each_once)


class Section(BaseModel):
    """A section that rejects unknown keys and does not coerce types: "12" is not a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Repository(Section):
    """A repository of the Hugging Face hub, at one commit."""

    repo: RepoId = Field(description="OWNER/NAME")
    commit: Commit = Field(description="40 hexadecimal digits")

    @property
    def pin(self) -> tuple[str, str]:
        """The repository and the commit."""
        return self.repo, self.commit


Share = Annotated[float, Field(ge=0, le=1)]


def problem(got: str, expected: str, remedy: str) -> PydanticCustomError:
    """The error of a validator; `pipeline.study.composition` turns it into a `Problem`."""
    return PydanticCustomError(
        "study", "{got}", {"got": got, "expected": expected, "remedy": remedy}
    )
