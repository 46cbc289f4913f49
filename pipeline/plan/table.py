"""The plan of a study: what each stage downloads, computes and stores, and what is done already.

All numbers are rough. Without the hub, sizes are estimated (~) or unknown, and nothing fails.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil
from huggingface_hub import constants

from pipeline.checkpoints.manifest import BYTES
from pipeline.checkpoints.schema import Hub
from pipeline.plan.cost import START_SECONDS, Costs
from pipeline.plan.downloads import Fetch, amount, fetch_of
from pipeline.plan.scheduling import EVALUATE
from pipeline.study.loops import model_key
from pipeline.study.schema import Study
from pipeline.workflow.dag import Dag, Stage
from pipeline.workflow.device import visible
from pipeline.workflow.network import online

ROW_BYTES, DOCUMENT_BYTES = 80, 8
"""Of a row of memorization, and of a document of a benchmark under an intervention; doubled."""

COPIES = 2
"""Of every table: in the working tree, and in DVC's cache, which shares them where it can."""


@dataclass(frozen=True)
class Row:
    """One stage.

    Args:
        stage: its name and that of its model, family or experiment.
        fetch: its downloads.
        operations: FLOPs.
        seconds: its time here.
        stored: bytes of its outputs; small ones are not counted.
        fresh: whether it is done.
    """

    stage: str
    fetch: Fetch
    operations: float = 0
    seconds: float = 0
    stored: float = 0
    fresh: bool = False

    @property
    def state(self) -> str:
        """``done`` or ``to do``, with the amount of its downloads that is cached."""
        if self.fresh:
            return "done"
        if self.fetch.cached <= 0.01 * (self.fetch.cached + self.fetch.missing):
            return "to do"  # a cached config.json alone is negligible
        cached = "cached" if not self.fetch.missing else "partly cached"
        return f"to do; {cached}: {amount(self.fetch.cached, 'B')}"

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        work = ("-", "-", "-")
        if not self.fresh:
            flops = amount(self.operations, "FLOP") if self.operations else "-"
            work = (str(self.fetch), flops, duration(self.seconds))
        stored = amount(self.stored, "B") if self.stored else "-"
        return (self.stage, *work, stored, self.state)


@dataclass(frozen=True)
class Plan:
    """The plan of a study.

    Args:
        rows: stage by stage.
        device: ``cuda`` or ``cpu``.
        memory: model -> bytes of the weights that its evaluations need; those with work to do.
        asked: whether the hub was asked.
        estimated: the models whose shape is told from their size alone.
    """

    rows: list[Row]
    device: str
    memory: dict[str, float]
    asked: bool
    estimated: list[str]

    def __str__(self) -> str:
        """The table, the totals and the notes, as plain text."""
        head = ("stage", "fetch", "compute", "time here", "stored", "state")
        cells = [head, *(row.cells for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(width) if i in (0, len(head) - 1) else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in cells
        ]
        return "\n".join([*lines, "", *self._totals(), "", *self._notes()])

    def _totals(self) -> list[str]:
        todo = [row for row in self.rows if not row.fresh]
        unknown = sorted({repo for row in todo for repo in row.fetch.unknown})
        about = "~" if any(row.fetch.estimated for row in todo) else ""
        fetched = sum(row.fetch.missing for row in todo)
        stored = COPIES * sum(row.stored for row in todo)
        plus = f" + {len(unknown)} unknown" if unknown else ""
        lines = [
            f"jobs      {len(todo)} of {len(self.rows)} to do",
            f"download  {about}{amount(fetched, 'B')}{plus}",
            f"disk      {about}{amount(fetched, 'B')}{plus} in {constants.HF_HUB_CACHE}, "
            + _room(fetched, _free(constants.HF_HUB_CACHE)),
            f"          {amount(stored, 'B')} here, " + _room(stored, _free(".")),
            f"compute   {amount(sum(row.operations for row in todo), 'FLOP')}",
            f"time      {duration(sum(row.seconds for row in todo))} on one device, if all "
            "bypassed rows are decoded; downloads not counted",
        ]
        if self.memory:
            model = max(self.memory, key=self.memory.__getitem__)
            lines.append(
                f"memory    {amount(self.memory[model], 'B')} of weights for {model}, the largest, "
                + _room(self.memory[model], free_memory(self.device))
            )
        return [*lines, *(["unknown   " + ", ".join(unknown)] if unknown else [])]

    def _notes(self) -> list[str]:
        notes = [
            "Times are rough: from what this study's stages took here, else from a usual "
            + ("GPU." if self.device == "cuda" else "processor core.")
        ]
        if not self.asked:
            notes.append("The hub was not asked (no network, or HF_HUB_OFFLINE): ~ is a guess.")
        if self.estimated:
            notes.append(f"Shapes by size alone: {', '.join(self.estimated)}.")
        return notes


def plan(study: Study, dag: Dag) -> Plan:
    """The plan of the study in force.

    Args:
        study: in force.
        dag: its stages.
    """
    device = "cuda" if visible() else "cpu"
    asked, costs = online(), Costs(study)
    order = list(dag.declared)
    stages = sorted(dag.stages.values(), key=lambda stage: order.index(stage.group))
    rows = [_row(study, costs, asked, dag.stale, device, stage) for stage in stages]
    todo = {stage.address for stage in stages if stage.address in dag.stale}
    busy = {model_key(address) for address in todo if address.partition("@")[0] in EVALUATE}
    models = {key: model for key, model in study.models.items() if key in busy}
    return Plan(
        rows,
        device,
        {model.name: costs.weight_bytes(model) for model in models.values()},
        asked or not any(isinstance(m.checkpoint, Hub) for m in study.models.values()),
        [m.name for m in study.models.values() if costs.size(m.name).estimated],
    )


def _row(
    study: Study,
    costs: Costs,
    asked: bool,
    stale: frozenset[str],
    device: str,
    stage: Stage,
) -> Row:
    group, key = stage.group, model_key(stage.address)
    entry = {**study.families, **study.theory, **study.models}.get(key)
    part = stage.address.partition(f"@{key}-")[2]
    name = " ".join(filter(None, (group, entry.name if entry else "", part)))
    if stage.address not in stale:
        held = sum(_size(Path(out)) for out in stage.outs)
        return Row(name, Fetch(), stored=held, fresh=True)
    fetch = fetch_of(study, stage, asked)
    model = study.models.get(key)
    if model is None:
        return Row(name, fetch, 0, START_SECONDS, fetch.missing + fetch.cached)
    stored = 0.0
    if group == "memorization":
        stored = ROW_BYTES * costs.interventions(model) * costs.samples(model.family)
    elif group == "benchmarks":
        documents = sum(costs.task_tokens().values()) / 100
        stored = DOCUMENT_BYTES * costs.interventions(model) * documents
    elif group == "checkpoint" and model.trained:
        stored = costs.size(model.name).parameters * BYTES["float32"]
    operations = costs.operations(group, model)
    spent = costs.seconds(group, model, "cpu" if group == "checkpoint" else device)
    small = group not in EVALUATE and not operations
    return Row(name, fetch, operations, START_SECONDS if small else spent, stored)


def free_memory(device: str) -> float:
    """Free bytes of this machine's memory, or of its GPU."""
    if device == "cuda":
        import torch

        return float(torch.cuda.mem_get_info()[0])
    return float(psutil.virtual_memory().available)


def duration(seconds: float) -> str:
    """Seconds in a readable unit, such as ``3.5 h``."""
    for limit, size, unit in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds / 86_400:.3g} days"


def _room(needed: float, free: float) -> str:
    return f"of {amount(free, 'B')} free" + ("" if needed <= free else ": TOO LITTLE")


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _free(path: str) -> int:
    where = Path(path).absolute()
    return shutil.disk_usage(next(p for p in (where, *where.parents) if p.exists())).free
