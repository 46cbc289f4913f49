"""The activations that the adapters know, under the names of transformers' configurations."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh approximation, elementwise; `x` itself stays as it is.

    On a CPU tanh is slow: 0.5 (1 + tanh(u)) is sigmoid(2u), which takes half the time.
    """
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return F.gelu(x, approximate="tanh")
    slope = 2 * sqrt(2 / pi)
    gate = torch.mul(x, x)
    gate.mul_(0.044715 * slope).add_(slope).mul_(x).sigmoid_()
    return gate.mul_(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": F.relu,
}
