"""The schema of params.yaml, the study in force: type, range, unit, default, source.

The stages never see this module's classes: ``__main__`` passes them plain values, and dvc.yaml
lists for each stage the keys that it receives. The checks of a file are in study.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from pipeline.analysis.schema import Statistics
from pipeline.checkpoints.schema import Model
from pipeline.corpus.schema import Corpus
from pipeline.localization.schema import Localization
from pipeline.measure.schema import Attribution, Evaluation, Generations, Line, Windows
from pipeline.mitigations.schema import Mitigations
from pipeline.report.schema import Report
from pipeline.samples.schema import Family
from pipeline.tasks.schema import Benchmarks, Dataset
from pipeline.theory.schema import Divergence, Experiments
from pipeline.workflow.errors import bad_input
from pipeline.workflow.files import PARAMS
from pipeline.workflow.schema import Count, Key, Once, Section

DERIVED = "derived"
"""The key that names the file derived from the sections, for dvc.yaml."""

RUN_SECTION = "run"
"""The one section that no stage depends on, since it affects rounding only."""

Named = TypeVar("Named", Family, Model)

Given = TypeVar("Given")


class Run(Section):
    """Threads, memory and folders; affects rounding only."""

    threads: int = Field(default=1, ge=1, le=1024, description="CPU threads of one evaluation job")
    token_budget: Count | None = Field(
        default=None,
        description="tokens evaluated at once, counted for each branch of the interventions; null: "
        "as many as the free memory allows",
    )
    device_memory: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="memory that the weights of a model may take on its device, GB; the other "
        "blocks are read for every pass; null: nine tenths of what is free",
    )
    shard_minutes: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=False,
        description="approximate minutes of work that a kill can cost: finished work is kept in "
        "shards of this size",
    )
    pile_folder: str | None = Field(
        default=None,
        pattern=r"^[^\x00\n]*[^\x00\s][^\x00\n]*$",
        description="folder that holds the three .npy files; null: download them",
    )


class Study(Section):
    """One study: models, samples, benchmarks, interventions and settings."""

    study: Key = Field(description="names data/STUDY/ and reports/STUDY/")
    corpus: dict[Key, Corpus] = Field(max_length=1, description="by the study's name; or none")
    families: dict[Key, Family] = Field(min_length=1)
    models: dict[Key, Model] = Field(min_length=1)
    datasets: dict[Key, dict[Key, Dataset]] = Field(
        max_length=1, description="by the study's name: task -> its dataset; or none"
    )
    interventions: Annotated[list[Line], Once] = Field(
        description="beside the baseline, which is always there"
    )
    attribution: Attribution | None = Field(default=None, description="or none")
    benchmarks: Benchmarks | None = Field(default=None, description="or none")
    generations: Generations | None = Field(default=None, description="or none")
    divergence: Divergence | None = Field(default=None, description="or none")
    localization: Localization | None = Field(default=None, description="or none")
    mitigations: Mitigations | None = Field(default=None, description="or none")
    windows: Windows | None = Field(default=None, description="or none")
    theory: Experiments = Field(
        default_factory=dict, description="experiments without a model; or none"
    )
    evaluation: dict[Key, Evaluation] = Field(description="by the name of the family")
    statistics: Statistics
    report: Report
    parts: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="jobs that share the samples of one model's memorization, and the documents "
        "of its benchmarks; the tables are the same",
    )
    derived: Literal["loops.yaml"] = Field(
        default="loops.yaml", description="what dvc.yaml loops over; derived from the rest"
    )
    run: Run

    @property
    def data(self) -> Path:
        """data/STUDY, where every table of the study lies."""
        return Path("data") / self.study

    @property
    def reports(self) -> Path:
        """reports/STUDY, where its report lies."""
        return Path("reports") / self.study

    def checkpoint(self, model: str) -> Path:
        """The folder of a model's checkpoint, or of the manifest alone."""
        return self.data / "checkpoints" / model

    @property
    def tasks(self) -> Path:
        """The folder of the benchmark tasks, or of their datasets; ``study.json`` without any."""
        if self.benchmarks is None:
            return self.data / "study.json"
        whence = "tasks" if self.corpus else "datasets"
        return Path(self.benchmarks.folder or self.data / whence)

    @property
    def steps(self) -> list[tuple[str, str, int]]:
        """Model, run and step of each model that is a checkpoint of a training run."""
        models = self.models.values()
        return [(m.name, m.run, m.step) for m in models if m.run is not None and m.step is not None]

    @property
    def mitigated(self) -> dict[str, str]:
        """Key of the stage -> method, of every method in the section `mitigations`."""
        methods = self.mitigations.methods if self.mitigations else []
        return {f"{self.study}-{method}": method for method in methods}

    @property
    def localized(self) -> dict[str, Model]:
        """Key -> model, of every base of the section `localization`."""
        bases = self.localization.models if self.localization else {}
        return {key: model for key, model in self.models.items() if model.name in bases}

    @property
    def listed(self) -> list[tuple[str, str]]:
        """Name and family of each model, in the order of the report."""
        return [(model.name, model.family) for model in self.models.values()]

    @property
    def names(self) -> list[str]:
        """What the outputs of stages are named by: families, models, experiments and methods."""
        named = (*self.families.values(), *self.models.values(), *self.theory.values())
        return [*(entry.name for entry in named), *self.mitigated.values()]

    @property
    def twins(self) -> dict[str, str]:
        """Model -> its twin, for those that have one."""
        return {model.name: model.twin for model in self.models.values() if model.twin}

    @property
    def reported(self) -> list[tuple[str, str]]:
        """As `listed`, without the twins, which others are compared with."""
        return [pair for pair in self.listed if pair[0] not in self.twins.values()]

    def model(self, name: str) -> Model:
        """The model called `name`.

        Raises:
            InputError: the study has none of that name.
        """
        return _named(self.models, name, "model")

    def family(self, name: str) -> Family:
        """The family called `name`.

        Raises:
            InputError: the study has none of that name.
        """
        return _named(self.families, name, "family")

    def address(self, group: str, model: str) -> str:
        """The stage of a group of stages for the model called `model`, as DVC writes it.

        Raises:
            InputError: the study has none of that name.
        """
        entry = self.model(model)
        return f"{group}@{next(key for key, each in self.models.items() if each is entry)}"


def section(found: object, wanted: type[Given]) -> Given:
    """The section of an entry, checked to be that of the stage's source.

    Raises:
        InputError: the entry has another source, for example if a stage is called by hand.
    """
    if not isinstance(found, wanted):
        raise bad_input(
            "source", type(found).__name__, wanted.__name__, "call the stage of its source"
        )
    return found


def given(section: Given | None) -> Given:
    """The section of an entry's source, which the check of the study guarantees to exist."""
    if section is None:
        raise ValueError("the study was not checked")
    return section


def _named(entries: Mapping[str, Named], name: str, kind: str) -> Named:
    for entry in entries.values():
        if entry.name == name:
            return entry
    raise bad_input(
        f"{kind} {name}",
        name,
        "one of " + ", ".join(entry.name for entry in entries.values()),
        f"name a {kind} of the study in {PARAMS}, or add it there",
    )
