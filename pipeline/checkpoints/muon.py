"""Muon, an optimizer for matrices, for many of the same shape at once, in float32.

It computes the same as torch.optim.Muon (a test compares them). The latter takes one matrix at a
time, in bfloat16, for large matrices on a GPU: on a CPU it took 73 ms (8 blocks of width 48) and
330 ms (12 of 64) per step, where forward and backward together took 70 and 163 ms.

Source: K. Jordan et al., Muon (2024), https://kellerjordan.github.io/posts/muon/
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic polynomial that each round applies to all singular values."""
ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """Steps by the momentum's nearest semi-orthogonal matrix: all singular values about one.

    Args:
        matrices: 2-D parameters.
        lr: learning rate; times sqrt(rows / columns) where a matrix is tall.
        weight_decay: decoupled; times the learning rate.
        momentum: of Nesterov's kind, 0 to 1.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
    ) -> None:
        by_shape: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            by_shape[tuple(matrix.shape)].append(matrix)
        groups = [{"params": alike} for alike in by_shape.values()]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Make one step; every matrix must have a gradient. There is no closure."""
        for group in self.param_groups:
            matrices: list[Tensor] = group["params"]
            gradient = torch.stack([matrix.grad for matrix in matrices])  # type: ignore[misc]
            state: dict[str, Any] = self.state[matrices[0]]
            average = state.setdefault("average", torch.zeros_like(gradient))
            average.lerp_(gradient, 1 - group["momentum"])
            direction = orthogonalize(gradient.lerp_(average, group["momentum"]))
            rows, columns = matrices[0].shape
            rate = group["lr"] * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(matrices, direction.unbind(), alpha=-rate)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Bring the singular values of each matrix to about one (0.5 to 1.5), by Newton–Schulz.

    Returns:
        The same shape.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
