"""The change of the last token when a block, or the block before it, is bypassed.

Evaluates the formulas of `bounds` for a block. Everything here is in the precision of the given
states: float64. Shapes: B samples, T positions, D width, H heads, E = D/H.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.theory import bounds
from pipeline.theory.linear_fit import Fits, LinearFit
from pipeline.theory.parts import LastToken, Parts, Vectors

_LEAST = torch.finfo(torch.float64).tiny  # instead of 0, in a denominator


class Known(NamedTuple):
    """The quantities of a block that do not depend on a sample; see `know`.

    Args:
        fits: of its MLP.
        roots: (H, E, E), see `bounds.root`.
        through: (H, E, E), R_h with ||R_h c|| = ||(I + W) W_O,h c||, W fitted to the stream.
        heads: (H,), ||M_h||.
        up: ||W_in||.
        down: ||W_out||.
        gain: the largest absolute weight of the norm before the MLP.
    """

    fits: Fits
    roots: Tensor
    through: Tensor
    heads: Tensor
    up: float
    down: float
    gain: float


def know(block: Parts, fits: Fits) -> Known:
    """The quantities of a block that do not depend on a sample, in float64."""
    output = block.output_matrices()
    return Known(
        fits,
        roots=bounds.root(output),
        through=bounds.root(output + fits.stream.weight.to(output) @ output),
        heads=bounds.norms_of_heads(block.value_matrices(), output),
        up=float(bounds.operator_norm(block.up.weight)),
        down=float(bounds.operator_norm(block.down.weight)),
        gain=float(block.mlp_norm.weight.abs().max()),
    )


class _Change(NamedTuple):
    """How far the last token of a block is from where it is without a bypass, (B,) each.

    Args:
        after: ||D||, of the block's output.
        attended: ||Delta a||.
        mlp: ||Delta F||.
        epsilon: ||Delta eps||, W fitted to the stream.
        inner_epsilon: the same, W fitted after the MLP's norm.
        size: the largest of the vectors whose differences are taken.
    """

    after: Tensor
    attended: Tensor
    mlp: Tensor
    epsilon: Tensor
    inner_epsilon: Tensor
    size: Tensor

    def judged(self, claims: dict[str, Tensor]) -> dict[str, Tensor]:
        """Claimed bounds, and whether the change exceeds them."""
        over = {f"{name}_violated": self.exceeds(claim) for name, claim in claims.items()}
        return claims | over

    def exceeds(self, *corrected: Tensor) -> Tensor:
        """Whether the change exceeds one of the bounds."""
        return bounds.exceeds(self.after, torch.stack(corrected), self.size).any(0)


def _change(block: Parts, fits: Fits, plain: Vectors, other: Vectors) -> _Change:
    attended, read, mlp, after = (b - a for a, b in zip(plain, other, strict=True))
    inner = block.mlp_norm(other.read) - block.mlp_norm(plain.read)

    def epsilon(read: Tensor, fit: LinearFit) -> Tensor:
        return bounds.lengths(mlp - read @ fit.weight.to(read).T)

    return _Change(
        after=bounds.lengths(after),
        attended=bounds.lengths(attended),
        mlp=bounds.lengths(mlp),
        epsilon=epsilon(read, fits.stream),
        inner_epsilon=epsilon(inner, fits.normalized),
        size=bounds.lengths(torch.stack([*plain, *other])).amax(0),
    )


def right_after(block: Parts, known: Known, states: Tensor) -> tuple[LastToken, dict[str, Tensor]]:
    """Bypass a block: the change right after it, and Theorem 1.

    The block and its input `states` (B, T, D) are in float64.

    Returns:
        The last token, and the columns of `DIVERGENCE_BOUNDS` from `change` to `violated`, (B,).
    """
    look = block.last_token(states)
    parallel, fit, inner = block.parallel, known.fits.stream, known.fits.normalized
    change = _change(block, known.fits, look.plain, look.bypassed)
    epsilon = change.epsilon

    own = look.weights[..., -1]  # (B, H)
    mean, spread = own.mean(-1), bounds.spread(states)
    printed = {
        "printed": bounds.theorem_1_printed(spread, mean, fit.norm, epsilon),
        "printed_generous": bounds.theorem_1_printed(spread, own.amin(-1), fit.norm, epsilon),
        "printed_normalized": bounds.theorem_1_printed(
            spread, mean, inner.norm, change.inner_epsilon
        ),
    }

    a5 = bounds.attention_bound(look.weights, look.values, known.roots)
    a1 = bounds.attention_bound_coarse(look.weights, look.normalized, known.heads)
    through = a5 if parallel else bounds.attention_bound(look.weights, look.values, known.through)
    z = look.plain.read, look.bypassed.read
    stretch = bounds.stretch(*z, block.mlp_norm.eps, known.gain, known.up, known.down)
    corrected = {
        "bound": bounds.theorem_1(through, 1.0, epsilon, parallel),
        "bound_a5": bounds.theorem_1(a5, fit.identity_plus, epsilon, parallel),
        "bound_a1": bounds.theorem_1(a1, fit.identity_plus, epsilon, parallel),
        "bound_without_fit": bounds.theorem_1(a5, 1.0, change.mlp, parallel),
        "bound_from_weights": bounds.theorem_1(a5, stretch, 0.0, parallel),
    }
    of_attention = change._replace(after=change.attended)
    return look, {
        "change": change.after,
        "relative": change.after / bounds.lengths(look.plain.after).clamp_min(_LEAST),
        "attention_change": change.attended,
        "own_weight_min": own.amin(-1),
        "own_weight_mean": mean,
        "own_weight_max": own.amax(-1),
        "own_weight_weighted": own @ known.heads / known.heads.sum().clamp_min(_LEAST),
        "input_spread": spread,
        "normalized_spread": bounds.spread(look.normalized),
        "epsilon": epsilon,
        "epsilon_share": torch.where(change.after > 0, epsilon / change.after, 0.0),
        **change.judged(printed),
        "a5": a5,
        "a1": a1,
        **corrected,
        "violated": change.exceeds(*corrected.values()) | of_attention.exceeds(a5, a1),
    }


def one_block_on(
    block: Parts, known: Known, look: LastToken, states: Tensor, other: Tensor
) -> dict[str, Tensor]:
    """Bypass the block before this one: the change right after this one, and Theorem 2.

    `states` (B, T, D) are its input without a bypass, of whose last token `look` is, and `other`
    the same after a bypassed block; all in float64.

    Returns:
        The columns of `DIVERGENCE_BOUNDS` that begin with ``next_``, (B,).
    """
    moved = block.last_token(other)
    parallel, fit = block.parallel, known.fits.stream
    change = _change(block, known.fits, look.plain, moved.plain)
    apart = other[:, -1] - states[:, -1]
    before, own = bounds.lengths(apart), look.weights[..., -1].mean(-1)
    printed = bounds.theorem_2_printed(before, own, fit.norm)
    normalized = bounds.theorem_2_printed(before, own, known.fits.normalized.norm)
    claims = {
        "next_printed": printed,
        "next_proved": printed + change.epsilon,
        "next_normalized": normalized + change.inner_epsilon,
    }

    weights = torch.stack([look.weights, moved.weights])
    roots = known.roots if parallel else known.through
    fine = bounds.mixture_bound(weights, look.values, moved.values, roots)
    coarse = bounds.mixture_bound_coarse(weights, look.normalized, moved.normalized, known.heads)
    passed = bounds.lengths(apart + apart @ fit.weight.to(apart).T)  # ||(I + W) D||
    corrected = {
        "next_bound": bounds.theorem_2(passed, fine, 1.0, change.epsilon, parallel),
        "next_bound_coarse": bounds.theorem_2(
            before, coarse, fit.identity_plus, change.epsilon, parallel
        ),
    }
    return {
        "next_change": change.after,
        **change.judged(claims),
        **corrected,
        "next_violated": change.exceeds(*corrected.values()),
    }
