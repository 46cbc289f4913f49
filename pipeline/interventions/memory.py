"""Chooses batch sizes by the free memory, and halves a batch when memory runs out.

No result depends on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from pipeline.interventions.evaluation import Results
from pipeline.interventions.readout import CHUNK_LOGITS
from pipeline.interventions.trie import Trie
from pipeline.models.sites import Anatomy
from pipeline.workflow.ram import free_ram

CPU_TOKENS, CPU_BYTES = 1 << 15, 1 << 30
"""Tokens per batch, and their bytes, above which a larger batch is no faster on a CPU."""

_SHARE_OF_FREE = 0.5  # the rest is for the kernels' own workspaces
_OUT_OF_MEMORY = (
    "DefaultCPUAllocator",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
)  # in a bare RuntimeError of torch

_Result = TypeVar("_Result")
_Tensors = TypeVar("_Tensors", bound=Results)


@dataclass
class Journal:
    """Events of an evaluation, for the record; no result depends on them.

    Args:
        halvings: (items before, items after) for each time that memory ran out.
        tolerance: logits; the measured rounding error of a choice's margin.
        near_ties: number of choices whose margin is within the tolerance.
        decided_again: number of rows of which a near tie changed when it was recomputed.
        overflows: number of results that were not finite in half precision, and were recomputed in
            float32.
    """

    halvings: list[tuple[int, int]] = field(default_factory=list)
    tolerance: float = 0.0
    near_ties: int = 0
    decided_again: int = 0
    overflows: int = 0


def token_budget(
    known: Anatomy,
    trie: Trie,
    length: int,
    *,
    caching: bool,
    in_single: bool = False,
    recorded: int = 0,
) -> int:
    """The number of tokens, counted once per branch, that fit one pass in half the free memory.

    The longest row has `length` tokens. With `caching`, keys and values are kept for tokens that
    follow; `in_single`, a model in half precision computes in float32, a module at a time;
    `recorded` are the places whose values patches put in.
    """
    device = known.model.device
    config = known.model.config.get_text_config()
    width, values = config.hidden_size, known.sites[0].values
    inner = getattr(config, "intermediate_size", None) or 4 * width
    # in a block: the stream twice, and queries, keys, values or the MLP's inner states twice
    numbers = 4 * width + 2 * max(inner, 3 * values.heads * values.size)
    if config._attn_implementation == "eager":  # scores: masked, in float32, and as weights
        numbers += 3 * values.heads * length
    numbers += recorded * max(width, inner) / trie.branches
    if caching:  # keys and values of the pass, and of the rows that decode
        per_block = 2 * values.groups * values.size
        numbers += per_block * trie.block_evaluations / trie.branches + per_block * len(trie.steps)
    free = available(device) - 4 * 3 * CHUNK_LOGITS[device.type]
    size = known.model.dtype.itemsize
    if in_single:
        size = 4
        free -= 4 * max(weight.numel() for weight in known.model.parameters())
    tokens = _SHARE_OF_FREE * free / (numbers * size)
    if device.type == "cpu":
        most = CPU_BYTES / (numbers * size)
        if not caching:  # only decoding needs many rows; smaller tensors stay in the CPU's cache
            most = max(most, CPU_TOKENS) / 8
        tokens = min(tokens, CPU_TOKENS, most)
    return max(1, int(tokens))


def available(device: torch.device) -> int:
    """Bytes that are free on the device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + held
    return free_ram()


def in_batches(
    costs: Sequence[int],
    budget: int,
    largest: int | None,
    work: Callable[[range], _Result],
    journal: Journal,
) -> list[_Result]:
    """Work on consecutive items in batches as large as the budget allows, at least one item.

    Items of a batch are padded to the most expensive one. When memory runs out, the batch is halved
    and tried again, and later batches are halved as well.

    Args:
        costs: of each item, in tokens.
        budget: tokens per batch.
        largest: items per batch; None: no limit.
        work: called with the numbers of the items; may be called repeatedly for the same items.
        journal: records halvings.

    Raises:
        RuntimeError, MemoryError: a single item is too much.
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
        except (RuntimeError, MemoryError) as error:
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


def joined(parts: Sequence[_Tensors]) -> _Tensors:
    """The results of batches side by side: dataclasses of tensors (any, B, …), joined along B."""
    names = parts[0].tensors()
    made = {name: torch.cat([getattr(part, name) for part in parts], 1) for name in names}
    return type(parts[0])(**made)


def _out_of_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(words in str(error) for words in _OUT_OF_MEMORY)
