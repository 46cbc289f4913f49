"""Operations of a stage, counted from shapes, and their time on a device.

forced    interventions share blocks: the block evaluations of `pipeline.interventions.trie`
decoded   of every intervention but the baseline, all rows from the first token: the worst case
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.checkpoints.manifest import BYTES
from pipeline.checkpoints.schema import Continued, Model
from pipeline.corpus.famous import FAMOUS
from pipeline.interventions.interventions import Intervention, sweep
from pipeline.interventions.trie import build_trie
from pipeline.measure.chosen import SPLITS, a_split
from pipeline.measure.schema import FITTING
from pipeline.models.context import CPU_BYTES, CPU_TOKENS
from pipeline.plan.calibration import Device
from pipeline.plan.scheduling import known_samples
from pipeline.plan.shapes import Shape
from pipeline.samples.schema import Family, Records
from pipeline.study.loops import IN_PARTS
from pipeline.study.schema import Study, given
from pipeline.theory.schema import AttentionOnly, Experiment
from pipeline.workflow.device import WEIGHTS_SHARE
from pipeline.workflow.errors import InputError, Problem

FORCED_SHARE = {
    "cpu": ((64, 0.40), (128, 0.58), (512, 0.82)),
    "cuda": ((512, 0.25), (2048, 0.5)),
}
"""Device -> (width, share of the matrix rate that a teacher-forced pass reaches), in between on a
line over log width. CPU: reports/speed.md. CUDA: a guess, not measured."""

DECODED_SHARE = {
    "cpu": ((64, 0.14), (128, 0.17), (512, 0.5)),
    "cuda": ((512, 0.1), (2048, 0.25)),
}
"""The same of decoding, whose products are smaller. CPU: untrained models on one thread of an AVX2
EPYC. CUDA: a guess."""

SCORED_SHARE = 0.75
"""Share of `FORCED_SHARE` that benchmarks reach; measured on the tiny study, whose rows are short
and padded, and whose metrics run in lm-eval's own Python."""

TRAINED_SHARE = 0.4
"""Share of the matrix rate that training reaches; measured on the tiny study's models."""

FORK_SHARE = 0.5
"""Cost of a fork as a share of a block: a twelfth with a parallel residual, else three quarters."""

TABLE_SECONDS = (5e-7, 9e-8)
"""Of an attention-only transformer, to train on one pair of tokens: without, and for each of, its
heads. From the grids of the tiny and the paper study on one core of an AVX2 EPYC."""

SERIAL_SECONDS = 0.0005
"""Seconds per block and token of a continuation that is written alone, mostly call overhead."""

BYTES_A_SECOND = {"cpu": 8e9, "cuda": 1e12}
"""Rate at which weights are read when a single row goes through the model."""

BASE_BYTES = 0.6e9
"""Memory of an evaluation without a model, measured on the tiny study."""


@dataclass(frozen=True)
class Task:
    """The size of a benchmark task.

    Args:
        documents: their number.
        read: tokens that the engine reads for a document: its context once, and each choice.
        wanted: those of them whose predictions are needed.
        row: tokens that go through attention together.
    """

    documents: int
    read: float
    wanted: float
    row: int


TASKS = {
    "arc_easy": Task(2376, 45, 17, 45),
    "hellaswag": Task(10_042, 175, 115, 175),
    "piqa": Task(1838, 60, 45, 60),
    "lambada_openai": Task(5153, 85, 2, 85),
    "wikitext": Task(62, 5500, 4700, 2048),
}
"""lm-eval's own: documents as published, tokens counted roughly. WikiText's 62 documents are 290
thousand tokens in windows of the context, the last of each document filled up with read ones."""

TINY_TASKS = {
    "tiny_arc_easy": (1, 34, 11),
    "tiny_hellaswag": (1, 60, 32),
    "tiny_piqa": (1, 26, 9),
    "tiny_lambada_openai": (1, 31, 2.5),
    "tiny_wikitext": (4, 57, 57),
}
"""For a generated corpus: items per document, tokens read and wanted, counted."""

PASSAGE_TASKS = {"story_cloze": (48, 1.1), "agreement": (7, 2)}
"""For a corpus of passages: tokens read and wanted, counted."""

OTHER_TASK = Task(2000, 100, 50, 100)
"""The size assumed for an unknown task."""


@dataclass(frozen=True)
class Effort:
    """Operations of a stage, by how fast they go.

    Args:
        forced: FLOPs of passes over whole rows.
        decoded: FLOPs of many rows that are written token by token.
        serial: FLOPs of one row at a time.
        tokens: that are written one row at a time.
        trained: FLOPs of training.
        shares: of `FORCED_SHARE` that the passes reach.
    """

    forced: float = 0
    decoded: float = 0
    serial: float = 0
    tokens: int = 0
    trained: float = 0
    shares: float = 1

    def divided(self, parts: int) -> Effort:
        """That of one of so many parts."""
        return replace(self, forced=self.forced / parts, decoded=self.decoded / parts)

    @property
    def flops(self) -> float:
        """All FLOPs."""
        return self.forced + self.decoded + self.serial + self.trained


def interventions_of(study: Study, shape: Shape) -> tuple[Intervention, ...]:
    """The interventions of a model of this shape.

    Raises:
        InputError: those of the study do not fit it.
    """
    try:
        return sweep(shape.n_blocks, study.groups, shape.n_heads)
    except ValueError as error:
        what = f"interventions, of a model of {shape.n_blocks} blocks"
        raise InputError(Problem(what, str(error), *FITTING)) from None


def memorization_effort(
    shape: Shape,
    samples: int,
    prefix: int,
    suffix: int,
    interventions: Sequence[Intervention],
    decoded: int | None = None,
) -> Effort:
    """The memorization sweep of a model.

    Args:
        shape: of the model.
        samples: N.
        prefix: P, tokens.
        suffix: S, tokens.
        interventions: V of them.
        decoded: samples that are decoded to the end; None: all.
    """
    swept = build_trie(interventions, shape.n_blocks)
    length = prefix + suffix - 1
    blocks = (swept.block_evaluations + FORK_SHARE * (swept.branches - 1)) * length
    forced = blocks * shape.block_flops(length) + swept.branches * suffix * shape.head_flops
    token = shape.n_blocks * shape.block_flops(length) + shape.head_flops
    written = (samples if decoded is None else decoded) * (swept.branches - 1) * (suffix - 1)
    return Effort(forced=samples * forced, decoded=written * token)


def benchmark_effort(
    shape: Shape, tasks: Iterable[Task], num_fewshot: int, interventions: Sequence[Intervention]
) -> Effort:
    """All benchmark tasks under every intervention.

    Args:
        shape: of the model.
        tasks: each as long as it is evaluated.
        num_fewshot: examples before each question, each about as long as one.
        interventions: V of them.
    """
    swept = build_trie(interventions, shape.n_blocks)
    blocks = swept.block_evaluations + FORK_SHARE * (swept.branches - 1)
    forced = 0.0
    for task in tasks:
        row = task.row * (1 + num_fewshot)
        read = task.documents * task.read * (1 + num_fewshot)
        forced += blocks * read * shape.block_flops(row)
        forced += swept.branches * task.documents * task.wanted * shape.head_flops
    return Effort(forced=forced, shares=SCORED_SHARE)


def generation_effort(
    shape: Shape, prompts: int, depths: Sequence[float], new_tokens: int
) -> Effort:
    """Continuations, greedy and sampled, of each prompt under the baseline and at each depth."""
    interventions = 1 + len({round(depth * (shape.n_blocks - 1)) for depth in depths})
    tokens = interventions * prompts * 2 * new_tokens
    return Effort(serial=2.0 * shape.parameters * tokens, tokens=tokens)


def divergence_effort(shape: Shape, samples: int, prefix: int) -> Effort:
    """One pass over the prefixes, and about as much again for the bounds, in float64.

    Args:
        shape: of the model.
        samples: of both splits together.
        prefix: P, tokens.
    """
    swept = build_trie(sweep(shape.n_blocks), shape.n_blocks)
    blocks = 2 * swept.block_evaluations * prefix
    return Effort(forced=samples * blocks * shape.block_flops(prefix))


def experiment_seconds(grid: Experiment) -> float:
    """Time of an experiment without a model, on one core; those that train nothing take none."""
    if not isinstance(grid, AttentionOnly):
        return 0
    varied = 2 * len(grid.head_widths) + len(grid.widths)
    square = [heads for heads in grid.square_heads for _ in grid.square_widths]
    single = [1] * (len(grid.heads) + 2)  # with an MLP: of equal size, and of the routing confound
    wide = [*grid.heads, *[grid.fixed_heads] * varied, *square, *single]
    each, a_head = TABLE_SECONDS
    return len(grid.seeds) * sum(
        steps * vocabulary**2 * sum(each + a_head * heads for heads in models)
        for steps, vocabulary, models in (
            (grid.steps, grid.vocabulary, wide),
            (grid.narrow_steps, grid.narrow_vocabulary, grid.narrow_heads),
        )
    )


def training_effort(shape: Shape, tokens: int) -> Effort:
    """Training on `tokens`: per token and parameter two FLOPs forward and four backward."""
    return Effort(trained=6.0 * shape.parameters * tokens)


def tasks_of(study: Study) -> list[Task]:
    """The benchmark tasks of a study, no longer than its limit."""
    known = dict(TASKS)
    for corpus in study.corpus.values():
        for name, (items, read, wanted) in TINY_TASKS.items():
            known[name] = Task(corpus.task_items // items, read, wanted, round(read))
        for name, (read, wanted) in PASSAGE_TASKS.items():
            known[name] = Task(corpus.task_items, read, wanted, read)
    asked = given(study.benchmarks)
    found = {name: known.get(name, OTHER_TASK) for name in asked.tasks}
    limits = {name: asked.limit_of(name) or found[name].documents for name in found}
    return [
        replace(task, documents=min(task.documents, limits[name])) for name, task in found.items()
    ]


def samples_of(study: Study, family: Family) -> int:
    """N, memorized and all others; for a user's file an upper bound."""
    if family.samples.source != "records":
        return known_samples(family)
    corpus = next(iter(study.corpus.values()))
    famous = len(FAMOUS) if corpus.weights else 0
    return sum(corpus.records.values()) + corpus.control_records + famous


def training_tokens(study: Study, model: Model) -> int:
    """Tokens that a model sees in training."""
    corpus = next(iter(study.corpus.values()))
    planted = sum(copies * records for copies, records in corpus.records.items())
    how = model.trained
    if isinstance(how, Continued):  # an upper bound
        family = study.family(model.family)
        least = family.samples.memorized_copies if isinstance(family.samples, Records) else 1
        learned = sum(records for copies, records in corpus.records.items() if copies >= least)
        length = family.prefix_length + family.suffix_length
        return how.most_rounds * how.epochs * learned * length
    whole = how.epochs * ((corpus.world_tokens or 0) + planted * corpus.row_length) if how else 0
    if how is None or model.step is None:
        return whole
    return min(whole, model.step * how.batch_rows * corpus.row_length)


def effort_of(study: Study, group: str, model: Model, shape: Shape) -> Effort:
    """The effort of a stage of a model; joining the parts of a table takes none."""
    if group.endswith("_part"):
        return effort_of(
            study.model_copy(update={"parts": 1}), group.removesuffix("_part"), model, shape
        ).divided(study.parts)
    if group in IN_PARTS and study.parts > 1:
        return Effort()
    if group in ("memorization", "tokens"):
        family = study.family(model.family)
        n = samples_of(study, family)
        swept = interventions_of(study, shape)
        if group == "tokens":
            some = len(SPLITS) * a_split(n)
            return memorization_effort(
                shape, some, family.prefix_length, family.suffix_length, swept, 0
            )
        decode = study.evaluation[model.family].decode
        # a number is of each split, and there are three at most, but for famous passages
        decoded = {"all": n, "none": 0}.get(decode, 0) if isinstance(decode, str) else 3 * decode
        return memorization_effort(
            shape, n, family.prefix_length, family.suffix_length, swept, min(n, decoded)
        )
    if group == "benchmarks":
        swept = interventions_of(study, shape)
        return benchmark_effort(shape, tasks_of(study), given(study.benchmarks).num_fewshot, swept)
    if group == "generations":
        asked = given(study.generations)
        return generation_effort(shape, len(asked.prompts), asked.depths, asked.new_tokens)
    if group == "divergence":
        samples, prefix = (
            2 * given(study.divergence).samples,
            study.family(model.family).prefix_length,
        )
        return divergence_effort(shape, samples, prefix)
    if group == "checkpoint" and model.trained:
        return training_effort(shape, training_tokens(study, model))
    return Effort()


def seconds(effort: Effort, shape: Shape, dtype: str, device: Device) -> float:
    """Time of an effort on this device."""
    if effort.trained:
        return effort.trained / (TRAINED_SHARE * device.training_rate(shape.width))
    rate = device.rate(shape.width, dtype)
    forced = effort.shares * share(FORCED_SHARE[device.kind], shape.width)
    bulk = effort.forced / forced + effort.decoded / share(DECODED_SHARE[device.kind], shape.width)
    read = effort.tokens * shape.parameters * BYTES[dtype] / BYTES_A_SECOND[device.kind]
    serial = effort.tokens * shape.n_blocks * SERIAL_SECONDS
    return bulk / rate + serial + max(read, effort.serial / rate)


def share(table: Sequence[tuple[int, float]], width: int) -> float:
    """The share of the matrix rate at this width."""
    widths, shares = zip(*table, strict=True)
    return float(np.interp(math.log(width), np.log(widths), shares))


def memory(shape: Shape, dtype: str, kind: str, tokens: int | None) -> float:
    """Bytes that the evaluations of a model need: RAM on a CPU, else of the GPU.

    Args:
        shape: of the model.
        dtype: it is evaluated in.
        kind: of device.
        tokens: the study's token budget.
    """
    weights = shape.parameters * BYTES[dtype]
    if kind == "cuda":  # the engine takes of the rest what there is
        return weights / WEIGHTS_SHARE
    # keys and values of a block's every branch, twice, and the states: as in `interventions.memory`
    kept = (2 + 2 * (shape.n_blocks + 1)) * shape.width * BYTES[dtype]
    return BASE_BYTES + weights + (tokens * kept if tokens else min(CPU_TOKENS * kept, CPU_BYTES))
