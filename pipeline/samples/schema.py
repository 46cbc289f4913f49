"""The sections of params.yaml on the samples of a family."""

from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.workflow.schema import (
    Count,
    Key,
    Length,
    Name,
    Once,
    OwnPath,
    Repository,
    Section,
    Seed,
    Sha256,
)

PASSAGE_LENGTHS = {"pile": (150, 50), "pythia": (32, 32)}
"""Source of fetched samples -> the longest prefix, and the longest suffix, that a passage holds."""


PileFile = Annotated[str, Field(pattern=r"^train_(preprefix|prefix|suffix)\.npy$")]


class Control(Section):
    """Samples that are not memorized: windows of Pile documents, one per document."""

    documents: Repository = Field(description="a dataset with a column `text`, as parquet")
    tokenizer: Repository = Field(description="a model of the family: its tokenizer cuts the text")
    n: Count = Field(description="samples")


class Records(Section):
    """Samples from the records that were planted in the generated corpus."""

    source: Literal["records"] = "records"

    memorized_copies: Count = Field(
        description="records planted at least this often are the memorized split"
    )


class Pile(Section):
    """Samples from the passages of the Pile that GPT-Neo is known to complete."""

    source: Literal["pile"] = "pile"

    url: str = Field(
        pattern=r"^https?://\S+[^/\s]$", description="folder of the three files, at a pinned commit"
    )
    sha256: dict[PileFile, Sha256] = Field(
        min_length=3, max_length=3, description="each of the three files -> its checksum"
    )
    seed: Seed = Field(description="of the draws")
    n_memorized: Count = Field(description="passages, of the 15,000 that there are")
    control: Control


class Pythia(Section):
    """Samples from the sequences that all of several Pythia models have memorized."""

    source: Literal["pythia"] = "pythia"

    evals: Repository = Field(description="the dataset pythia-memorized-evals")
    splits: Annotated[
        list[Annotated[str, Field(pattern=r"^(duped|deduped)\.[0-9.]+[mb]$")]], Once
    ] = Field(
        min_length=1, description="models that memorized a sequence, such as duped.1.4b; all must"
    )
    seed: Seed = Field(description="of the draws")
    n_memorized: Count = Field(description="sequences; the paper: 15,000")
    control: Control


class Inserted(Section):
    """Samples from texts that were inserted into the training data of some models, as in Hubble."""

    source: Literal["inserted"] = "inserted"

    texts: Repository = Field(
        description="a dataset with the columns `text` and `duplicates`, the copies inserted; 0: "
        "none"
    )
    tokenizer: Repository = Field(description="a model of the family: its tokenizer cuts the text")
    memorized_copies: Count = Field(
        description="texts inserted at least this often are the memorized split"
    )


class File(Section):
    """Samples from a user's file: parquet, JSON lines, CSV or plain text."""

    source: Literal["file"] = "file"

    path: OwnPath = Field(
        description="of the file; pipeline/samples/table_file.py says what it may hold"
    )
    tokenizer: Name | None = Field(
        default=None,
        description="the model of this study whose tokenizer cuts a column `text`, or plain text; "
        "null for a column `tokens`",
    )
    skip_short: bool = Field(
        default=False, description="leave out samples that are too short, instead of refusing them"
    )


Samples = Annotated[Records | Pile | Pythia | Inserted | File, Field(discriminator="source")]
"""By `source`, the module of pipeline/samples/ that makes them."""


class Family(Section):
    """The samples of one model family."""

    name: Key = Field(description="as the tables and figures call it")
    prefix_length: Length = Field(description="P, tokens; the paper: 150 GPT-Neo, 32 Pythia")
    suffix_length: Length = Field(description="S, tokens; the paper: 50 GPT-Neo, 32 Pythia")
    samples: Samples = Field(description="where they come from")

    def described(self) -> dict[str, Any]:
        """The entry as JSON values, without what it leaves out."""
        return self.model_dump(exclude_none=True)
