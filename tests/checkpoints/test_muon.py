from __future__ import annotations

import pytest
import torch
from torch import nn

from pipeline.checkpoints.muon import Muon, orthogonalize


def _matrices(seed: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((12, 8), (8, 8), (8, 12), (8, 8))
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]


def test_it_steps_as_torch_does() -> None:
    ours, theirs = _matrices(0), _matrices(0)
    start = [matrix.detach().clone() for matrix in ours]
    optimizers = (
        Muon(ours, lr=0.05, weight_decay=0.1),
        torch.optim.Muon(theirs, lr=0.05, weight_decay=0.1),
    )
    for step in range(4):
        for matrices, optimizer in zip((ours, theirs), optimizers, strict=True):
            for matrix, gradient in zip(matrices, _matrices(step + 1), strict=True):
                matrix.grad = gradient.detach().clone()
            optimizer.step()
    for mine, reference, before in zip(ours, theirs, start, strict=True):
        # torch's takes its rounds in bfloat16, which has 8 bits
        moved = (reference - before).norm()
        assert moved > 0.1
        assert (mine - reference).norm() < 0.02 * moved


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 12, 6), (2, 6, 12)])
def test_all_singular_values_become_about_one(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert values.min() > 0.3
    assert values.max() < 1.5
