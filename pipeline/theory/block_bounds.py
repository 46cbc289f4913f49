"""The change of the last token when a block, or the block before it, is bypassed.

Evaluates the formulas of `bounds` for a block. Everything here is in the precision of the given
states: float64. Shapes: B samples, T positions, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.theory import bounds
from pipeline.theory.linear_fit import Fits, LinearFit
from pipeline.theory.one_block import LastToken, Norms, last_token, norms
from pipeline.theory.parts import Parts

_LEAST = torch.finfo(torch.float64).tiny  # instead of 0, in a denominator


@dataclass(frozen=True)
class Known:
    """The quantities of a block that do not depend on a sample; see `know`.

    Args:
        norms: of its weights.
        fits: of its MLP.
        through: (H, E, E), R_h with ||R_h c|| = ||(I + W) W_O,h c||, W fitted to the stream.
    """

    norms: Norms
    fits: Fits
    through: Tensor


def know(block: Parts, fits: Fits) -> Known:
    """The quantities of a block that do not depend on a sample, in float64."""
    output = block.output_matrices()
    passed = output + fits.stream.weight.to(output) @ output
    return Known(norms(block), fits, bounds.root(passed))


def right_after(block: Parts, known: Known, states: Tensor) -> tuple[LastToken, dict[str, Tensor]]:
    """Bypass a block: the change right after it, and Theorem 1.

    Args:
        block: in float64.
        known: of the block.
        states: (B, T, D) float64, its input.

    Returns:
        The last token, and the columns of `DIVERGENCE_BOUNDS` from `change` to `violated`, (B,).
    """
    look = last_token(block, states)
    about, fit, parallel = known.norms, known.fits.stream, block.parallel
    change = bounds.norm(look.after[1] - look.after[0])
    attention_change = bounds.norm(look.attended[1] - look.attended[0])
    epsilon = _epsilon(look.read, look.mlp, fit)
    mlp_change = bounds.norm(look.mlp[1] - look.mlp[0])

    own = look.weights[..., -1]  # (B, H)
    spread = bounds.spread(states)
    mean = own.mean(-1)
    inner = known.fits.normalized
    inner_epsilon = _epsilon(block.mlp_norm(look.read), look.mlp, inner)
    printed = {
        "printed": bounds.theorem_1_printed(spread, mean, fit.norm, epsilon),
        "printed_generous": bounds.theorem_1_printed(spread, own.amin(-1), fit.norm, epsilon),
        "printed_normalized": bounds.theorem_1_printed(spread, mean, inner.norm, inner_epsilon),
    }

    a5 = bounds.attention_bound(look.weights, look.values, about.roots)
    a1 = bounds.attention_bound_coarse(look.weights, look.normalized, about.heads)
    through = a5 if parallel else bounds.attention_bound(look.weights, look.values, known.through)
    deviations = [bounds.deviation(z, block.mlp_norm.eps) for z in look.read]
    corrected = {
        "bound": bounds.theorem_1(through, 1.0, epsilon, parallel),
        "bound_a5": bounds.theorem_1(a5, fit.identity_plus, epsilon, parallel),
        "bound_a1": bounds.theorem_1(a1, fit.identity_plus, epsilon, parallel),
        "bound_without_fit": bounds.theorem_1(a5, 1.0, mlp_change, parallel),
        "bound_from_weights": bounds.theorem_1_from_weights(
            a5, about.up, about.down, about.gain, (deviations[0], deviations[1]), parallel
        ),
    }

    size = _size(look)
    violated = [bounds.exceeds(attention_change, a, size) for a in (a5, a1)]
    violated += [bounds.exceeds(change, bound, size) for bound in corrected.values()]
    return look, {
        "change": change,
        "relative": change / bounds.norm(look.after[0]).clamp_min(_LEAST),
        "attention_change": attention_change,
        "own_weight_min": own.amin(-1),
        "own_weight_mean": mean,
        "own_weight_max": own.amax(-1),
        "own_weight_weighted": own @ about.heads / about.heads.sum().clamp_min(_LEAST),
        "input_spread": spread,
        "normalized_spread": bounds.spread(look.normalized),
        "epsilon": epsilon,
        "epsilon_share": torch.where(change > 0, epsilon / change, 0.0),
        **printed,
        **{f"{name}_violated": bounds.exceeds(change, p, size) for name, p in printed.items()},
        "a5": a5,
        "a1": a1,
        **corrected,
        "violated": torch.stack(violated).any(0),
    }


def one_block_on(
    block: Parts, known: Known, look: LastToken, states: Tensor, other: Tensor
) -> dict[str, Tensor]:
    """Bypass the block before this one: the change right after this one, and Theorem 2.

    Args:
        block: in float64; not bypassed.
        known: of the block.
        look: the last token, of `states`.
        states: (B, T, D) float64, its input without a bypass.
        other: (B, T, D) float64, its input after a bypassed block.

    Returns:
        The columns of `DIVERGENCE_BOUNDS` that begin with ``next_``, (B,).
    """
    moved = last_token(block, other)
    about, fit, parallel = known.norms, known.fits.stream, block.parallel
    apart = other[:, -1] - states[:, -1]
    before = bounds.norm(apart)
    change = bounds.norm(moved.after[0] - look.after[0])
    read = torch.stack([look.read[0], moved.read[0]])
    mlp = torch.stack([look.mlp[0], moved.mlp[0]])
    epsilon = _epsilon(read, mlp, fit)

    own = look.weights[..., -1].mean(-1)
    printed = bounds.theorem_2_printed(before, own, fit.norm)
    inner = known.fits.normalized
    claims = {
        "next_printed": printed,
        "next_proved": printed + epsilon,
        "next_normalized": bounds.theorem_2_printed(before, own, inner.norm)
        + _epsilon(block.mlp_norm(read), mlp, inner),
    }

    weights = torch.stack([look.weights, moved.weights])
    roots = about.roots if parallel else known.through
    fine = bounds.mixture_bound(weights, look.values, moved.values, roots)
    coarse = bounds.mixture_bound_coarse(weights, look.normalized, moved.normalized, about.heads)
    passed = bounds.norm(apart + apart @ fit.weight.to(apart).T)  # ||(I + W) D||
    corrected = {
        "next_bound": bounds.theorem_2(passed, fine, 1.0, epsilon, parallel),
        "next_bound_coarse": bounds.theorem_2(before, coarse, fit.identity_plus, epsilon, parallel),
    }

    size = torch.maximum(_size(look), _size(moved))
    violated = [bounds.exceeds(change, bound, size) for bound in corrected.values()]
    return {
        "next_change": change,
        **claims,
        **{f"{name}_violated": bounds.exceeds(change, c, size) for name, c in claims.items()},
        **corrected,
        "next_violated": torch.stack(violated).any(0),
    }


def _epsilon(read: Tensor, mlp: Tensor, fit: LinearFit) -> Tensor:
    """||Delta eps||, (B,), of u and F(u), (2, B, D) each."""
    linear = (read[1] - read[0]) @ fit.weight.to(read).T
    return bounds.norm(mlp[1] - mlp[0] - linear)


def _size(look: LastToken) -> Tensor:
    """The largest of the vectors whose differences are taken, (B,)."""
    parts = torch.stack([look.attended, look.read, look.mlp, look.after])
    return bounds.norm(parts).amax((0, 1))
