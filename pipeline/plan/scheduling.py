"""The memory and time that a job requests, by its rule, its model's size and its attempt.

A cluster kills a job that exceeds its request, and the next attempt requests more. On your own
machine none of this limits a job. The constants are estimates; two more attempts make up for their
errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pipeline.plan.cost import Costs
from pipeline.study.schema import Study

BASE = {
    "check": (2000, 10),
    "corpus": (4000, 30),
    "samples": (8000, 60),  # a whole file of Pile documents at a time
    "datasets": (4000, 60),
    "checkpoint": (4000, 60),  # nearly all of it for a model that is trained here
    "interventions": (2000, 10),
    "theory": (4000, 120),  # no model, but the trained grids of the paper study
    "localization": (4000, 30),
    "check_results": (16_000, 30),  # one model's tables at a time, with every continuation
    "aggregate": (16_000, 60),  # every sample of every model and intervention, and the bootstrap
    "figures": (4000, 30),
    "report": (4000, 30),
}
"""Rule -> MB and minutes of its first attempt, before any weights; 500 MB are Snakemake and DVC."""

EVALUATE = (
    *("memorization_part", "memorization", "tokens", "benchmarks_part", "benchmarks"),
    *("generations", "divergence", "attribution"),
)
"""The rules that run a model; torch with CUDA takes 4 GB, the rows and their results 4 GB."""

BASE |= dict.fromkeys(EVALUATE, (8000, 30))

MEMORY_GROWTH, RUNTIME_GROWTH = 1.5, 2.0
"""The factor for time is larger, since time is harder to predict and some rules start again."""

COPIES = 2
"""Copies of the weights in host memory: as read, and as cast, before they are on the GPU."""

FETCH_MINUTES = 4
"""Minutes to download a billion parameters: 4 GB at 17 MB/s."""


class Needs:
    """The requests of one study's jobs; its methods are resource functions of Snakemake."""

    def __init__(self, study: Study) -> None:
        self._study, self._costs = study, Costs(study)

    def mem_mb(self, wildcards: Mapping[str, str], attempt: int, rulename: str) -> int:
        """Memory of a job, MB."""
        memory: float = BASE[rulename][0]
        if rulename in EVALUATE:
            weights = self._costs.weight_bytes(self._study.model(wildcards["model"]))
            memory += COPIES * weights / 1e6
        return math.ceil(memory * MEMORY_GROWTH ** (attempt - 1))

    def runtime(self, wildcards: Mapping[str, str], attempt: int, rulename: str) -> int:
        """Time of a job on a GPU, minutes."""
        minutes: float = BASE[rulename][1]
        if rulename in EVALUATE:
            model = self._study.model(wildcards["model"])
            minutes += self._costs.seconds(rulename, model, "cuda") / 60
        elif rulename == "checkpoint":
            minutes += FETCH_MINUTES * self._study.model(wildcards["model"]).billions
        return math.ceil(minutes * RUNTIME_GROWTH ** (attempt - 1))
