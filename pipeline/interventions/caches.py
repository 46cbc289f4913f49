"""Keys and values of earlier tokens, in the order of the rows that read on from them."""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from pipeline.interventions.trie import Trie


class Kept(DynamicCache):
    """Keys and values of all branches of a pass, block by block: (rows, K, T, E) each."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[int, tuple[Tensor, Tensor]] = {}
        self.others: dict[Any, Kept] = {}  # those of the sources of patches

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep a block's keys and values, copied, since views would keep larger tensors alive."""
        self.blocks[layer_idx] = key_states.contiguous(), value_states.contiguous()
        return self.blocks[layer_idx]

    def of_rows(self, block: int, trie: Trie, branch: Tensor, row: Tensor) -> list[Tensor]:
        """Keys and values (n, K, T, E) of a block for n rows, each in its branch of that block.

        The block's own are forgotten.
        """
        keys, values = self.blocks.pop(block)
        source = branch * (len(keys) // len(trie.steps[block].edits)) + row
        return [keys[source], values[source]]


class _Earlier(DynamicCache):
    """Tells a model how many positions were read before."""

    def __init__(self, position: int = 0) -> None:
        super().__init__()
        self.position = position

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions that the rows have read, padding included."""
        return self.position

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """The number of keys that the rows read, and the position of the first."""
        return self.position + query_length, 0


class Continued(_Earlier):
    """The keys and values of contexts, for rows that continue them, several per context.

    Args:
        contexts: of G branches of B contexts; emptied block by block.
        trie: of the pass.
        of: (R,) int64, the context of each row.
    """

    def __init__(self, contexts: Kept, trie: Trie, of: Tensor) -> None:
        super().__init__(contexts.blocks[0][0].shape[-2])
        self.contexts, self.trie, self.of = contexts, trie, of

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """The contexts' keys and values before those of the rows."""
        branches = torch.arange(len(self.trie.steps[layer_idx].edits), device=self.of.device)
        branch = branches.repeat_interleave(len(self.of))
        row = self.of.repeat(len(branches))
        keys, values = self.contexts.of_rows(layer_idx, self.trie, branch, row)
        return torch.cat([keys, key_states], -2), torch.cat([values, value_states], -2)


class SideBySide(_Earlier):
    """Keys and values of rows that decode one position at a time, the first `active` of them."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[list[Tensor]] = []
        self.active = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add one position."""
        end = self.position + 1
        keys, values = (buffer[: self.active, :, :end] for buffer in self.buffers[layer_idx])
        keys[:, :, self.position :], values[:, :, self.position :] = key_states, value_states
        return keys, values
