"""The memory and time that a job requests, by its stage, its model's size and its attempt.

A cluster kills a job that exceeds its request, and the next attempt requests more. On your own
machine none of this limits a job. The constants are estimates; two more attempts make up for their
errors. What a stage takes before any weights stands in `pipeline.stages.registry`.
"""

import math
from collections.abc import Mapping
from typing import Protocol

from pipeline.plan.cost import Costs
from pipeline.study.schema import Study

MEMORY_GROWTH, RUNTIME_GROWTH = 1.5, 2.0
"""The factor for time is larger, since time is harder to predict and some rules start again."""

COPIES = 2
"""Copies of the weights in host memory: as read, and as cast, before they are on the GPU."""

FETCH_MINUTES = 4
"""Minutes to download a billion parameters: 4 GB at 17 MB/s."""


class Base(Protocol):
    """What a stage takes before any weights: MB, minutes; `evaluates`: whether it runs a model."""

    memory_mb: int
    minutes: int
    evaluates: bool


class Needs:
    """The requests of one study's jobs; its methods are resource functions of Snakemake."""

    def __init__(self, study: Study, stages: Mapping[str, Base]) -> None:
        self._study, self._costs, self._stages = study, Costs(study), stages

    def mem_mb(self, wildcards: Mapping[str, str], attempt: int, rulename: str) -> int:
        """Memory of a job, MB."""
        base = self._stages[rulename.removesuffix("_part")]
        memory: float = base.memory_mb
        if base.evaluates:
            weights = self._costs.weight_bytes(self._study.model(wildcards["name"]))
            memory += COPIES * weights / 1e6
        return math.ceil(memory * MEMORY_GROWTH ** (attempt - 1))

    def runtime(self, wildcards: Mapping[str, str], attempt: int, rulename: str) -> int:
        """Time of a job on a GPU, minutes."""
        base = self._stages[rulename.removesuffix("_part")]
        minutes: float = base.minutes
        if base.evaluates:
            model = self._study.model(wildcards["name"])
            minutes += self._costs.seconds(rulename, model, "cuda") / 60
        elif rulename == "checkpoint":
            minutes += FETCH_MINUTES * self._study.model(wildcards["name"]).billions
        return math.ceil(minutes * RUNTIME_GROWTH ** (attempt - 1))
