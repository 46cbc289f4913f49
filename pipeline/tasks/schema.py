"""The sections of params.yaml about lm-eval's tasks."""

from pydantic import Field

from pipeline.workflow.schema import Count, Key, OwnPath, Repository, Section


class Dataset(Repository):
    """The dataset of one of lm-eval's own tasks, as the task's configuration names it."""

    name: str | None = Field(
        default=None, min_length=1, description="of the dataset's configuration; null: its default"
    )
    split: str = Field(min_length=1, description="that the task evaluates")
    documents: Count = Field(description="of that split; another number stops the study")
    columns: list[str] = Field(min_length=1, description="of that split, which the task reads")


class Benchmarks(Section):
    """The benchmarks that lm-eval evaluates, in its own terms."""

    folder: OwnPath | None = Field(
        default=None,
        description="of lm-eval's YAML files and their data; null for the tasks of the corpus, or, "
        "in a study without one, for lm-eval's own",
    )
    tasks: list[Key] = Field(min_length=1, description="each once, as lm-eval names it")
    num_fewshot: int = Field(ge=0, lt=2**31, description="examples before each question")
    limit: Count | dict[Key, Count] | None = Field(
        description="documents per task; or task -> documents, with all documents of tasks that "
        "are not listed; null for all"
    )

    def limit_of(self, task: str) -> int | None:
        """The documents of a task that are evaluated; None for all."""
        return self.limit.get(task) if isinstance(self.limit, dict) else self.limit
