"""Every stage of the study, in the order of the DAG: its function, its loop, its resources."""

from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

from pipeline.study.loops import parsed
from pipeline.study.schema import Study
from pipeline.workflow.errors import bad_input


@dataclass(frozen=True)
class Stage:
    """One group of stages of dvc.yaml.

    Args:
        memory_mb: of the first attempt of a job, before any weights; 500 are Snakemake and DVC.
        minutes: of the first attempt, before a model runs.
        loops_over: section of params.yaml with an entry for each stage of the group; None: there is
            one stage for the study, or none.
        evaluates: whether it runs a model under interventions, on a GPU if there is one; torch with
            CUDA takes 4 GB, the rows and their results 4 GB.
        priority: of its jobs; the longest run first, so that none is left to run alone at the end.
        local: whether it takes seconds, so that no cluster job is worth it.
    """

    memory_mb: int
    minutes: int
    loops_over: str | None = None
    evaluates: bool = False
    priority: int = 0
    local: bool = False


STAGES = {
    "check": Stage(2000, 10, local=True),
    "corpus": Stage(4000, 30),
    "samples": Stage(8000, 60, "families"),  # a whole file of Pile documents at a time
    "datasets": Stage(4000, 60),
    # nearly all of it for a model that is trained here
    "checkpoint": Stage(4000, 60, "models", priority=2),
    "interventions": Stage(2000, 10, "models", local=True),
    "memorization": Stage(8000, 30, "models", evaluates=True),
    "tokens": Stage(8000, 30, "models", evaluates=True, priority=-1),
    "benchmarks": Stage(8000, 30, "models", evaluates=True, priority=1),
    "generations": Stage(8000, 30, "models", evaluates=True),
    "divergence": Stage(8000, 30, "models", evaluates=True),
    "attribution": Stage(8000, 30, "models", evaluates=True),
    "windows": Stage(8000, 30, "models", evaluates=True),
    "theory": Stage(4000, 120, "theory"),  # no model, but the trained grids of the paper study
    # up to ten edited models, and their fine-tuning
    "mitigation": Stage(4000, 60, "mitigated"),
    "mitigations": Stage(4000, 30, local=True),
    "mitigations_page": Stage(2000, 10, local=True),
    # one model's tables at a time, with every continuation
    "check_results": Stage(16_000, 30, local=True),
    # a few minutes of training a base, and of looking at each model by each scorer
    "planting": Stage(4000, 120, "localized", priority=1),
    "scoring": Stage(4000, 60, "localized"),
    "localization": Stage(4000, 30, local=True),
    # every sample of every model and intervention
    "aggregate": Stage(16_000, 60),
    "figures": Stage(4000, 30),
    "report": Stage(4000, 30, local=True),
    "document": Stage(4000, 30, local=True),
}
"""Name in dvc.yaml -> the stage; ``memorization_part`` is a part of ``memorization``."""

SOURCES = {
    "samples": attrgetter("samples.source"),
    "checkpoint": attrgetter("checkpoint.source"),
    "theory": attrgetter("name"),
}
"""Stage with a function for each source -> the source of an entry, which is the function's name."""


def run(study: Study, address: str, **options: Any) -> None:
    """Run one stage, by its address as DVC writes it: ``memorization@tiny-neo-8``.

    `options` are of the stage, such as ``partial`` of ``aggregate``.

    Raises:
        InputError: the study has no such stage.
    """
    group, key, part = parsed(address)
    stage = STAGES.get(group)
    loops_over = stage and stage.loops_over
    entries = getattr(study, loops_over) if loops_over else {study.study: None}
    if stage is None or key not in entries:
        remedy = "see: dvc stage list"
        raise bad_input(f"stage {address}", address, "a stage of the study", remedy)
    entry = entries[key]
    of_entry = [] if entry is None else [entry]
    name = SOURCES[group](entry) if group in SOURCES else group
    function = getattr(import_module(f"pipeline.stages.{group}"), name)
    function(study, *of_entry, **(options | ({"part": part} if part else {})))
