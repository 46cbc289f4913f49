"""How a measurement runs: shard by shard, so that a killed process resumes where it was."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from pipeline.interventions.evaluation import Progress, silent
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal
from pipeline.workflow.shards import Arrays, Shards, seconds_a_token


@dataclass(frozen=True)
class Running:
    """How a measurement runs, which affects rounding only.

    Args:
        token_budget: tokens at a time, counted once per branch of the wavefront; None: computed
            from the free memory.
        progress: called after each batch.
        journal: records halved batches and near ties.
        shards: keep finished work; None: nothing is kept.
    """

    token_budget: int | None = None
    progress: Progress = silent
    journal: Journal | None = None
    shards: Shards | None = None


DEFAULT = Running()
"""With the memory that is free, in silence, and nothing is kept."""


def sharded(
    shards: Shards | None,
    model: PreTrainedModel,
    interventions: Sequence[Intervention],
    lengths: Sequence[int],
    determined_by: Iterable[object],
    work: Callable[[range], Arrays],
) -> dict[str, Any]:
    """The arrays of all items, (V, N, …) each.

    Args:
        shards: where finished work is kept; None: nowhere.
        model: its size and device set the size of a shard.
        interventions: V of them.
        lengths: tokens of each of N items.
        determined_by: what determines the results beyond device, dtype and interventions.
        work: computes the arrays of some items.
    """
    if shards is None:
        return dict(work(range(len(lengths))))
    device, dtype = model.device.type, str(model.dtype).removeprefix("torch.")
    a_token = seconds_a_token(
        model.num_parameters(), len(interventions), device, dtype, torch.get_num_threads()
    )
    seconds = [a_token * length for length in lengths]
    return shards.results(work, seconds, [device, dtype, *interventions, *determined_by])
