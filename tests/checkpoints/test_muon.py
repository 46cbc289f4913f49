import torch
from torch import nn

from pipeline.checkpoints.muon import Muon


def _matrices(seed: int) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((12, 8), (8, 8), (8, 12), (8, 8))
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


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
