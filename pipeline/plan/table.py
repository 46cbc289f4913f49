"""The plan of a study: downloads, operations, time and storage of each stage.

All numbers are estimates. Work is counted from shapes and converted to time by this device's rate
of matrix products (`calibration`) and the measured share of it that the engine reaches. Without the
hub, sizes are estimated (~) or unknown, and nothing fails.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from huggingface_hub import constants

from pipeline.checkpoints.manifest import BYTES
from pipeline.checkpoints.schema import Hub, Model
from pipeline.plan.calibration import Device, this_device
from pipeline.plan.downloads import Downloads, Fetch, online, pile_bytes, wants
from pipeline.plan.effort import (
    Effort,
    effort_of,
    experiment_seconds,
    interventions_of,
    memory,
    samples_of,
    seconds,
    tasks_of,
)
from pipeline.plan.scheduling import EVALUATE, LOAD_MINUTES
from pipeline.plan.shapes import Shape, shape_of
from pipeline.plan.words import amount, duration
from pipeline.samples.schema import Family
from pipeline.study.loops import model_key
from pipeline.study.schema import Study, given
from pipeline.theory.schema import Experiment
from pipeline.workflow.dag import FIRST, Dag, Stage

START_SECONDS = 15
"""Seconds of an evaluation to import torch and lm-eval, and for DVC."""

OTHERS = {
    "check": (2, 100),
    "corpus": (7, 800_000),
    "samples": (30, 0),
    "datasets": (20, 0),
    "checkpoint": (10, 4_000),
    "theory": (10, 60_000),
    "interventions": (3, 4_000),
    "check_results": (10, 1_000),
    "aggregate": (60, 40_000),
    "figures": (60, 3_000_000),
    "report": (20, 3_000_000),
}
"""Group -> seconds and bytes that are not counted from shapes; rough, from the tiny study."""

MEMORIZATION_BYTES = (18, 2)
"""Of a row of the table: without, and for each token of, its continuation. From the tiny study; a
large vocabulary takes a second byte a token."""

DOCUMENT_BYTES = 8
"""Of a document under an intervention: some three metrics. From the tiny study, doubled."""

SAMPLE_BYTES = (10, 2)
"""Of a sample: without, and for each of, its tokens."""

COPIES = 2
"""Of every table: in the working tree, and in DVC's cache, which shares them where it can."""


@dataclass(frozen=True)
class Row:
    """One stage.

    Args:
        stage: its address, without the study's name.
        fetch: its downloads.
        flops: its operations.
        seconds: its time here.
        at_best: the same, if no row decodes.
        stored: bytes of its outputs; NaN where unknown.
        fresh: whether it is done.
    """

    stage: str
    fetch: Fetch
    flops: float
    seconds: float
    at_best: float
    stored: float
    fresh: bool

    @property
    def state(self) -> str:
        """``done`` or ``to do``, with the amount of its downloads that is cached."""
        if self.fresh:
            return "done"
        if self.fetch.cached <= 0.01 * (self.fetch.cached + self.fetch.missing):
            return "to do"  # a cached config.json alone is negligible
        there = "cached" if not self.fetch.missing else "partly cached"
        return f"to do; {there}: {amount(self.fetch.cached, 'B')}"


@dataclass(frozen=True)
class Outlook:
    """The plan of a study.

    Args:
        rows: stage by stage.
        device: the device of the estimated times.
        memory: model -> bytes that its evaluations need; only models with evaluations to do.
        notes: further remarks.
    """

    rows: list[Row]
    device: Device
    memory: dict[str, float]
    notes: list[str]

    def __str__(self) -> str:
        """The table, the totals and the notes, as plain text."""
        head = ("stage", "fetch", "compute", "time here", "stored", "state")
        cells = [head, *map(_cells, self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(width) if i in (0, len(head) - 1) else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in cells
        ]
        return "\n".join([*lines, "", *self._totals(), *self.notes])

    def _totals(self) -> list[str]:
        todo = [row for row in self.rows if not row.fresh]
        unknown = sorted({repo for row in todo for repo in row.fetch.unknown})
        about = "~" if any(row.fetch.estimated for row in todo) else ""
        fetched = sum(row.fetch.missing for row in todo)
        stored = COPIES * sum(row.stored for row in todo if not math.isnan(row.stored))
        spent, least = (sum(getattr(row, a) for row in todo) for a in ("seconds", "at_best"))
        plus = f" + {len(unknown)} unknown" if unknown else ""
        took = f"{duration(spent)} on one device"
        if duration(least) != duration(spent):
            took += f" if all bypassed rows decode, {duration(least)} if none does"
        lines = [
            f"jobs      {len(todo)} of {len(self.rows)} to do",
            f"download  {about}{amount(fetched, 'B')}{plus}",
            f"disk      {about}{amount(fetched, 'B')}{plus} in {constants.HF_HUB_CACHE}, "
            + _room(fetched, _free(constants.HF_HUB_CACHE)),
            f"          {amount(stored, 'B')} here, " + _room(stored, _free(".")),
            f"compute   {amount(sum(row.flops for row in todo), 'FLOP')}",
            f"time      {took}; downloads not counted",
        ]
        if self.memory:
            model = max(self.memory, key=self.memory.__getitem__)
            needed = self.memory[model]
            what = "GPU memory" if self.device.kind == "cuda" else "memory"
            lines.append(
                f"memory    {amount(needed, 'B')} of {what} for {model}, the largest, "
                + _room(needed, self.device.free_bytes)
            )
        if unknown:
            lines.append("unknown   " + ", ".join(unknown))
        return lines


def outlook(study: Study, dag: Dag, device: Device | None = None) -> Outlook:
    """The plan of the study in force.

    Args:
        study: in force.
        dag: its stages.
        device: to compute on; None: the one that an evaluation would take.
    """
    here = device or this_device(study.run.threads)
    asked = online()
    shapes = {key: shape_of(study, model, asked) for key, model in study.models.items()}
    downloads = Downloads(asked)
    order = list(dag.declared)
    stages = sorted(
        (stage for stage in dag.stages.values() if stage.group not in FIRST),
        key=lambda stage: order.index(stage.group),
    )
    row = partial(_row, study, shapes, here, downloads, dag.stale)
    rows = [row(stage) for stage in stages]
    todo = [stage for stage in stages if stage.address in dag.stale]
    busy = {model_key(stage.address) for stage in todo if stage.group in EVALUATE}
    needed = {
        model.name: memory(
            shapes[key], study.evaluation[model.family].dtype, here.kind, study.run.token_budget
        )
        for key, model in study.models.items()
        if key in busy
    }
    return Outlook(rows, here, needed, _notes(study, shapes, here, asked, busy))


def _row(
    study: Study,
    shapes: Mapping[str, Shape],
    device: Device,
    downloads: Downloads,
    stale: frozenset[str],
    stage: Stage,
) -> Row:
    key = model_key(stage.address)
    entries: Mapping[str, Family | Model | Experiment] = {
        **study.families,
        **study.models,
        **study.theory,
    }
    name = f"{stage.group} {entries[key].name}" if key in entries else stage.group
    if part := stage.address.partition(f"@{key}-")[2]:
        name = f"{name} {part}"
    if stage.address not in stale:
        held = sum(_size(Path(out)) for out in stage.outs)
        return Row(name, Fetch(), 0, 0, 0, held, fresh=True)
    fetch = downloads.of(wants(study, stage))
    if stage.group == "samples":
        missing, here = pile_bytes(study, stage)
        fetch.missing += missing
        fetch.cached += here
    least, few = OTHERS.get(stage.group, (START_SECONDS, 0))
    stored = few + _stored(study, stage, shapes, fetch)
    effort, spent, at_best = Effort(), float(least), float(least)
    if key in study.theory:
        spent = at_best = least + experiment_seconds(study.theory[key])
    if key in study.models:
        model, shape = study.models[key], shapes[key]
        effort = effort_of(study, stage.group, model, shape)
        if stage.group in EVALUATE:
            spent += LOAD_MINUTES * 60 * model.billions
        timed: Callable[[Effort], float] = partial(
            seconds, shape=shape, dtype=study.evaluation[model.family].dtype, device=device
        )
        at_best = spent
        if effort.flops:
            at_best += timed(replace(effort, decoded=0))
            spent += timed(effort)
    return Row(name, fetch, effort.flops, spent, at_best, stored, fresh=False)


def _stored(study: Study, stage: Stage, shapes: Mapping[str, Shape], fetch: Fetch) -> float:
    """Bytes of a stage's outputs beyond its `OTHERS`."""
    key = stage.address.partition("@")[2]
    if stage.group == "datasets":
        return math.nan if fetch.unknown else fetch.missing + fetch.cached
    if stage.group == "samples":
        family = study.families[key]
        fixed, each = SAMPLE_BYTES
        length = family.prefix_length + family.suffix_length
        return samples_of(study, family) * (fixed + each * length)
    if key not in study.models:
        return 0
    model, shape = study.models[key], shapes[key]
    interventions = len(interventions_of(study, shape))
    if stage.group == "memorization":
        family = study.family(model.family)
        fixed, each = MEMORIZATION_BYTES
        rows = interventions * samples_of(study, family)
        return rows * (fixed + each * family.suffix_length)
    if stage.group == "benchmarks":
        return interventions * sum(t.documents for t in tasks_of(study)) * DOCUMENT_BYTES
    if stage.group == "divergence":
        pairs = shape.n_blocks * (shape.n_blocks + 3) // 2
        return 2 * given(study.divergence).samples * (pairs * 20 + shape.n_blocks * 300)
    if stage.group == "checkpoint" and model.trained:
        return shape.parameters * BYTES["float32"]
    return 4_000


def _notes(
    study: Study, shapes: Mapping[str, Shape], device: Device, asked: bool, busy: set[str]
) -> list[str]:
    measured = "within a factor of about 2 where it was checked, the tiny study on a CPU"
    if device.kind == "cuda":
        measured = "a guess on a GPU, whose efficiency was not measured"
    notes = ["", f"Estimates; times are for {device.name}: {measured}."]
    if not asked and any(isinstance(model.checkpoint, Hub) for model in study.models.values()):
        notes.append("The hub was not asked (no network, or HF_HUB_OFFLINE): ~ is from `billions`.")
    guessed = [study.models[key].name for key, each in shapes.items() if each.source == "size"]
    if guessed:
        notes.append(f"Shapes by size alone: {', '.join(guessed)}.")
    if study.datasets and busy:
        notes.append("Benchmarks: sizes as published, tokens counted roughly.")
    for dtype in sorted({study.evaluation[study.models[key].family].dtype for key in busy}):
        if device.kind == "cuda" or dtype == "float32":
            continue
        width = min(shapes[key].width for key in busy)
        half, full = device.rate(width, dtype), device.rate(width, "float32")
        if half < full / 2:
            notes.append(
                f"{dtype} is {full / half:.0f} times as slow as float32 on this CPU: set dtype "
                "float32 under evaluation in params.yaml, or take a GPU."
            )
    return notes


def _cells(row: Row) -> tuple[str, ...]:
    if row.fresh:
        return (row.stage, "-", "-", "-", amount(row.stored, "B"), row.state)
    flops = amount(row.flops, "FLOP") if row.flops else "-"
    return (
        row.stage, str(row.fetch), flops, duration(row.seconds), amount(row.stored, "B"), row.state
    )  # fmt: skip


def _room(needed: float, free: float) -> str:
    return f"of {amount(free, 'B')} free" + ("" if needed <= free else ": TOO LITTLE")


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _free(path: str) -> int:
    where = Path(path).absolute()
    return shutil.disk_usage(next(p for p in (where, *where.parents) if p.exists())).free
