"""Decides which blocks of a model stay on the device, and which are read for every pass.

A model whose weights do not fit is streamed by accelerate: each weight of the other blocks is
copied to the device when it is needed, and dropped after use. One pass reads each block once for
all interventions.
"""

import ctypes
import sys
from collections.abc import Iterator

import torch
from torch import nn
from transformers import PreTrainedModel

from pipeline.workflow.device import free_bytes

DISK, RAM = "disk", "cpu"

_RAM_SHARE = 0.8
"""Of the free memory, the share that streamed blocks may take; if they need more, they stay on
disk."""

_M_MMAP_THRESHOLD = -3
_SMALL = 1 << 16


def placement(
    skeleton: PreTrainedModel, dtype: torch.dtype, device: str, room: int
) -> dict[str, str]:
    """Module -> its place, for `from_pretrained`; empty if the whole model fits.

    Embeddings, norms outside of the blocks, and the head stay on the device, ``cuda`` or ``cpu``,
    since every batch needs them several times; as many of the first blocks as fit stay there as
    well. `room` are the bytes that the weights, of this dtype in memory, may take there.
    """

    def size(module: nn.Module) -> int:
        return dtype.itemsize * sum(weight.numel() for weight in module.parameters())

    if size(skeleton) <= room:
        return {}
    blocks, others = _parts(skeleton)
    largest = max(map(size, blocks.values()))
    left = room - size(skeleton) + sum(map(size, blocks.values())) - largest
    places = dict.fromkeys(others, device)
    streamed = []
    for name, block in blocks.items():
        left -= size(block)
        places[name] = device
        if left < 0:
            streamed.append(name)
    needed = sum(size(blocks[name]) for name in streamed)
    in_ram = device != RAM and needed <= _RAM_SHARE * free_bytes(RAM)
    places |= dict.fromkeys(streamed, RAM if in_ram else DISK)
    where = "main memory" if in_ram else "disk"
    print(
        f"the weights take {size(skeleton) / 2**30:.2f} GiB of {room / 2**30:.2f} GiB: "
        f"{len(streamed)} of {len(blocks)} blocks are read from {where} for every pass",
        flush=True,
    )
    return places


def release_at_once() -> None:
    """Let the C library return freed weights to the system; glibc would keep much of them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _SMALL)


def _parts(skeleton: PreTrainedModel) -> tuple[dict[str, nn.Module], list[str]]:
    """The blocks by name, and the names of the largest modules that contain none."""
    kinds = set(skeleton._no_split_modules or ())
    blocks = {
        name: module for name, module in skeleton.named_modules() if type(module).__name__ in kinds
    }

    def without_blocks(module: nn.Module, prefix: str) -> Iterator[str]:
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            if not any(block == path or block.startswith(f"{path}.") for block in blocks):
                yield path
            elif path not in blocks:
                yield from without_blocks(child, f"{path}.")

    return blocks, list(without_blocks(skeleton, ""))
