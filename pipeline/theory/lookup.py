"""A look-up table with few mistakes, and the loss of a linear map of low rank on it.

Each context t has an answer g(t), of probability near one. The map gives it the logits
λ_t W w_g(t), with rows w of length one, and λ_t such that the answer has probability exp(-H), where
H is the entropy of the context's distribution. The rank is D, and meant to be below N - 1: from
there on, a linear map loses nothing.

Shapes: T contexts, N vocabulary, D width.

Source: the slides on arXiv 2411.10115, "Low Entropy". Their bound takes the logarithm of a negative
number, if H is the entropy and not its negative, and is only defined for D > 128 ln(N+1).
"""

from __future__ import annotations

import math

import polars as pl
import torch
from torch import Tensor

from pipeline.theory.columns import LOOKUP
from pipeline.theory.schema import Lookup

BISECTIONS = 100


def lookup(grid: Lookup) -> pl.DataFrame:
    """The divergence of each look-up table from its linear map, beside the bounds on it.

    Args:
        grid: which tables.

    Returns:
        As `LOOKUP`, three rows for each width, mistake and seed.
    """
    rows = []
    for width in grid.widths:
        for mistake in grid.mistakes:
            for seed in grid.seeds:
                generator = torch.Generator().manual_seed(seed)
                directions = unit_rows(grid.vocabulary, width, generator)
                answers = torch.randint(grid.vocabulary, (grid.contexts,), generator=generator)
                given = distributions(answers, grid.vocabulary, mistake, generator)
                coherent = coherence(directions)
                value = float(divergence(given, logits(given, answers, directions)).mean())
                bounds = {
                    "printed": printed_bound(given, answers, width, sign=-1),
                    "entropy_sign": printed_bound(given, answers, width, sign=1),
                    "corrected": corrected_bound(given, answers, coherent),
                }
                rows += [
                    {
                        "experiment": "lookup",
                        "seed": seed,
                        "vocabulary": grid.vocabulary,
                        "width": width,
                        "mistake": mistake,
                        "coherence": coherent,
                        "statement": statement,
                        "quantity": "divergence",
                        "value": value,
                        "bound": bound,
                    }
                    for statement, bound in bounds.items()
                ]
    return pl.DataFrame(rows, schema={name: column.dtype for name, column in LOOKUP.items()})


def unit_rows(vocabulary: int, width: int, generator: torch.Generator) -> Tensor:
    """(N, D) float64, independent and uniform on the sphere."""
    rows = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(rows)


def distributions(
    answers: Tensor, vocabulary: int, mistake: float, generator: torch.Generator
) -> Tensor:
    """The answer has all probability but `mistake`; the other tokens share that at random.

    Args:
        answers: (T,) token ids.
        vocabulary: N.
        mistake: 0 to 1.
        generator: of the random shares.

    Returns:
        (T, N) float64.
    """
    size = len(answers), vocabulary
    shares = -torch.rand(size, generator=generator, dtype=torch.float64).clamp_min(1e-12).log()
    shares.scatter_(1, answers[:, None], 0)
    shares *= mistake / shares.sum(1, keepdim=True)
    return shares.scatter_(1, answers[:, None], 1 - mistake)


def logits(given: Tensor, answers: Tensor, directions: Tensor) -> Tensor:
    """Those of the linear map: λ_t W w_g(t).

    Args:
        given: (T, N) the distributions; each has an entropy of more than zero, and less than ln N.
        answers: (T,) token ids.
        directions: (N, D) rows of length one, no two of them equal.

    Returns:
        (T, N) logits, of which each row gives its answer the probability exp(-H).
    """
    products = (directions @ directions.T)[answers]
    gaps = products - 1
    gaps.scatter_(1, answers[:, None], 0)
    needed = entropy(given)
    low, high = torch.zeros_like(needed), torch.ones_like(needed)
    # log-sum-exp of the gaps falls in λ, from ln N to zero
    while (surprise(high, gaps) > needed).any():
        high = high * 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        too_soft = surprise(middle, gaps) > needed
        low, high = torch.where(too_soft, middle, low), torch.where(too_soft, high, middle)
    return high[:, None] * products


def surprise(scale: Tensor, gaps: Tensor) -> Tensor:
    """(T,) minus the logarithm of the answer's probability, nats."""
    return (scale[:, None] * gaps).logsumexp(1)


def printed_bound(given: Tensor, answers: Tensor, width: int, sign: int) -> float | None:
    """The slides' bound, for C = sqrt(32 ln(N+1) / D).

    Args:
        given: (T, N) the distributions.
        answers: (T,) token ids.
        width: D.
        sign: of the entropy in the exponent: -1 as printed, 1 as it must be.

    Returns:
        Nats; None where a logarithm is undefined, or C is 1/2 or more, where the last factor is
        negative or infinite: for D up to 128 ln(N+1).
    """
    vocabulary = given.shape[1]
    spread = math.sqrt(32 * math.log(vocabulary + 1) / width)
    inner = (vocabulary - 1) / (sign * entropy(given)).expm1()
    if spread >= 0.5 or not (inner > 0).all():
        return None
    return _mean_loss(given, answers, inner) * (1 + 4 * spread) / (1 - 2 * spread)


def corrected_bound(given: Tensor, answers: Tensor, coherent: float) -> float:
    """Always valid: the mean of (1 - π_g) ln((N-1) / (e^H - 1)), times (1 + μ) / (1 - μ).

    With this λ the divergence is exactly λ times the mean gap between the answer's logit and the
    others', which is at most (1 - π_g) (1 + μ); and e^H <= 1 + (N-1) exp(-λ (1 - μ)) bounds λ.

    Args:
        given: (T, N) the distributions, with entropies of more than zero and less than ln N.
        answers: (T,) token ids.
        coherent: μ, below 1.

    Returns:
        Nats.
    """
    inner = (given.shape[1] - 1) / entropy(given).expm1()
    return _mean_loss(given, answers, inner) * (1 + coherent) / (1 - coherent)


def coherence(directions: Tensor) -> float:
    """The largest absolute inner product of two of the rows, 0 to 1."""
    products = directions @ directions.T
    return float(products.fill_diagonal_(0).abs().max())


def entropy(given: Tensor) -> Tensor:
    """(T,) nats, of distributions (T, N)."""
    return -torch.xlogy(given, given).sum(-1)


def divergence(given: Tensor, logits: Tensor) -> Tensor:
    """(T,) Kullback–Leibler divergences, nats, of softmax(logits) from the given, both (T, N)."""
    crossed = (given * logits.log_softmax(-1)).sum(-1)
    return -entropy(given) - crossed


def _mean_loss(given: Tensor, answers: Tensor, inner: Tensor) -> float:
    missing = 1 - given.gather(1, answers[:, None])[:, 0]
    return float((missing * inner.log()).mean())
