"""A look-up table with few mistakes, and the loss of a linear map of low rank on it.

Each context t has an answer g(t), of probability near one. The map gives it the logits
λ_t W w_g(t), with rows w of length one, and λ_t such that the answer has probability exp(-H), where
H is the entropy of the context's distribution. The rank is D, and meant to be below N - 1: from
there on, a linear map loses nothing.

Shapes: T contexts, N vocabulary, D width. Of a table, `given` (T, N) float64 has the distributions,
each with an entropy of more than zero and less than ln N; `answers` (T,) the answers' token ids.
`directions` (N, D) float64 has the rows w, no two of them equal. Divergences and entropies are in
nats.

Source: the slides on arXiv 2411.10115, "Low Entropy". Their bound takes the logarithm of a negative
number, if H is the entropy and not its negative, and is only defined for D > 128 ln(N+1).
docs/theory-attention-only.md proves the corrected one.
"""

import math
from itertools import product

import polars as pl
import torch
from torch import Tensor

from pipeline.theory.columns import LOOKUP, experiment_table
from pipeline.theory.schema import Lookup

BISECTIONS = 100


def lookup(grid: Lookup) -> pl.DataFrame:
    """The divergence of each look-up table from its linear map, beside the bounds on it.

    As `LOOKUP`, three rows for each width, mistake and seed.
    """
    rows = []
    for width, mistake, seed in product(grid.widths, grid.mistakes, grid.seeds):
        generator = torch.Generator().manual_seed(seed)
        directions = unit_rows(grid.vocabulary, width, generator)
        answers = torch.randint(grid.vocabulary, (grid.contexts,), generator=generator)
        given = distributions(answers, grid.vocabulary, mistake, generator)
        coherent = coherence(directions)
        measured = {
            "seed": seed,
            "width": width,
            "mistake": mistake,
            "coherence": coherent,
            "value": float(divergence(given, logits(given, answers, directions)).mean()),
        }
        bounds = {
            "printed": printed_bound(given, answers, width, sign=-1),
            "entropy_sign": printed_bound(given, answers, width, sign=1),
            "corrected": corrected_bound(given, answers, coherent),
        }
        rows += [{**measured, "statement": name, "bound": bound} for name, bound in bounds.items()]
    same = {"experiment": "lookup", "quantity": "divergence", "vocabulary": grid.vocabulary}
    return experiment_table(LOOKUP, rows, **same)


def unit_rows(vocabulary: int, width: int, generator: torch.Generator) -> Tensor:
    """(N, D) float64, independent and uniform on the sphere."""
    rows = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(rows)


def distributions(
    answers: Tensor, vocabulary: int, mistake: float, generator: torch.Generator
) -> Tensor:
    """(T, N): the answer has all probability but `mistake`; the others share that at random."""
    size = len(answers), vocabulary
    shares = -torch.rand(size, generator=generator, dtype=torch.float64).clamp_min(1e-12).log()
    shares.scatter_(1, answers[:, None], 0)
    shares *= mistake / shares.sum(1, keepdim=True)
    return shares.scatter_(1, answers[:, None], 1 - mistake)


def logits(given: Tensor, answers: Tensor, directions: Tensor) -> Tensor:
    """(T, N) logits λ_t W w_g(t), of which each row gives its answer the probability exp(-H)."""
    products = (directions @ directions.T)[answers]
    gaps = products - 1
    gaps.scatter_(1, answers[:, None], 0)

    def surprise(scale: Tensor) -> Tensor:
        """Minus the logarithm of the answer's probability; it falls in λ, from ln N to zero."""
        return (scale[:, None] * gaps).logsumexp(1)

    needed = entropy(given)
    low, high = torch.zeros_like(needed), torch.ones_like(needed)
    while (surprise(high) > needed).any():
        high = high * 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        too_soft = surprise(middle) > needed
        low, high = torch.where(too_soft, middle, low), torch.where(too_soft, high, middle)
    return high[:, None] * products


def printed_bound(given: Tensor, answers: Tensor, width: int, sign: int) -> float | None:
    """The slides' bound, for C = sqrt(32 ln(N+1) / D).

    `sign` is that of the entropy in the exponent: -1 as printed, 1 as it must be.

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

    `coherent` is μ, below 1.
    """
    inner = (given.shape[1] - 1) / entropy(given).expm1()
    return _mean_loss(given, answers, inner) * (1 + coherent) / (1 - coherent)


def coherence(directions: Tensor) -> float:
    """μ, the largest absolute inner product of two of the rows, 0 to 1."""
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
