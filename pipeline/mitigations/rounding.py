"""Weights rounded to 8 or 4 bits and back: symmetric, to nearest, in groups of 32 of a row."""

from __future__ import annotations

import copy

import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

FORMATS = {8: GGMLQuantizationType.Q8_0, 4: GGMLQuantizationType.Q4_0}
"""Bits -> the format of GGUF, whose scales are float16."""
GROUP = 32
"""Neighbours within a row that share a scale."""


def rounded(values: Tensor, bits: int) -> Tensor:
    """The values after rounding, float32, of the same shape.

    Args:
        values: (…, a multiple of `GROUP`).
        bits: 8 or 4.
    """
    plain = values.detach().float().cpu().contiguous().numpy()
    return torch.from_numpy(dequantize(quantize(plain, FORMATS[bits]), FORMATS[bits]))


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
