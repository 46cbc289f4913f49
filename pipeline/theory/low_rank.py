"""The best linear maps of low rank to a table of log-probabilities, and their loss.

A table gives each of T contexts, of probability p_t, the distribution π_t of the next token. A map
of rank D gives it the logits f_t. Two maps come from a singular value decomposition of L = log π:

- ls: least squares, ``min ||f - L||``;
- wls, "weighted": the same with row t weighted by sqrt(p_t).

A softmax ignores a constant added to a row, so each row of L is centred first. A centred
L has rank N - 1 at most: with D >= N - 1 nothing is lost.

Shapes: T contexts, N vocabulary, D rank. `logits` (T, N) float64 are a map's; `tail` has the
singular values that it leaves out, falling, maybe none. Losses and bounds are in nats.

Source: the slides on arXiv 2411.10115, "Almost rank d"; their bounds as printed, and three that
hold always. docs/theory-attention-only.md proves these, and which printed one holds.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import polars as pl
import torch
from torch import Tensor

from pipeline.theory.columns import LOW_RANK, experiment_table
from pipeline.theory.lookup import divergence
from pipeline.theory.schema import LowRank

SMALL_GAP = 1e-4
"""Below it, φ is taken from its series: the formula would divide rounding by rounding."""

TABLES: dict[str, float | None] = {
    "nearly-uniform": 0.01,
    "nearly-low-rank": None,
    "uneven": None,
    "peaked": 3,
}
"""Kind of table -> standard deviation of independent logits; None: they are of rank 8 and standard
deviation 1, with noise of 0.05. Some contexts of "uneven" are a hundred times as likely as others.
"""


class Table(NamedTuple):
    """Distributions of the next token.

    Args:
        prior: (T,) float64, positive, of sum one.
        given: (T, N) float64, positive, each row of sum one.
    """

    prior: Tensor
    given: Tensor

    @classmethod
    def of(cls, logits: Tensor, weights: Tensor) -> Table:
        """The table of softmax(logits) (T, N), with priors proportional to weights (T,)."""
        return cls(weights / weights.sum(), logits.softmax(1))

    @property
    def logs(self) -> Tensor:
        """(T, N) log-probabilities, each row centred."""
        logs = self.given.log()
        return logs - logs.mean(1, keepdim=True)


def low_rank(grid: LowRank) -> pl.DataFrame:
    """The loss of both maps on every table, with the bounds on it.

    As `LOW_RANK`, a row for each map, table, seed, rank and statement.
    """
    rows = []
    for kind, seed, weighted in product(TABLES, grid.seeds, (False, True)):
        table = random_table(kind, grid.contexts, grid.vocabulary, seed)
        decomposed = decompose(table, weighted)
        for rank in grid.ranks:
            logits, tail = truncate(table, decomposed, rank, weighted)
            measured = {
                "experiment": "wls" if weighted else "ls",
                "table": kind,
                "seed": seed,
                "rank": rank,
                "value": loss(table, logits),
            }
            rows += [
                {**measured, "statement": statement, "bound": bound}
                for statement, bound in bounds(table, logits, tail, weighted).items()
            ]
    same = {"vocabulary": grid.vocabulary, "contexts": grid.contexts, "quantity": "divergence"}
    return experiment_table(LOW_RANK, rows, **same)


def random_table(kind: str, contexts: int, vocabulary: int, seed: int) -> Table:
    """A table of one of the kinds in `TABLES`, of T contexts and N tokens."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    scale, weights = TABLES[kind], torch.ones(contexts, dtype=torch.float64)
    if scale is not None:
        logits = scale * normal(contexts, vocabulary)
    else:
        exact = normal(contexts, 8) @ normal(8, vocabulary)
        logits = exact / math.sqrt(8) + 0.05 * normal(contexts, vocabulary)
    if kind == "uneven":
        weights = 100 ** torch.rand(contexts, generator=generator, dtype=torch.float64)
    return Table.of(logits, weights)


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
    """The best approximation of rank D, as `logits` and `tail`, from what `decompose` gives."""
    left, values, right = decomposed
    logits = (left[:, :rank] * values[:rank]) @ right[:rank]
    if weighted:
        logits = logits / table.prior.sqrt()[:, None]
    return logits, values[rank:]


def loss(table: Table, logits: Tensor) -> float:
    """The mean Kullback–Leibler divergence of softmax(logits) from the table."""
    return float(table.prior @ divergence(table.given, logits))


# ------------------------------------------------------------- the bounds


def bounds(table: Table, logits: Tensor, tail: Tensor, weighted: bool) -> dict[str, float]:
    """Every statement of `LOW_RANK` about the loss of one map -> its bound, in that order."""
    joint = table.prior[:, None] * table.given
    return {
        "printed_conditional": printed_bound(table.given, tail, weighted),
        "printed_joint": printed_bound(joint, tail, weighted),
        "variance": variance_bound(table, logits),
        "range": range_bound(table, logits),
        "spectral": spectral_bound(table, tail, weighted),
    }


def printed_bound(probabilities: Tensor, tail: Tensor, weighted: bool) -> float:
    """The slides' bounds, with σ the first value left out, M and m the extreme probabilities.

    ls: N M² σ² + (N M)^(3/2) σ³. It holds where M is the largest conditional probability, and not
    where it is the largest joint one. wls: M σ² + (M / m)^(3/2) σ³. It fails with either reading:
    the loss is about M/2 times the sum of the squares of all values left out, not of the first.

    `probabilities` (T, N) are conditional or joint; the map is wls if `weighted`.
    """
    first = float(tail[0]) if len(tail) else 0.0
    most, least = float(probabilities.max()), float(probabilities.min())
    if weighted:
        return most * first**2 + math.pow(most / least, 1.5) * first**3
    large = probabilities.shape[1] * most
    return large * most * first**2 + math.pow(large, 1.5) * first**3


def variance_bound(table: Table, logits: Tensor) -> float:
    """Always valid, for any logits: the mean over p of φ(max Z) Var Z, where Z = f - L under π_t.

    For a small gap it is half the variance, which is what the loss is up to the third order.
    """
    gaps = logits - table.logs
    gaps = gaps - (table.given * gaps).sum(1, keepdim=True)
    variances = (table.given * gaps**2).sum(1)
    return float(table.prior @ (phi(gaps.amax(1)) * variances))


def range_bound(table: Table, logits: Tensor) -> float:
    """Always valid, for any logits: the mean over p of r²/8, with r the range of f - L in a row."""
    gaps = logits - table.logs
    ranges = gaps.amax(1) - gaps.amin(1)
    return float(table.prior @ ranges**2) / 8


def spectral_bound(table: Table, tail: Tensor, weighted: bool) -> float:
    """Always valid: a quarter of the mean over p of ||f_t - L_t||², from `tail` alone.

    For wls that mean is the sum of the squares of the values left out. For ls no row is longer than
    the first of them, and all rows together have that sum.
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
