"""The best linear maps of low rank to a table of log-probabilities, and their loss.

A table gives each of T contexts, of probability p_t, the distribution π_t of the next token. A map
of rank D gives it the logits f_t. Two maps come from a singular value decomposition of L = log π:

- ls: least squares, ``min ||f - L||``;
- wls: the same with row t weighted by sqrt(p_t).

A softmax ignores a constant added to a row, so each row of L is centred first. A centred
L has rank N - 1 at most: with D >= N - 1 nothing is lost.

Shapes: T contexts, N vocabulary, D rank.

Source: the slides on arXiv 2411.10115, "Almost rank d"; their bounds as printed and as they hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
import torch
from torch import Tensor

from pipeline.theory.columns import LOW_RANK
from pipeline.theory.lookup import divergence
from pipeline.theory.schema import LowRank

SMALL_GAP = 1e-4
"""Below it, φ is taken from its series: the formula would divide rounding by rounding."""


@dataclass(frozen=True)
class Table:
    """Distributions of the next token.

    Args:
        prior: (T,) float64, positive, of sum one.
        given: (T, N) float64, positive, each row of sum one.
    """

    prior: Tensor
    given: Tensor

    @property
    def logs(self) -> Tensor:
        """(T, N) log-probabilities, each row centred."""
        logs = self.given.log()
        return logs - logs.mean(1, keepdim=True)


def low_rank(grid: LowRank) -> pl.DataFrame:
    """The loss of both maps on every table, with the bounds on it.

    Args:
        grid: which tables and ranks.

    Returns:
        As `LOW_RANK`, a row for each map, table, seed, rank and statement.
    """
    rows = []
    for kind, draw in TABLES.items():
        for seed in grid.seeds:
            generator = torch.Generator().manual_seed(seed)
            table = draw(grid.contexts, grid.vocabulary, generator)
            for weighted in (False, True):
                decomposed = decompose(table, weighted)
                for rank in grid.ranks:
                    logits, tail = truncate(table, decomposed, rank, weighted)
                    value = loss(table, logits)
                    rows += [
                        {
                            "experiment": "wls" if weighted else "ls",
                            "table": kind,
                            "seed": seed,
                            "vocabulary": grid.vocabulary,
                            "contexts": grid.contexts,
                            "rank": rank,
                            "statement": statement,
                            "quantity": "divergence",
                            "value": value,
                            "bound": bound,
                        }
                        for statement, bound in bounds(table, logits, tail, weighted).items()
                    ]
    return pl.DataFrame(rows, schema={name: column.dtype for name, column in LOW_RANK.items()})


# ------------------------------------------------------------- the maps


def decompose(table: Table, weighted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The singular value decomposition of L, its rows weighted by sqrt(p) for `wls`.

    Returns:
        Left vectors (T, min(T, N)), singular values, falling, and right vectors.
    """
    logs = table.logs * table.prior.sqrt()[:, None] if weighted else table.logs
    left, values, right = torch.linalg.svd(logs, full_matrices=False)
    return left, values, right


def truncate(
    table: Table, decomposed: tuple[Tensor, Tensor, Tensor], rank: int, weighted: bool
) -> tuple[Tensor, Tensor]:
    """The best approximation of a rank.

    Args:
        table: which `decomposed` is of.
        decomposed: as `decompose` gives it.
        rank: D.
        weighted: as for `decompose`.

    Returns:
        (T, N) logits, and the singular values that it leaves out, falling; maybe none.
    """
    left, values, right = decomposed
    logits = (left[:, :rank] * values[:rank]) @ right[:rank]
    if weighted:
        logits = logits / table.prior.sqrt()[:, None]
    return logits, values[rank:]


def loss(table: Table, logits: Tensor) -> float:
    """The mean Kullback–Leibler divergence of softmax(logits) (T, N) from the table, nats."""
    return float(table.prior @ divergence(table.given, logits))


# ------------------------------------------------------------- the bounds


def bounds(table: Table, logits: Tensor, tail: Tensor, weighted: bool) -> dict[str, float]:
    """Every statement about the loss of one map, nats.

    Args:
        table: T contexts.
        logits: (T, N) of the map.
        tail: the singular values that it leaves out, falling.
        weighted: whether it is `wls`.

    Returns:
        A bound for each statement of `LOW_RANK`, in that order.
    """
    joint = table.prior[:, None] * table.given
    printed = printed_weighted if weighted else printed_unweighted
    return {
        "printed_conditional": printed(table.given, tail),
        "printed_joint": printed(joint, tail),
        "variance": variance_bound(table, logits),
        "range": range_bound(table, logits),
        "spectral": spectral_bound(table, tail, weighted),
    }


def printed_unweighted(probabilities: Tensor, tail: Tensor) -> float:
    """The slides' bound for ls: N M² σ² + (N M)^(3/2) σ³, with σ the first value left out.

    It holds where M is the largest conditional probability. By `range_bound` the loss is at most
    σ²/4, which is no more than σ³ where σ >= 1/4. By `variance_bound` it is at most φ(σ √2) M σ²,
    and φ <= 1 for a smaller σ. And N M >= 1. With the largest joint probability it fails.

    Args:
        probabilities: (T, N), conditional or joint; M is the largest of them.
        tail: the singular values that the map leaves out, falling.

    Returns:
        Nats.
    """
    first = float(tail[0]) if len(tail) else 0.0
    large = probabilities.shape[1] * float(probabilities.max())
    quadratic = large * float(probabilities.max()) * first**2
    return quadratic + math.pow(large, 1.5) * first**3


def printed_weighted(probabilities: Tensor, tail: Tensor) -> float:
    """The slides' bound for wls: M σ² + (M / m)^(3/2) σ³, with σ the first value left out.

    It fails with either reading: the loss is about M/2 times the sum of the squares of all values
    left out, not of the first alone.

    Args:
        probabilities: (T, N), conditional or joint; M is the largest of them, and m the smallest.
        tail: the singular values that the map leaves out, falling.

    Returns:
        Nats.
    """
    first = float(tail[0]) if len(tail) else 0.0
    most, least = float(probabilities.max()), float(probabilities.min())
    return most * first**2 + math.pow(most / least, 1.5) * first**3


def variance_bound(table: Table, logits: Tensor) -> float:
    """Always valid: the mean over p of φ(b_t) Var_t, for any logits.

    With Z = f - L, centred under π_t, the loss of a context is ln E[e^Z] <= E[e^Z - 1 - Z], and
    (e^z - 1 - z) / z² rises in z: it is at most φ(b) for b = max Z. For a small gap it is half the
    variance, which is what the loss is up to the third order.

    Args:
        table: T contexts.
        logits: (T, N).

    Returns:
        Nats.
    """
    gaps = logits - table.logs
    gaps = gaps - (table.given * gaps).sum(1, keepdim=True)
    variances = (table.given * gaps**2).sum(1)
    return float(table.prior @ (phi(gaps.max(1).values) * variances))


def range_bound(table: Table, logits: Tensor) -> float:
    """Always valid: the mean over p of r_t² / 8, where r_t is the range of f - L in a row.

    Hoeffding's lemma on ln E[e^Z] for a Z of mean zero. The probabilities do not appear.

    Args:
        table: T contexts.
        logits: (T, N).

    Returns:
        Nats.
    """
    gaps = logits - table.logs
    ranges = gaps.max(1).values - gaps.min(1).values
    return float(table.prior @ ranges**2) / 8


def spectral_bound(table: Table, tail: Tensor, weighted: bool) -> float:
    """Always valid, from the singular values alone.

    A row of range r has a squared length of at least r²/2, so `range_bound` is at most a quarter
    of the mean over p of ||f_t - L_t||². For wls that mean is the sum of the squares of the values
    left out. For ls no row is longer than the first of them, and all rows together have that sum.

    Args:
        table: T contexts.
        tail: the singular values that the map leaves out, falling.
        weighted: whether it is wls.

    Returns:
        Nats.
    """
    if not len(tail):
        return 0.0
    all_of_them = float((tail**2).sum())
    if weighted:
        return all_of_them / 4
    return min(float(tail[0]) ** 2, float(table.prior.max()) * all_of_them) / 4


def phi(gap: Tensor) -> Tensor:
    """(e^b - 1 - b) / b² of each element; 1/2 at zero, and rising."""
    small = gap.abs() < SMALL_GAP
    safe = torch.where(small, torch.ones_like(gap), gap)
    return torch.where(small, 0.5 + gap / 6, (safe.expm1() - safe) / safe**2)


# ------------------------------------------------------------- the tables


def _normal(*size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*size, generator=generator, dtype=torch.float64)


def _even(contexts: int) -> Tensor:
    return torch.full((contexts,), 1 / contexts, dtype=torch.float64)


def nearly_uniform(contexts: int, vocabulary: int, generator: torch.Generator) -> Table:
    """Independent logits of standard deviation 0.01: no singular value stands out."""
    logits = 0.01 * _normal(contexts, vocabulary, generator=generator)
    return Table(_even(contexts), logits.softmax(1))


def nearly_low_rank(contexts: int, vocabulary: int, generator: torch.Generator) -> Table:
    """Logits of rank 8 and standard deviation 1, and noise of standard deviation 0.05."""
    exact = _normal(contexts, 8, generator=generator) @ _normal(8, vocabulary, generator=generator)
    noise = _normal(contexts, vocabulary, generator=generator)
    return Table(_even(contexts), (exact / math.sqrt(8) + 0.05 * noise).softmax(1))


def uneven(contexts: int, vocabulary: int, generator: torch.Generator) -> Table:
    """The same, and contexts of which some are a hundred times as likely as others."""
    table = nearly_low_rank(contexts, vocabulary, generator)
    prior = 100 ** torch.rand(contexts, generator=generator, dtype=torch.float64)
    return Table(prior / prior.sum(), table.given)


def peaked(contexts: int, vocabulary: int, generator: torch.Generator) -> Table:
    """Independent logits of standard deviation 3: a few tokens have most of the probability."""
    logits = 3 * _normal(contexts, vocabulary, generator=generator)
    return Table(_even(contexts), logits.softmax(1))


TABLES: dict[str, Callable[[int, int, torch.Generator], Table]] = {
    "nearly-uniform": nearly_uniform,
    "nearly-low-rank": nearly_low_rank,
    "uneven": uneven,
    "peaked": peaked,
}
"""What a table of each kind is drawn by: from T, N and a generator."""
