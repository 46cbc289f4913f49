"""The number of sequences that the theorem's built transformer stores, and its loss beyond them.

Shapes: T sequences, S tokens each, N vocabulary, D width, H heads, K head width.

Source: arXiv 2411.10115, Theorem 1 and Corollary 1; the slides, "Attention-only Transformers".
"""

from __future__ import annotations

import math

import polars as pl
import torch
from torch import Tensor

from pipeline.theory.attention_only import lower_bound, stored
from pipeline.theory.columns import CONSTRUCTIVE
from pipeline.theory.construction import build, build_both, gap_bound, likeliest, read
from pipeline.theory.lookup import divergence, unit_rows
from pipeline.theory.low_rank import Table
from pipeline.theory.schema import Constructive

PRIOR_SPREAD = 1_000.0
"""Ratio of the probabilities of the likeliest and the unlikeliest sequence."""


def constructive(grid: Constructive) -> pl.DataFrame:
    """Build transformers, within the theorem's numbers and beyond them.

    With one thread, the same grid gives the same bytes.

    Args:
        grid: what is built.

    Returns:
        As `CONSTRUCTIVE`.
    """
    rows = []
    for seed in grid.seeds:
        for heads in grid.heads:
            rows += _on_tables(grid, heads, seed)
        for unsolved in grid.unsolved:
            rows += _on_distribution(grid, unsolved, seed)
    types = {name: column.dtype for name, column in CONSTRUCTIVE.items()}
    return pl.DataFrame(rows, schema=types)


def _on_tables(grid: Constructive, heads: int, seed: int) -> list[dict[str, object]]:
    everything = _sequences(grid)
    generator = torch.Generator().manual_seed(1_000 + seed)
    order = torch.randperm(len(everything), generator=generator)
    answers = torch.randint(grid.vocabulary, (len(everything),), generator=generator)
    unembedding = unit_rows(grid.vocabulary, grid.width, generator)
    features, last = read(
        everything[order], grid.vocabulary, grid.width, heads, grid.head_width, seed
    )
    rows: list[dict[str, object]] = []
    read_off = stored(heads, grid.head_width, grid.width, given=True)
    counts = {round(load * read_off) for load in grid.loads}
    counts |= {read_off + more for more in (0, 1, grid.width, grid.width + 1)}
    for count in sorted(each for each in counts if 1 <= each <= len(everything)):
        for experiment, solve, most in (
            ("given", build, read_off),
            ("chosen", build_both, stored(heads, grid.head_width, grid.width)),
        ):
            exact = count <= most
            target = unembedding[answers[:count]]
            model = solve(features[:count], last[:count], target, unembedding)
            wanted = target @ unembedding.T
            right = model._replace(features=features, last=last).logits.argmax(1) == answers
            values = {
                "accuracy": (float(right[:count].double().mean()), 1.0 if exact else None),
                "residual": (float((model.logits - wanted).norm() / wanted.norm()), None),
                "table_accuracy": (
                    float(right.double().mean()),
                    lower_bound(count, grid.vocabulary, len(everything)) if exact else None,
                ),
            }
            rows += [
                _row(experiment, grid, heads, grid.head_width, seed, count, None, name, *value)
                for name, value in values.items()
            ]
    return rows


def _on_distribution(grid: Constructive, unsolved: float, seed: int) -> list[dict[str, object]]:
    """The slides' theorem: ceil(N_ε / D) heads of width D copy the best map of rank D."""
    everything = _sequences(grid)
    table = random_table(len(everything), grid.vocabulary, seed)
    root = table.prior.sqrt()[:, None]
    left, values, right = torch.linalg.svd(root * table.logs, full_matrices=False)
    target = left[:, : grid.width] * values[: grid.width] / root
    unembedding = right[: grid.width].T
    known = likeliest(table.prior, unsolved)
    heads = math.ceil(len(known) / grid.width)
    features, last = read(everything, grid.vocabulary, grid.width, heads, grid.width, seed)
    model = build(features[known], last[known], target[known], unembedding)
    built = model._replace(features=features, last=last).logits
    wanted = target @ unembedding.T
    best, reached = (
        float(table.prior @ divergence(table.given, logits)) for logits in (wanted, built)
    )
    residual = float((model.logits - wanted[known]).norm() / wanted[known].norm())
    values_of = {
        "divergence_gap": (abs(reached - best), gap_bound(table.prior, wanted, built)),
        "residual": (residual, None),
    }
    left_out = 1 - float(table.prior[known].sum())
    return [
        _row("distribution", grid, heads, grid.width, seed, len(known), left_out, name, *value)
        for name, value in values_of.items()
    ]


def random_table(sequences: int, vocabulary: int, seed: int) -> Table:
    """Independent logits of standard deviation 1, and sequences of uneven probability."""
    generator = torch.Generator().manual_seed(2_000 + seed)
    prior = PRIOR_SPREAD ** torch.rand(sequences, generator=generator, dtype=torch.float64)
    logits = torch.randn(sequences, vocabulary, generator=generator, dtype=torch.float64)
    return Table(prior / prior.sum(), logits.softmax(1))


def _sequences(grid: Constructive) -> Tensor:
    """(N^S, S) all sequences."""
    tokens = torch.arange(grid.vocabulary)
    return torch.cartesian_prod(*[tokens] * grid.context)


def _row(
    experiment: str,
    grid: Constructive,
    heads: int,
    head_width: int,
    seed: int,
    sequences: int,
    unsolved: float | None,
    quantity: str,
    value: float,
    bound: float | None,
) -> dict[str, object]:
    return {
        "experiment": experiment,
        "seed": seed,
        "vocabulary": grid.vocabulary,
        "width": grid.width,
        "heads": heads,
        "head_width": head_width,
        "sequences": sequences,
        "unsolved": unsolved,
        "quantity": quantity,
        "value": value,
        "bound": bound,
    }
