"""How much goes through a model at once, and what happens when that was too much.

No result depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from pipeline.interventions.plan import Plan
from pipeline.models.decoder import Decoder

_CPU_TOKENS = 1 << 15
_SHARE_OF_FREE = 0.6  # of the free memory; the rest is for a block's activations

_Result = TypeVar("_Result")


@dataclass
class Journal:
    """What happened on the way; nothing in it changes a result.

    Args:
        halvings: (items before, items after) for each time that memory ran out.
        tolerance: logits; choices by a margin no larger were made again, more precisely.
        recomputed: how many (intervention, sample or request) pairs were.
    """

    halvings: list[tuple[int, int]] = field(default_factory=list)
    tolerance: float = 0.0
    recomputed: int = 0


def default_budget(decoder: Decoder, plan: Plan, *, decoding: bool) -> int:
    """How many tokens, counted once for every branch, one pass may hold.

    On a GPU that is what fits into its free memory: the states of all branches, twice, and while
    decoding the keys and values of every branch in every block; those that the pass left are
    given up block by block.

    Args:
        decoder: the model.
        plan: that of the pass.
        decoding: whether rows decode after it; all may.
    """
    if decoder.device.type != "cuda":
        return _CPU_TOKENS
    free, _ = torch.cuda.mem_get_info(decoder.device)
    # what PyTorch holds for later use is free as well
    free += torch.cuda.memory_reserved(decoder.device)
    free -= torch.cuda.memory_allocated(decoder.device)
    kept = 2 * (len(plan.steps) + 1) if decoding else 0
    per_token = (2 + kept) * decoder.width * decoder.dtype.itemsize
    return int(_SHARE_OF_FREE * free / per_token)


def in_batches(
    costs: Sequence[int],
    budget: int,
    largest: int | None,
    work: Callable[[range], _Result],
    journal: Journal,
) -> list[_Result]:
    """Work on consecutive items, as many at a time as the budget allows, at least one.

    Items of a batch are padded to the dearest of them. When memory runs out the batch is halved
    and tried again, and so are all after it.

    Args:
        costs: of each item, in tokens.
        budget: tokens a batch.
        largest: items a batch; None: no limit.
        work: called with the numbers of the items; must be free to be called again.
        journal: told of halvings.

    Raises:
        torch.OutOfMemoryError: a single item is too much.
    """
    results: list[_Result] = []
    limit = len(costs) if largest is None else largest
    start = 0
    while start < len(costs):
        stop = start + 1
        dearest = costs[start]
        while stop < min(start + limit, len(costs)):
            dearest = max(dearest, costs[stop])
            if dearest * (stop + 1 - start) > budget:
                break
            stop += 1
        size = stop - start
        try:
            results.append(work(range(start, stop)))
        except RuntimeError as error:
            if size == 1 or not _out_of_memory(error):
                raise
        else:
            start = stop
            continue
        # Outside of the handler, where the failed batch's tensors are free.
        limit = size // 2
        journal.halvings.append((size, limit))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return results


def _out_of_memory(error: RuntimeError) -> bool:
    # On a CPU torch raises a bare RuntimeError.
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
