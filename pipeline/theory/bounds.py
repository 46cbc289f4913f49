"""Upper bounds on the change of the last token by a bypass: the paper's, and corrected ones.

Notation: x (n, D) enters the block, y = LN1(x), alpha_hi is the weight that the last token n gives
to token i in head h, M_h = W_O,h W_V,h, a is the attention's output at n, F the MLP with its norm,
u what the MLP reads (x_n in a parallel block, z = x_n + a in a sequential one), and v = x_n + a +
F(u) the block's output. D is v bypassed minus v. W is any matrix: F(u) = W u + b + eps(u) defines
eps. "Delta" before a letter is the change of what it stands for; ' marks the next block.

Shapes: B samples, n positions that the last token sees (inside its window), H heads, D width,
E = D/H. `weights` (B, H, n) has alpha, `values` (B, n, H, E) W_V,h y_i with or without bias,
`normalized` (B, n, D) y, `head_norms` (H,) ||M_h||, `own_weight` (B,) one alpha_hn for all heads,
`linear_norm` ||W||, `identity_plus` ||I + W||, `epsilon` (B,) ||Delta eps||. `parallel` is the kind
of block. All functions keep the precision they are given; theirs is float64. Bounds are (B,).

Source: arXiv 2501.05078, section 3.3 and A.1, whose toy block has no norms, one head and no
projections. docs/theory.md proves every bound, under the names A1, A5, T1, B, B5 and T2, and
compares the two statement by statement.
"""

import torch
from torch import Tensor

SLOPE = 1.13
"""No activation of `parts.ACTIVATIONS` is steeper: GELU's slope is at most 1.1290."""

_GRAIN = 1e-11


def exceeds(change: Tensor, bound: Tensor, size: Tensor) -> Tensor:
    """Whether a change (B,) is larger than its bound (…, B), by more than float64's rounding.

    `size` (B,) is the length of the largest of the vectors whose difference the change is.
    """
    return change > bound * (1 + _GRAIN) + size * _GRAIN


# --------------------------------------------------------------------------- norms


def lengths(vectors: Tensor) -> Tensor:
    """The lengths of (…, D) vectors, (…)."""
    made: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return made


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


def norms_of_heads(value: Tensor, output: Tensor) -> Tensor:
    """||M_h|| (H,) from W_V (H, E, D) and W_O (H, D, E), without a D x D matrix.

    M_h = Q R (Q' R')^T has the norm of R R'^T.
    """
    return operator_norm(root(output) @ root(value.mT).mT)


def spread(vectors: Tensor) -> Tensor:
    """The largest distance of the last of (B, n, D) vectors from another; (B,)."""
    return lengths(vectors[:, -1:] - vectors).amax(-1)


# --------------------------------------------------------------------------- right after: Theorem 1


def attention_bound(weights: Tensor, values: Tensor, roots: Tensor) -> Tensor:
    """A5, the headline: ||Delta a|| <= sum_h sum_i alpha_hi ||M_h (y_n - y_i)||.

    Equal for one head and two tokens. `roots` (H, E, E) is of `root`; of the roots of (I + W)
    W_O,h, it bounds ||(I + W) Delta a||.
    """
    bound: Tensor = torch.einsum("bhi,bih->b", weights, _moved(values[:, -1:] - values, roots))
    return bound


def attention_bound_coarse(weights: Tensor, normalized: Tensor, head_norms: Tensor) -> Tensor:
    """A1: ||Delta a|| <= M_y sum_h ||M_h|| (1 - alpha_hn), M_y = max_i ||y_n - y_i||.

    A5 <= A1. This is what the paper's bound becomes with norms, heads and projections.
    """
    # summed over the others, since 1 - alpha_hn cancels where a token attends only to itself
    return spread(normalized) * (weights[..., :-1].sum(-1) @ head_norms)


def theorem_1_printed(
    spread_: Tensor, own_weight: Tensor, linear_norm: float | Tensor, epsilon: Tensor
) -> Tensor:
    """Theorem 1 as printed: ||D|| <= (1 + ||W||) M (1 - alpha_n) + ||Delta eps||.

    M (B,) is `spread` of x. It holds for the paper's block, where Delta z = sum_i alpha_i (x_n -
    x_i). On a real block it may fail; tests/theory/ has the counterexamples.
    """
    return (1 + linear_norm) * spread_ * (1 - own_weight) + epsilon


def theorem_1(
    attention: Tensor, identity_plus: float | Tensor, epsilon: Tensor | float, parallel: bool
) -> Tensor:
    """Theorem 1 for a real block: ||D|| <= ||I + W|| A + ||Delta eps||; parallel: ||D|| <= A.

    `attention` (B,) is A, any bound on ||Delta a||. A product of norms is loose: instead, it may
    bound ||(I + W) Delta a||, with a factor of 1. `stretch` is a factor too, without epsilon.
    """
    return attention if parallel else identity_plus * attention + epsilon


def stretch(
    z: Tensor, bypassed: Tensor, epsilon: float, gain: float, up: float, down: float
) -> Tensor:
    """How much a sequential block lengthens Delta a: 1 + 1.13 ||W_in|| ||W_out|| 2 g / (s + s').

    LN2, of this `epsilon`, divides z (B, D) by s, and `bypassed` (B, D), z in a bypass, by s'; the
    `gain` g is its largest absolute weight. `up` is ||W_in||, `down` ||W_out||.
    """
    before, after = ((each.var(-1, correction=0) + epsilon).sqrt() for each in (z, bypassed))
    return 1 + SLOPE * up * down * 2 * gain / (before + after)


# --------------------------------------------------------------------------- one on: Theorem 2


def mixture_bound(weights: Tensor, values: Tensor, other: Tensor, roots: Tensor) -> Tensor:
    """B5: how much the next block's attention output changes, token by token.

    ||Delta a|| <= sum_h sum_i (alpha_hi ||M_h (y'_i - y_i)|| + |alpha'_hi - alpha_hi| ||M_h (y'_i -
    y'_n)||), where ' marks the block after a bypassed one. `weights` (2, B, H, n) are alpha and
    alpha', `other` the values of y'.
    """
    before, after = weights.unbind(0)
    moved = torch.einsum("bhi,bih->b", before, _moved(other - values, roots))
    apart = _moved(other[:, -1:] - other, roots)
    return moved + torch.einsum("bhi,bih->b", (after - before).abs(), apart)


def mixture_bound_coarse(
    weights: Tensor, normalized: Tensor, other: Tensor, head_norms: Tensor
) -> Tensor:
    """B: ||Delta a|| <= sum_h ||M_h|| (sum_i alpha_hi ||y'_i - y_i|| + TV_h diam(y')).

    TV_h is half the L1 distance of alpha' and alpha, diam(y') the largest distance of two y'.
    `weights` are as for `mixture_bound`, `other` is y'.
    """
    before, after = weights.unbind(0)
    moved = torch.einsum("bhi,bi->bh", before, lengths(other - normalized))
    variation = (after - before).abs().sum(-1) / 2
    # not by a matrix product, which loses the precision of small distances
    exact = "donot_use_mm_for_euclid_dist"
    diameter = torch.cdist(other, other, compute_mode=exact).flatten(1).amax(1)
    return (moved + variation * diameter[:, None]) @ head_norms


def theorem_2_printed(change: Tensor, own_weight: Tensor, linear_norm: float | Tensor) -> Tensor:
    """Theorem 2 as printed: ||D'|| <= (1 + ||W'||) (1 + alpha'_n) ||D||, with `change` ||D|| (B,).

    The statement leaves out the term ||Delta eps'|| at the end of its proof. Both assume that the
    other tokens and the attention weights do not change.
    """
    return (1 + linear_norm) * (1 + own_weight) * change


def theorem_2(
    change: Tensor, mixture: Tensor, identity_plus: float | Tensor, epsilon: Tensor, parallel: bool
) -> Tensor:
    """Theorem 2 for real blocks: a bound on the last token's change one block later.

    Parallel: ||D'|| <= ||I + W|| ||D|| + B + ||Delta eps||.
    Sequential: ||D'|| <= ||I + W|| (||D|| + B) + ||Delta eps||.

    `change` (B,) is ||D||, of the block's input at the last token; `mixture` (B,) is B, any bound
    on ||Delta a||. I + W may go inside either of them, as in `theorem_1`; W and eps are of this
    block.
    """
    if parallel:
        return identity_plus * change + mixture + epsilon
    return identity_plus * (change + mixture) + epsilon


def _moved(values: Tensor, roots: Tensor) -> Tensor:
    """||W_O,h c|| of differences of values c (B, n, H, E); (B, n, H)."""
    return lengths(torch.einsum("bihe,hfe->bihf", values, roots))
