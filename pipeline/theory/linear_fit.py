"""Fits the linear map of the paper's theorems to each block's MLP.

F(u) = W u + b + eps(u) by least squares over tokens: the MLP reads u from the stream and adds F(u)
to it. The paper's block has no norm before its MLP and does not say how W is found. So there are
two fits: of the stream u, as the theorems use it; and of the normalized u, the input of "the weight
matrix of the FFN". The corrected bounds hold for any W, and are small for a good one.

Shapes: N samples, T positions, D width, L blocks.
"""

import copy
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.interventions.interventions import BASELINE
from pipeline.interventions.overflow import not_finite
from pipeline.interventions.wavefront import Engine
from pipeline.models.sites import anatomy
from pipeline.theory.bounds import operator_norm
from pipeline.theory.parts import Described, Parts

LEAST_TOKENS = 10
"""Tokens for each dimension below which the ridge is no longer negligible."""

MOST_TOKENS = 20
"""Largest number of tokens per dimension that are used."""

GRAIN, RIDGE = 1e-9, 1e-3
"""Added to the variances, in units of each dimension's own: against rounding; with few tokens."""

_HELD_OUT = 5  # every fifth sample only tests the fit
_CHUNK_TOKENS = 4096  # a constant, so that sums do not depend on the memory


class LinearFit(NamedTuple):
    """One fit of one block's MLP.

    Args:
        weight: W (D, D), float64, on the CPU.
        norm: ||W||.
        identity_plus: ||I + W||.
        r_squared: share of the variance of F that is explained in held-out samples; None where
            there are fewer than five samples.
    """

    weight: Tensor
    norm: float
    identity_plus: float
    r_squared: float | None


class Fits(NamedTuple):
    """The two fits of one block's MLP: of the stream, and of the stream after the MLP's norm."""

    stream: LinearFit
    normalized: LinearFit


def fit(described: Described, tokens: Tensor, sample_ids: Sequence[int]) -> list[Fits]:
    """Fit the MLP of every block, on the states of the unmodified model.

    Blocks are the outer loop: the states of all fitted tokens are kept, about as many numbers as a
    block has weights, but the Gram matrices of one block only.

    The states are in `described.dtype`. Of the tokens (N, T) int64, evenly spread rows are used, up
    to `MOST_TOKENS` x D tokens, and a quarter as many more are held out. The N sample ids are for
    an error.

    Returns:
        For each of the L blocks.

    Raises:
        InputError: states that are not finite.
    """
    length = tokens.shape[1]
    enough = -(-MOST_TOKENS * described.width // length) * _HELD_OUT // (_HELD_OUT - 1) + 1
    rows = torch.arange(min(enough, len(tokens)))
    rows = rows * len(tokens) // len(rows)
    device = described.model.device
    states = described.embed(tokens[rows].to(device))
    held_out = torch.arange(len(rows)) % _HELD_OUT == _HELD_OUT - 1
    chunks = torch.split(torch.arange(len(rows)), max(1, _CHUNK_TOKENS // length))
    fits = []
    for number in range(described.n_blocks):
        block = described.block(number, described.dtype)
        sums = [_Sums(described.width, device) for _ in range(4)]  # of both u: fitted, held out
        for chunk in chunks:
            hidden = states[chunk]
            attended = block.mixed(block.attend(hidden, length))
            read = hidden if block.parallel else hidden + attended
            mlp = block.feed_forward(read)
            states[chunk] = after = hidden + attended + mlp
            if not after.isfinite().all():
                finite = after.isfinite().flatten(1).all(1).cpu()
                row = int(rows[chunk[finite.logical_not().nonzero()[0]]])
                engine = Engine(anatomy(described.model), [BASELINE])
                raise not_finite(engine, 0, tokens[row], f"sample {sample_ids[row]}")
            uses = product((read, _normalized(block, read)), (~held_out[chunk], held_out[chunk]))
            for each, (u, mine) in zip(sums, uses, strict=True):
                each.add(u[mine].flatten(0, 1), mlp[mine].flatten(0, 1))
        fits.append(Fits(_solve(*sums[:2]), _solve(*sums[2:])))
    return fits


def _normalized(block: Parts, read: Tensor) -> Tensor:
    """The output of the MLP's norm for `read` (B, T, D), in float64.

    After the norm one direction has no variance. In a lower precision it would have that of the
    rounding errors, and the fit would follow them.
    """
    return copy.deepcopy(block.mlp_norm).double()(read.double())  # type: ignore[no-any-return]


class _Sums:
    """Sums over tokens for least squares, in float64; their size does not depend on the tokens."""

    def __init__(self, width: int, device: torch.device) -> None:
        zero = torch.zeros((), dtype=torch.float64, device=device)
        self.count = 0
        self.read, self.made = zero.repeat(width), zero.repeat(width)
        self.squares, self.products = zero.repeat(width, width), zero.repeat(width, width)
        self.total = zero.clone()

    def add(self, read: Tensor, made: Tensor) -> None:
        """Add inputs (m, D) and outputs (m, D) of the MLP."""
        u, f = read.double(), made.double()
        self.count += len(u)
        self.read += u.sum(0)
        self.made += f.sum(0)
        self.squares.addmm_(u.T, u)
        self.products.addmm_(u.T, f)
        self.total += f.square().sum()

    def centred(self) -> tuple[Tensor, Tensor, Tensor]:
        """Covariance (D, D) of u, of u with f, and the variance of f; times the count."""
        squares = self.squares - torch.outer(self.read, self.read) / self.count
        products = self.products - torch.outer(self.read, self.made) / self.count
        return squares, products, self.total - self.made.square().sum() / self.count


def _solve(fitted: _Sums, other: _Sums) -> LinearFit:
    squares, products, _ = fitted.centred()
    ridge = GRAIN if fitted.count >= LEAST_TOKENS * len(squares) else RIDGE
    # In units of each dimension's own deviation, since a few may be a thousand times larger.
    scale = squares.diagonal().clamp_min(0).sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
    correlation = squares / scale / scale[:, None]
    correlation.diagonal().add_(ridge)
    solution = torch.linalg.solve(correlation, products / scale[:, None]) / scale[:, None]
    weight = solution.T.contiguous()
    shifted = weight + torch.eye(len(weight)).to(weight)
    return LinearFit(
        weight=weight.cpu(),
        norm=float(operator_norm(weight)),
        identity_plus=float(operator_norm(shifted)),
        r_squared=_r_squared(fitted, other, solution),
    )


def _r_squared(fitted: _Sums, other: _Sums, solution: Tensor) -> float | None:
    """1 - the held-out tokens' squared errors / their squared distances from their own mean."""
    if other.count == 0:
        return None
    squares, products, total = other.centred()
    errors = total - 2 * (solution * products).sum() + (solution * (squares @ solution)).sum()
    # the intercept is the fitted tokens': their mean error counts as well
    offset = other.made / other.count - fitted.made / fitted.count
    offset = offset - (other.read / other.count - fitted.read / fitted.count) @ solution
    errors = errors + other.count * offset.square().sum()
    return float(1 - errors / total) if total > 0 else None
