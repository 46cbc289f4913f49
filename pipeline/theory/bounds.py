"""Upper bounds on the change of the last token by a bypass: the paper's, and corrected ones.

Notation: x (n, D) enters the block, y = LN1(x), alpha_hi is the weight that the last token n gives
to token i in head h, M_h = W_O,h W_V,h, a is the attention's output at n, F the MLP with its norm,
u what the MLP reads (x_n in a parallel block, z = x_n + a in a sequential one), and v = x_n + a +
F(u) the block's output. D is v bypassed minus v. W is any matrix: F(u) = W u + b + eps(u) defines
eps. "Delta" before a letter is the change of what it stands for.

Shapes: B samples, n positions that the last token sees (inside its window), H heads, D width,
E = D/H. All functions keep the precision they are given; theirs is float64.

Source: arXiv 2501.05078, section 3.3 and A.1, whose toy block has no norms, one head and no
projections. docs/theory.md proves every bound, under the names A1, A5, T1, B, B5 and T2, and
compares the two statement by statement.
"""

from __future__ import annotations

import torch
from torch import Tensor

SLOPE = 1.13
"""No activation of `parts.ACTIVATIONS` is steeper: GELU's slope is at most 1.1290."""

_GRAIN = 1e-11


def exceeds(change: Tensor, bound: Tensor, size: Tensor) -> Tensor:
    """Whether a change is larger than its bound, by more than the rounding of float64.

    Args:
        change: (B,) the norm of a difference of two vectors.
        bound: (B,) what it should not exceed.
        size: (B,) the norm of the larger of the two vectors; their difference is that inexact.

    Returns:
        (B,) bool.
    """
    return change > bound * (1 + _GRAIN) + size * _GRAIN


# --------------------------------------------------------------------------- norms


def norm(vectors: Tensor) -> Tensor:
    """The lengths of (…, D) vectors, (…)."""
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return lengths


def operator_norm(matrix: Tensor) -> Tensor:
    """The largest singular value of (…, m, n) matrices, (…).

    From the eigenvalues of the smaller Gram matrix, which is as exact for the largest one, and for
    a wide matrix far quicker.
    """
    wide = matrix if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT
    squared: Tensor = torch.linalg.eigvalsh(wide @ wide.mT)[..., -1]
    return squared.clamp_min(0).sqrt()


def root(output: Tensor) -> Tensor:
    """(H, E, E) matrices R_h with ||R_h c|| = ||W_O,h c|| for all c, given W_O (H, D, E).

    W_O,h = Q R with orthonormal columns in Q, which keep lengths.
    """
    factor: Tensor = torch.linalg.qr(output, mode="r").R
    return factor


def head_norms(value: Tensor, output: Tensor) -> Tensor:
    """||M_h|| of each head, without a D x D matrix: M_h = Q R (Q' R')^T has the norm of R R'^T.

    Args:
        value: (H, E, D), W_V.
        output: (H, D, E), W_O.

    Returns:
        (H,).
    """
    return operator_norm(root(output) @ root(value.mT).mT)


# --------------------------------------------------------------------------- one block: attention


def attention_change(weights: Tensor, values: Tensor, output: Tensor) -> Tensor:
    """Delta a exactly: sum_h M_h sum_{i<n} alpha_hi (y_n - y_i).

    Biases are the same with and without a bypass. The term i = n is zero.

    Args:
        weights: (B, H, n).
        values: (B, n, H, E), W_V,h y_i with or without bias.
        output: (H, D, E).

    Returns:
        (B, D).
    """
    apart = values[:, -1:] - values
    return torch.einsum("bhi,bihe,hde->bd", weights, apart, output)


def attention_bound(weights: Tensor, values: Tensor, roots: Tensor) -> Tensor:
    """A5, the headline: ||Delta a|| <= sum_h sum_i alpha_hi ||M_h (y_n - y_i)||.

    Equal for one head and two tokens.

    Args:
        weights: (B, H, n).
        values: (B, n, H, E).
        roots: (H, E, E), see `root`.

    Returns:
        (B,).
    """
    bound: Tensor = torch.einsum("bhi,bih->b", weights, _lengths(values[:, -1:] - values, roots))
    return bound


def attention_bound_coarse(weights: Tensor, normalized: Tensor, norms: Tensor) -> Tensor:
    """A1: ||Delta a|| <= M_y sum_h ||M_h|| (1 - alpha_hn), M_y = max_i ||y_n - y_i||.

    A5 <= A1. This is what the paper's bound becomes with norms, heads and projections.

    Args:
        weights: (B, H, n).
        normalized: (B, n, D), y.
        norms: (H,), ||M_h||.

    Returns:
        (B,).
    """
    # summed over the others, since 1 - alpha_hn cancels where a token attends only to itself
    return spread(normalized) * (weights[..., :-1].sum(-1) @ norms)


def spread(vectors: Tensor) -> Tensor:
    """The largest distance of the last of (B, n, D) vectors from another; (B,)."""
    return norm(vectors[:, -1:] - vectors).amax(-1)


# --------------------------------------------------------------------------- one block: Theorem 1


def theorem_1_printed(
    spread_: Tensor, own_weight: Tensor, linear_norm: Tensor | float, epsilon: Tensor
) -> Tensor:
    """Theorem 1 as printed: ||D|| <= (1 + ||W||) M (1 - alpha_n) + ||Delta eps||.

    It holds for the paper's block, where z = x_n + sum_i alpha_i x_i: there Delta z = sum_i alpha_i
    (x_n - x_i). On a real block it may fail; tests/theory/ has the counterexamples.

    Args:
        spread_: (B,), M = max_i ||x_n - x_i||, of the block's input.
        own_weight: (B,), alpha_n; of several heads, one number.
        linear_norm: ||W||.
        epsilon: (B,), ||Delta eps||.

    Returns:
        (B,).
    """
    return (1 + linear_norm) * spread_ * (1 - own_weight) + epsilon


def theorem_1(
    attention: Tensor, identity_plus: Tensor | float, epsilon: Tensor, parallel: bool
) -> Tensor:
    """Theorem 1 for a real block: ||D|| <= ||I + W|| A + ||Delta eps||; parallel: ||D|| <= A.

    A product of norms is loose, for Delta a hardly ever points where I + W stretches most: any
    bound on ||(I + W) Delta a|| does in place of ||I + W|| A, such as `attention_bound` with the
    roots of (I + W) W_O,h.

    Args:
        attention: (B,), A: any bound on ||Delta a||; or on ||(I + W) Delta a||.
        identity_plus: ||I + W||, at most 1 + ||W||; or 1.
        epsilon: (B,), ||Delta eps|| for this W.
        parallel: the block's kind.

    Returns:
        (B,).
    """
    return attention if parallel else identity_plus * attention + epsilon


def theorem_1_from_weights(
    attention: Tensor,
    up: Tensor | float,
    down: Tensor | float,
    gain: Tensor | float,
    deviations: tuple[Tensor, Tensor],
    parallel: bool,
) -> Tensor:
    """Theorem 1 without eps: ||D|| <= A (1 + 1.13 ||W_in|| ||W_out|| 2 g / (s + s')), sequential.

    Args:
        attention: (B,), A: any bound on ||Delta a||.
        up: ||W_in||.
        down: ||W_out||.
        gain: g, the largest absolute weight of LN2.
        deviations: s and s', (B,) each: see `deviation`, of z and of z bypassed.
        parallel: the block's kind; if so, A.

    Returns:
        (B,).
    """
    if parallel:
        return attention
    return attention * (1 + SLOPE * up * down * 2 * gain / (deviations[0] + deviations[1]))


def deviation(vectors: Tensor, epsilon: float) -> Tensor:
    """What a layer norm divides by: sqrt(variance + epsilon) of (B, D) vectors; (B,)."""
    return (vectors.var(-1, correction=0) + epsilon).sqrt()


# --------------------------------------------------------------------------- the next: Theorem 2


def mixture_bound(weights: Tensor, values: Tensor, other: Tensor, roots: Tensor) -> Tensor:
    """B5: how much the next block's attention output changes, token by token.

    ||Delta a|| <= sum_h sum_i (alpha_hi ||M_h (y'_i - y_i)|| + |alpha'_hi - alpha_hi| ||M_h (y'_i -
    y'_n)||), where ' marks the block after a bypassed one.

    Args:
        weights: (2, B, H, n), alpha and alpha'.
        values: (B, n, H, E), of y.
        other: (B, n, H, E), of y'.
        roots: (H, E, E), see `root`.

    Returns:
        (B,).
    """
    before, after = weights.unbind(0)
    moved = torch.einsum("bhi,bih->b", before, _lengths(other - values, roots))
    apart = _lengths(other[:, -1:] - other, roots)
    return moved + torch.einsum("bhi,bih->b", (after - before).abs(), apart)


def mixture_bound_coarse(
    weights: Tensor, normalized: Tensor, other: Tensor, norms: Tensor
) -> Tensor:
    """B: ||Delta a|| <= sum_h ||M_h|| (sum_i alpha_hi ||y'_i - y_i|| + TV_h diam(y')).

    TV_h is half the L1 distance of alpha' and alpha, diam(y') the largest distance of two y'.

    Args:
        weights: (2, B, H, n), alpha and alpha'.
        normalized: (B, n, D), y.
        other: (B, n, D), y'.
        norms: (H,), ||M_h||.

    Returns:
        (B,).
    """
    before, after = weights.unbind(0)
    moved = torch.einsum("bhi,bi->bh", before, norm(other - normalized))
    variation = (after - before).abs().sum(-1) / 2
    # not by a matrix product, which loses the precision of small distances
    exact = "donot_use_mm_for_euclid_dist"
    diameter = torch.cdist(other, other, compute_mode=exact).flatten(1).amax(1)
    return (moved + variation * diameter[:, None]) @ norms


def theorem_2_printed(change: Tensor, own_weight: Tensor, linear_norm: Tensor | float) -> Tensor:
    """Theorem 2 as printed: ||D'|| <= (1 + ||W'||) (1 + alpha'_n) ||D||, one block on.

    The statement leaves out the term ||Delta eps'|| at the end of its proof. Both assume that the
    other tokens and the attention weights do not change.

    Args:
        change: (B,), ||D||, measured.
        own_weight: (B,), alpha_n of the next block, as it is without a bypass.
        linear_norm: ||W'||, of the next block.

    Returns:
        (B,).
    """
    return (1 + linear_norm) * (1 + own_weight) * change


def theorem_2(
    change: Tensor, mixture: Tensor, identity_plus: Tensor | float, epsilon: Tensor, parallel: bool
) -> Tensor:
    """Theorem 2 for real blocks: a bound on the last token's change one block later.

    Parallel: ||D'|| <= ||I + W|| ||D|| + B + ||Delta eps||.
    Sequential: ||D'|| <= ||I + W|| (||D|| + B) + ||Delta eps||.

    As in `theorem_1`, I + W may go inside.

    Args:
        change: (B,), ||D||, of the block's input at the last token; or ||(I + W) D||.
        mixture: (B,), B: any bound on ||Delta a||, such as `mixture_bound`; in a sequential block
            or on ||(I + W) Delta a||.
        identity_plus: ||I + W||, of this block; or 1.
        epsilon: (B,), ||Delta eps|| of this block.
        parallel: the block's kind.

    Returns:
        (B,).
    """
    if parallel:
        return identity_plus * change + mixture + epsilon
    return identity_plus * (change + mixture) + epsilon


def _lengths(values: Tensor, roots: Tensor) -> Tensor:
    """||W_O,h c|| of differences of values c (B, n, H, E); (B, n, H)."""
    return norm(torch.einsum("bihe,hfe->bihf", values, roots))
