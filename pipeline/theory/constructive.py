"""The theorem's attention-only transformer, built: all is random except the heads' output matrices.

The heads read a matrix A (T, H K) from T sequences, and each sequence's last token, with its
position, adds a row to X (T, D). The model's residual stream at the end is A O + X for the
output matrices O (H K, D), and its logits are (A O + X) Uᵀ, with the unembedding U (N, D) either
given or chosen too. It should hold a target E (T, D), so that its logits are E Uᵀ; it is solved for
by least squares, exactly up to `stored` sequences. docs/theory-attention-only.md has the proofs.

Shapes: T sequences, S tokens each, N vocabulary, D width, H heads, K head width; float64.

Source: arXiv 2411.10115, Theorem 1 and Corollary 1; the slides, "Attention-only Transformers".
"""

import math
from collections.abc import Iterator
from itertools import product

import polars as pl
import torch
from torch import Tensor

from pipeline.theory.attention_only import lower_bound, stored
from pipeline.theory.columns import CONSTRUCTIVE, experiment_table
from pipeline.theory.lookup import unit_rows
from pipeline.theory.low_rank import Table, decompose, loss
from pipeline.theory.schema import Constructive

Pair = tuple[Tensor, Tensor]

PRIOR_SPREAD = 1_000.0
"""Ratio of the probabilities of the likeliest and the unlikeliest sequence."""

SHARPNESS = 3.0
"""Standard deviation of the attention logits, about: neither flat nor all on one token."""


def constructive(grid: Constructive) -> pl.DataFrame:
    """Build transformers, within the theorem's numbers and beyond them.

    As `CONSTRUCTIVE`. With one thread, the same grid gives the same bytes.
    """
    rows: list[dict[str, object]] = []
    for seed in grid.seeds:
        for heads in grid.heads:
            rows += _on_tables(grid, heads, seed)
        for unsolved in grid.unsolved:
            rows += _on_distribution(grid, unsolved, seed)
    return experiment_table(CONSTRUCTIVE, rows, vocabulary=grid.vocabulary, width=grid.width)


# ------------------------------------------------------------- how it is built


def read(
    sequences: Tensor, vocabulary: int, width: int, heads: int, head_width: int, seed: int
) -> Pair:
    """The values that random heads read from each sequence, at its last position.

    `sequences` (T, S) are token ids; the seed is of embeddings, positions, queries, keys and
    values.

    Returns:
        A (T, H K) and X (T, D).
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


def build(read_of: Pair, target: Tensor, unembedding: Tensor, *, chosen: bool) -> Pair:
    """Solve for the output matrices, and for the unembedding if it is `chosen`.

    `read_of` is A and X, `target` E. If `chosen`, solves [A X] [O'; M] = E and uses O = O' M⁻¹ and
    U Mᵀ; otherwise A O = E - X.

    Returns:
        O and U; where T exceeds `stored`, those of least squares.
    """
    features, last = read_of
    known = torch.cat(read_of, 1) if chosen else features
    # of all O' and M the nearest to O' = 0 and M = 1: the smallest M has no inverse for T < D
    solution = torch.linalg.lstsq(known, target - last, driver="gelsd").solution
    if not chosen:
        return solution, unembedding
    output, mixed = solution.split([features.shape[1], last.shape[1]])
    mixed = mixed + torch.eye(last.shape[1], dtype=mixed.dtype)
    return torch.linalg.solve(mixed, output, left=False), unembedding @ mixed.T


def logits(read_of: Pair, solved: Pair) -> Tensor:
    """(T, N) of the transformer, from A and X, O and U."""
    return (read_of[0] @ solved[0] + read_of[1]) @ solved[1].T


def residual(built: Tensor, wanted: Tensor) -> float:
    """The error of logits, relative to the norm of those that are wanted."""
    return float((built - wanted).norm() / wanted.norm())


def likeliest(prior: Tensor, unsolved: float) -> Tensor:
    """The fewest sequences whose probabilities leave no more than ε: N_ε of them.

    `prior` (T,) has sum one; ε is at least 0 and below 1.

    Returns:
        (N_ε,) their positions, the likeliest first.
    """
    falling, order = prior.sort(descending=True, stable=True)
    # the rest without the first one, two, …; summed from the end, where it is exactly zero
    left = falling.flip(0).cumsum(0).flip(0) - falling
    return order[: int((left > unsolved + 1e-12).sum()) + 1]


def gap_bound(prior: Tensor, wanted: Tensor, built: Tensor) -> float:
    """The largest possible difference between the divergences of two maps from any one table, nats.

    The mean of the range of b - a in each row: where the maps agree on all sequences but some, of
    probability ε, at most ε times the largest range. `prior` (T,) has sum one; `wanted` a and
    `built` b are logits (T, N).

    Source: stands for the slides' ε σ₁ C(d, N, k, N_ε), whose C they do not give.
    """
    gaps = built - wanted
    return float(prior @ (gaps.amax(1) - gaps.amin(1)))


# ------------------------------------------------------------- the experiments


def _on_tables(grid: Constructive, heads: int, seed: int) -> Iterator[dict[str, object]]:
    """Look-up tables, learned up to the theorem's numbers of sequences and beyond."""
    sequences = _sequences(grid)
    generator = torch.Generator().manual_seed(1_000 + seed)
    order = torch.randperm(len(sequences), generator=generator)
    answers = torch.randint(grid.vocabulary, (len(sequences),), generator=generator)
    unembedding = unit_rows(grid.vocabulary, grid.width, generator)
    every = read(sequences[order], grid.vocabulary, grid.width, heads, grid.head_width, seed)
    most = {
        chosen: stored(heads, grid.head_width, grid.width, chosen=chosen)
        for chosen in (False, True)
    }
    counts = {round(load * most[False]) for load in grid.loads}
    printed = {heads * grid.head_width, heads * grid.head_width + grid.width}
    counts |= {claimed + more for claimed in (*most.values(), *printed) for more in (0, 1)}
    for count, chosen in product(sorted(counts & {*range(1, len(sequences) + 1)}), most):
        some, target = (every[0][:count], every[1][:count]), unembedding[answers[:count]]
        solved = build(some, target, unembedding, chosen=chosen)
        right = (logits(every, solved).argmax(1) == answers).double()
        share = lower_bound(count, grid.vocabulary, len(sequences))
        for quantity, value, bound in (
            ("accuracy", float(right[:count].mean()), 1.0),
            ("residual", residual(logits(some, solved), target @ unembedding.T), None),
            ("table_accuracy", float(right.mean()), share),
        ):
            yield {
                "experiment": "chosen" if chosen else "given",
                "seed": seed,
                "heads": heads,
                "head_width": grid.head_width,
                "sequences": count,
                "quantity": quantity,
                "value": value,
                "bound": bound if count <= most[chosen] else None,
            }


def _on_distribution(grid: Constructive, unsolved: float, seed: int) -> Iterator[dict[str, object]]:
    """The slides' theorem: ceil(N_ε / D) heads of width D copy the best map of rank D."""
    sequences = _sequences(grid)
    generator = torch.Generator().manual_seed(2_000 + seed)
    weights = PRIOR_SPREAD ** torch.rand(len(sequences), generator=generator, dtype=torch.float64)
    size = len(sequences), grid.vocabulary
    table = Table.of(torch.randn(size, generator=generator, dtype=torch.float64), weights)
    left, values, right = decompose(table, weighted=True)
    target = left[:, : grid.width] * values[: grid.width] / table.prior.sqrt()[:, None]
    unembedding = right[: grid.width].T
    wanted = target @ unembedding.T
    known = likeliest(table.prior, unsolved)
    heads = math.ceil(len(known) / grid.width)
    every = read(sequences, grid.vocabulary, grid.width, heads, grid.width, seed)
    some = every[0][known], every[1][known]
    solved = build(some, target[known], unembedding, chosen=False)
    built = logits(every, solved)
    gap = abs(loss(table, built) - loss(table, wanted))
    for quantity, value, bound in (
        ("divergence_gap", gap, gap_bound(table.prior, wanted, built)),
        ("residual", residual(logits(some, solved), wanted[known]), None),
    ):
        yield {
            "experiment": "distribution",
            "seed": seed,
            "heads": heads,
            "head_width": grid.width,
            "sequences": len(known),
            "unsolved": 1 - float(table.prior[known].sum()),
            "quantity": quantity,
            "value": value,
            "bound": bound,
        }


def _sequences(grid: Constructive) -> Tensor:
    """(N^S, S) all sequences."""
    return torch.cartesian_prod(*[torch.arange(grid.vocabulary)] * grid.context)
