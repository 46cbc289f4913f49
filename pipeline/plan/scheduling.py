"""The memory and time that a job requests, by its rule, its model's size and its attempt.

    memory  = (BASE + 2 x 1000 x B x bytes) x 1.5^(attempt - 1)                       MB
    runtime = (BASE + 2 x B + 2e9 x B x tokens / RATE / 60) x 2^(attempt - 1)         minutes
    tokens  = interventions x samples x (P + S)                      of memorization
              interventions x tasks x tokens a task x (1 + few-shot) of benchmarks
              2 x interventions x samples of both splits x P         of divergence

for a model of B billion parameters, whose size counts where it is read (the rules that evaluate)
or fetched (``checkpoint``: 4 minutes for a billion, no memory). A cluster kills a job that exceeds
its request, and the next attempt requests more. On your own machine none of this limits a job.

The constants are estimates; two more attempts make up for their errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.checkpoints.schema import Model
from pipeline.interventions.interventions import Group, sweep
from pipeline.samples.schema import Family, File, Pile, Pythia
from pipeline.study.loops import IN_PARTS
from pipeline.study.schema import Study, given
from pipeline.workflow.schema import Dtype

BASE = {
    "check": (2000, 10),
    "corpus": (4000, 30),
    "samples": (8000, 60),  # a whole file of Pile documents at a time
    "datasets": (4000, 60),
    "checkpoint": (4000, 60),  # as good as all of it for a model that is trained here
    "interventions": (2000, 10),
    "memorization": (8000, 30),  # torch with CUDA: 4 GB; the rows and their results: 4 GB
    "memorization_part": (8000, 30),
    "tokens": (8000, 30),
    "benchmarks_part": (8000, 30),
    "benchmarks": (8000, 30),
    "generations": (8000, 30),
    "divergence": (8000, 30),
    "attribution": (8000, 30),
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
MEMORY_GROWTH = 1.5
RUNTIME_GROWTH = 2.0
"""The factor for time is larger, since time is harder to predict and some rules start again."""

BYTES: dict[Dtype, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
COPIES = 2
"""Copies of the weights in host memory: as read, and as cast, before they are on the GPU."""

LOAD_MINUTES = 2
"""Minutes to check and load a billion parameters: 4 GB, read twice at a shared 70 MB/s."""

FETCH_MINUTES = 4
"""Minutes to download a billion parameters: 4 GB at 17 MB/s."""

RATE: dict[Dtype, float] = {"float32": 5e12, "float16": 3e13, "bfloat16": 3e13}
"""Operations per second: a quarter of an A100's peak, or a tenth in half precision, since decoding
one token at a time is bound by memory."""

DEEPEST = (36, 40)
"""Blocks and heads of the deepest Pythia: the depth is unknown before the checkpoint is fetched,
and a shallower model has a smaller B."""

TASK_TOKENS = 500_000
"""Tokens of a benchmark task, contexts shared by choices counted once: the mean of ARC-easy,
HellaSwag, PIQA, LAMBADA and WikiText."""

DOCUMENT_TOKENS = 1000
"""Tokens per document if `limit` takes a few of each task; WikiText's documents have thousands."""


class Needs:
    """The requests of one study's jobs; its methods are resource functions of Snakemake."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._interventions = 1 + sum(map(_count, study.groups))

    def mem_mb(self, wildcards: Mapping[str, str], attempt: int, rulename: str) -> int:
        """Memory of a job, MB."""
        memory: float = BASE[rulename][0]
        if rulename in EVALUATE:
            model = self._study.model(wildcards["model"])
            memory += COPIES * model.billions * 1000 * BYTES[self._dtype(model)]
        return math.ceil(memory * MEMORY_GROWTH ** (attempt - 1))

    def runtime(self, wildcards: Mapping[str, str], attempt: int, rulename: str) -> int:
        """Time of a job, minutes."""
        minutes: float = BASE[rulename][1]
        if rulename in EVALUATE:
            model = self._study.model(wildcards["model"])
            operations = 2e9 * model.billions * self._tokens(rulename, model)
            minutes += LOAD_MINUTES * model.billions
            minutes += operations / RATE[self._dtype(model)] / 60
        elif rulename == "checkpoint":
            minutes += FETCH_MINUTES * self._study.model(wildcards["model"]).billions
        return math.ceil(minutes * RUNTIME_GROWTH ** (attempt - 1))

    def _dtype(self, model: Model) -> Dtype:
        return self._study.evaluation[model.family].dtype

    def _tokens(self, rule: str, model: Model) -> int:
        """Tokens under all interventions; negligible for generation, and to join parts."""
        parts = self._study.parts
        if rule.endswith("_part"):
            return self._tokens_of(rule.removesuffix("_part"), model) // parts
        return 0 if rule in IN_PARTS and parts > 1 else self._tokens_of(rule, model)

    def _tokens_of(self, rule: str, model: Model) -> int:
        """The same, of a job that does all the work of its rule."""
        if rule == "memorization":
            family = self._study.family(model.family)
            length = family.prefix_length + family.suffix_length
            return self._interventions * known_samples(family) * length
        if rule == "divergence":  # the bounds take about as long as the pass
            family = self._study.family(model.family)
            return (
                2
                * len(sweep(DEEPEST[0]))
                * 2
                * given(self._study.divergence).samples
                * family.prefix_length
            )
        if rule == "benchmarks":
            asked = given(self._study.benchmarks)
            tokens = sum(
                min(TASK_TOKENS, (asked.limit_of(task) or TASK_TOKENS) * DOCUMENT_TOKENS)
                for task in asked.tasks
            )
            return self._interventions * tokens * (1 + asked.num_fewshot)
        return 0


def _count(group: Group) -> int:
    """The interventions of a group in the deepest model; in a deeper one, if only that has them."""
    blocks, heads = DEEPEST
    try:
        return len(sweep(blocks, [group], heads)) - 1
    except ValueError:
        return group.draws


def known_samples(family: Family) -> int:
    """Samples of a fetched family, or an upper bound for a user's file (a token is at least one
    byte); 0 for a generated corpus, whose samples are few.
    """
    source = family.samples
    if isinstance(source, File):
        with suppress(OSError):  # the stage that reads the file reports the error
            size = Path(source.path).stat().st_size
            return size // (family.prefix_length + family.suffix_length)
    return source.n_memorized + source.control.n if isinstance(source, Pile | Pythia) else 0
