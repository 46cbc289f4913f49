"""Weights rounded to 8 or 4 bits and back: symmetric, to nearest, in groups of 32 of a row.

These are the formats Q8_0 and Q4_0 of GGUF: a group's scale is a float16, its largest number
becomes 127 (8 bits), or the one of largest size becomes -8 (4 bits).

Source: gguf-py/gguf/quants.py of llama.cpp, against whose package the tests compare.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

GROUP = 32
"""Neighbours within a row that share a scale."""
BITS = (8, 4)


def rounded(values: Tensor, bits: int) -> Tensor:
    """The values after rounding, float32, of the same shape.

    Args:
        values: (…, a multiple of `GROUP`).
        bits: 8 or 4.
    """
    groups = torch.unflatten(values.float(), -1, (-1, GROUP))
    if bits == 8:
        scale = groups.abs().amax(-1, keepdim=True) / 127
        steps = _steps(groups, scale)
        steps = torch.sign(steps) * (steps.abs() + 0.5).floor()  # halves away from zero
    else:
        at = groups.abs().argmax(-1, keepdim=True)
        scale = groups.gather(-1, at) / -8
        steps = (_steps(groups, scale) + 8.5).trunc().clamp(0, 15) - 8
    made: Tensor = (steps * scale.half().float()).flatten(-2)
    return made


def quantized(model: PreTrainedModel, bits: int) -> PreTrainedModel:
    """A copy whose matrices are rounded; embeddings, norms and biases stay, as does a matrix whose
    rows `GROUP` does not divide, or that is tied to an embedding.
    """
    made = copy.deepcopy(model)
    embeddings = {id(m.weight) for m in made.modules() if isinstance(m, nn.Embedding)}
    with torch.no_grad():
        for module in made.modules():
            if not isinstance(module, (nn.Linear, Conv1D)) or id(module.weight) in embeddings:
                continue
            weight = module.weight.T if isinstance(module, Conv1D) else module.weight
            if weight.shape[1] % GROUP == 0:
                weight.copy_(rounded(weight, bits))
    return made


def _steps(groups: Tensor, scale: Tensor) -> Tensor:
    inverse = torch.where(scale == 0, torch.zeros_like(scale), 1 / scale)
    return groups * inverse
