"""Builds the theorem's attention-only transformer: all random except the heads' output matrices.

The heads read a matrix A (T, H K) from T sequences, and each sequence's last token, with its
position, adds a row to X (T, D). The model's residual stream at the end is A O + X for the
output matrices O (H K, D), and its logits are (A O + X) Uᵀ.

- *Unembedding given*: A O = E - X has an exact solution for every target E (T, D) where the rows of
  A are independent, which they are almost surely up to T = H K (for K up to D and S from 2 on).
- *Unembedding chosen too*: solve [A X] [O'; M] = E instead, and use O = O' M⁻¹ and U Mᵀ. Then
  (A O + X) M Uᵀ = E Uᵀ. The rows of [A X] are independent up to T = H K + D. This is the "+ D" of
  the theorem, and it needs an unembedding that is free and an M that has an inverse.

Shapes: T sequences, S tokens each, N vocabulary, D width, H heads, K head width.

Source: arXiv 2411.10115, Theorem 1 and Corollary 1; the slides, "Attention-only Transformers".
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SHARPNESS = 3.0
"""Standard deviation of the attention logits, about: neither flat nor all on one token."""


class Built(NamedTuple):
    """A built transformer, at some sequences.

    Args:
        features: (T, H K) what its heads read, A.
        last: (T, D) what its last position holds, X.
        output: (H K, D) the output matrices, O.
        unembedding: (N, D).
    """

    features: Tensor
    last: Tensor
    output: Tensor
    unembedding: Tensor

    @property
    def logits(self) -> Tensor:
        """(T, N)."""
        return (self.features @ self.output + self.last) @ self.unembedding.T


def read(
    sequences: Tensor, vocabulary: int, width: int, heads: int, head_width: int, seed: int
) -> tuple[Tensor, Tensor]:
    """The values that random heads read from each sequence, at its last position.

    Args:
        sequences: (T, S) token ids.
        vocabulary: N.
        width: D.
        heads: H.
        head_width: K.
        seed: of embeddings, positions, queries, keys and values.

    Returns:
        A (T, H K) and X (T, D), float64.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    stream = normal(vocabulary, width)[sequences] + normal(sequences.shape[1], width)
    features = []
    for _ in range(heads):
        query, key, value = normal(3, width, head_width)
        scores = (stream @ key) @ (stream[:, -1] @ query)[..., None]
        # a score is of the order of 2 D sqrt(K): two sums in the stream, and D terms a projection
        weights = (scores * (SHARPNESS / (2 * width * head_width**0.5))).softmax(1)
        features.append((weights * stream).sum(1) @ value)
    return torch.cat(features, 1), stream[:, -1]


def build(features: Tensor, last: Tensor, target: Tensor, unembedding: Tensor) -> Built:
    """Solve for the output matrices; the unembedding is given.

    Args:
        features: (T, H K) A.
        last: (T, D) X.
        target: (T, D) E, that the stream should hold.
        unembedding: (N, D).

    Returns:
        The model; where T exceeds H K, that of least squares.
    """
    output = torch.linalg.lstsq(features, target - last, driver="gelsd").solution
    return Built(features, last, output, unembedding)


def build_both(features: Tensor, last: Tensor, target: Tensor, unembedding: Tensor) -> Built:
    """Solve for the output matrices and the unembedding.

    Args:
        features: (T, H K) A.
        last: (T, D) X.
        target: (T, D) E, of which the logits should be those of `unembedding`.
        unembedding: (N, D) of the target.

    Returns:
        The model, with an unembedding of its own; where T exceeds H K + D, that of least squares.
    """
    both = torch.cat([features, last], 1)
    # of all solutions the nearest to O' = 0 and M = 1: the smallest one has no inverse for T < D
    solution = torch.linalg.lstsq(both, target - last, driver="gelsd").solution
    output, mixed = solution.split([features.shape[1], last.shape[1]])
    mixed = mixed + torch.eye(last.shape[1], dtype=mixed.dtype)
    output = torch.linalg.solve(mixed, output, left=False)
    return Built(features, last, output, unembedding @ mixed.T)


def likeliest(prior: Tensor, unsolved: float) -> Tensor:
    """The fewest sequences whose probabilities leave no more than ε: N_ε of them.

    Args:
        prior: (T,) of sum one.
        unsolved: ε, at least 0 and below 1.

    Returns:
        (N_ε,) their positions, the likeliest first.
    """
    falling, order = prior.sort(descending=True, stable=True)
    # the rest without the first one, two, …; summed from the end, where it is exactly zero
    left = falling.flip(0).cumsum(0).flip(0) - falling
    return order[: int((left > unsolved + 1e-12).sum()) + 1]


def gap_bound(prior: Tensor, wanted: Tensor, built: Tensor) -> float:
    """The largest possible difference between the divergences of two maps from any one table.

    For one sequence they differ by the logarithm of a mean of e^(b - a) less a mean of b - a, which
    is no more than the range of b - a. Where the maps agree on all sequences but some, of
    probability ε, that is at most ε times the largest range.

    Args:
        prior: (T,) of sum one.
        wanted: (T, N) logits a.
        built: (T, N) logits b.

    Returns:
        Nats.

    Source: stands for the slides' ε σ₁ C(d, N, k, N_ε), whose C they do not give.
    """
    gaps = built - wanted
    return float(prior @ (gaps.max(1).values - gaps.min(1).values))
