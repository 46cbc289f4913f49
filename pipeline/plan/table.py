"""The plan of a study: what each stage downloads, computes and stores, and what is done already.

All numbers are rough. Without the hub, sizes are estimated (~) or unknown, and nothing fails.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx
from huggingface_hub import constants

from pipeline.checkpoints.manifest import BYTES
from pipeline.checkpoints.schema import Hub, Model
from pipeline.interventions.interventions import is_own
from pipeline.plan.cost import START_SECONDS, Costs
from pipeline.plan.downloads import amount, wants
from pipeline.study.loops import parsed
from pipeline.study.schema import Study
from pipeline.workflow.dag import Dag, Stage
from pipeline.workflow.device import free_bytes, visible
from pipeline.workflow.errors import bad_input
from pipeline.workflow.files import bytes_of, free_on_disk
from pipeline.workflow.network import online
from pipeline.workflow.progress import duration
from pipeline.workflow.shards import GPU_RATES

ROW_BYTES, DOCUMENT_BYTES = 80, 8
"""Of a row of memorization, and of a document of a benchmark under an intervention; doubled."""

MITIGATION_SECONDS = 60
"""Of a method on a small model, the only kind that is edited so."""

COPIES = 2
"""Of every table: in the working tree, and in DVC's cache, which shares them where it can."""

HEAD = ("stage", "fetch", "compute", "time", "stored", "state")

ON = {name: name for name in GPU_RATES} | {"slurm": "a100"}
"""Other machines that a plan can be for -> their GPU. On `slurm`, jobs run side by side."""

GPU_MEMORY = 80e9
"""Bytes, of each of these GPUs."""


@dataclass
class Row:
    """One stage, by its address and the name of its model, family or experiment.

    `missing` bytes are to be downloaded, perhaps `estimated`, `cached` ones are there; the size of
    `unknown` repositories is not. `operations` are FLOPs, `seconds` its time here, and `stored` the
    bytes of its outputs; small ones are not counted.
    """

    address: str
    stage: str
    fresh: bool = False
    missing: float = 0
    cached: float = 0
    estimated: bool = False
    unknown: list[str] = field(default_factory=list)
    operations: float = 0
    seconds: float = 0
    stored: float = 0

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of `HEAD`."""
        stored = amount(self.stored, "B") if self.stored else "-"
        if self.fresh:
            return (self.stage, "-", "-", "-", stored, "done")
        known = f"{'~' * self.estimated}{amount(self.missing, 'B')}" if self.missing else ""
        fetch = " + ".join(filter(None, (known, "unknown" if self.unknown else ""))) or "-"
        flops = amount(self.operations, "FLOP") if self.operations else "-"
        state = "to do"
        if self.cached > 0.01 * (self.cached + self.missing):  # not a config.json alone
            part = "partly cached" if self.missing else "cached"
            state = f"to do; {part}: {amount(self.cached, 'B')}"
        return (self.stage, fetch, flops, duration(self.seconds), stored, state)


def plan(study: Study, dag: Dag, on: str | None = None) -> str:
    """The plan of the study in force as plain text: table, totals and notes.

    It is for one of the machines `ON`; None: this one.

    Raises:
        InputError: no such machine.
    """
    if on is not None and on not in ON:
        raise bad_input("--on", on, "one of " + ", ".join(ON), "name one, or leave it out")
    device, costs = ON[on] if on else "cuda" if visible() else "cpu", Costs(study)
    made = rows(study, dag, costs, device)
    cells = [HEAD, *(row.cells for row in made)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip("<>>>><", widths, strict=True))
    lines = [line.format(*each).rstrip() for each in cells]
    todo = [row for row in made if not row.fresh]
    unknown = sorted({repo for row in todo for repo in row.unknown})
    fetched, stored = sum(row.missing for row in todo), COPIES * sum(row.stored for row in todo)
    about = "~" if any(row.estimated for row in todo) else ""
    more = f" + {len(unknown)} unknown" if unknown else ""
    download, hub = f"{about}{amount(fetched, 'B')}{more}", constants.HF_HUB_CACHE
    lines += [
        "",
        f"jobs      {len(todo)} of {len(made)} to do",
        f"download  {download}",
        f"disk      {download} in {hub}, {_room(fetched, free_on_disk(hub))}",
        f"          {amount(stored, 'B')} here, {_room(stored, free_on_disk('.'))}",
        f"compute   {amount(sum(row.operations for row in todo), 'FLOP')}",
        f"time      {_time(dag, made, on)}, if all bypassed rows are decoded; downloads not "
        "counted",
    ]
    running = {parsed(address)[1] for address in dag.stale} & set(study.models)
    if running:
        largest = max((study.models[key] for key in running), key=costs.weight_bytes)
        needed = costs.weight_bytes(largest)
        room = _room(needed, GPU_MEMORY if on else free_bytes(device))
        weights = f"{amount(needed, 'B')} of weights for {largest.name}"
        lines.append(f"memory    {weights}, the largest, {room}")
    if unknown:
        lines.append("unknown   " + ", ".join(unknown))
    usual = "GPU" if device == "cuda" else "processor core"
    here = f"Times are rough: from what this study's stages took here, else from a usual {usual}."
    lines += ["", *(_assumed() if on else [here])]
    if not online() and any(isinstance(m.checkpoint, Hub) for m in study.models.values()):
        lines.append("The hub was not asked (no network, or HF_HUB_OFFLINE): ~ is a guess.")
    own = sorted({str(one.edit) for one in study.interventions if is_own(one.edit)})
    if own := own + (study.localization.scorers if study.localization else []):
        lines.append(f"Code of this project that will run: {', '.join(own)}.")
    if sized := [m.name for m in study.models.values() if costs.size(m.name).estimated]:
        lines.append(f"Shapes by size alone: {', '.join(sized)}.")
    return "\n".join(lines)


def _time(dag: Dag, made: Sequence[Row], on: str | None) -> str:
    """All stages one after the other; on a cluster the chain of them that takes longest."""
    if on != "slurm":
        return f"{duration(sum(row.seconds for row in made))} on one {on or 'device'}"
    ends, seconds = dict[str, float](), {row.address: row.seconds for row in made}
    for address in networkx.topological_sort(dag.graph):
        before = max((ends[up] for up in dag.graph.predecessors(address)), default=0.0)
        ends[address] = before + seconds.get(address, 0.0)
    return f"{duration(max(ends.values()))} with all jobs side by side, on an {ON[on]} each"


def _assumed() -> list[str]:
    """What is assumed of the GPUs."""
    lines = [f"{'GPU':5}  {'float32':>12}  {'half precision':>14}  {'memory':>6}"]
    for name, (single, half) in GPU_RATES.items():
        float32, halved = amount(single, "FLOP/s"), amount(half, "FLOP/s")
        lines.append(f"{name:5}  {float32:>12}  {halved:>14}  {amount(GPU_MEMORY, 'B'):>6}")
    peak = "a quarter of the data sheet's peak in float32, and a tenth in half precision"
    return [*lines, f"Assumed rates: {peak}."]


def rows(study: Study, dag: Dag, costs: Costs, device: str) -> list[Row]:
    """The rows of the plan, in the order of dvc.yaml; `device` is as for `Costs.seconds`."""
    asked, todo = online(), dag.stale | dag.changed  # which has the first stages too
    order = list(dag.declared)
    return [
        _row(study, costs, stage, device, asked, fresh=stage.address not in todo)
        for stage in sorted(dag.stages.values(), key=lambda stage: order.index(stage.group))
    ]


def _row(study: Study, costs: Costs, stage: Stage, device: str, asked: bool, *, fresh: bool) -> Row:
    group, (_, key, part) = stage.group, parsed(stage.address)
    sections: Mapping[str, Mapping[str, Any]]
    sections = {"samples": study.families, "theory": study.theory}
    entry = sections.get(group, study.models).get(key)
    named = study.mitigated[key] if group == "mitigation" else entry.name if entry else ""
    row = Row(stage.address, " ".join(filter(None, (group, named, part))), fresh)
    if fresh:
        row.stored = sum(bytes_of(Path(out)) for out in stage.outs)
        return row
    if group == "mitigation":
        row.seconds = MITIGATION_SECONDS
        return row
    # evaluations find theirs in the cache, where `checkpoint` put them
    fetching = group in ("datasets", "samples", "checkpoint")
    for want in wants(study, stage) if fetching else ():
        sizes = want.sizes(ask=asked)
        if sizes is None:
            row.unknown += [want.repo] * (want.guess is None)
            row.estimated |= want.guess is not None
        missing, cached = sizes or (want.guess or 0, 0)
        row.missing += missing
        row.cached += cached
    row.seconds, row.stored = START_SECONDS, row.missing + row.cached
    if not isinstance(entry, Model):
        return row
    row.operations, row.stored = costs.operations(group, entry), 0
    if row.operations or group not in ("checkpoint", "interventions"):
        row.seconds = costs.seconds(group, entry, "cpu" if group == "checkpoint" else device)
    if group == "memorization":
        row.stored = ROW_BYTES * costs.interventions(entry) * costs.samples(entry.family)
    elif group == "benchmarks":
        documents = sum(costs.task_tokens().values()) / 100
        row.stored = DOCUMENT_BYTES * costs.interventions(entry) * documents
    elif group == "checkpoint" and entry.trained:
        row.stored = costs.size(entry.name).parameters * BYTES["float32"]
    return row


def _room(needed: float, free: float) -> str:
    return f"of {amount(free, 'B')} free" + ("" if needed <= free else ": TOO LITTLE")
