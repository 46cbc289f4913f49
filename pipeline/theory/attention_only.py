"""Measures how much of a random look-up table a trained one-block transformer stores, by its size.

Two tokens determine the next one; all N² pairs are trained on, and accuracy is over all of them.
The theorem's lower bound is given beside each value to which it applies.

Source: arXiv 2411.10115, experiments 1 to 6 and the lower bound of its Corollary 1. It differs:
tables are random look-up tables, S = 2, no LayerNorm, all pairs in each step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import count
from typing import Any

import polars as pl

from pipeline.interventions.evaluation import Progress, silent
from pipeline.theory.columns import ATTENTION_ONLY, experiment_table
from pipeline.theory.schema import AttentionOnly
from pipeline.theory.small_transformer import (
    CONTEXT,
    FROZEN,
    MLP,
    PLAIN,
    SHARED,
    Shape,
    Stack,
    ceiling,
    table,
)

STACKED_LOGITS = 400_000
"""Limit on the logits of all models trained at once; more do not fit into a core's cache."""


def attention_only(grid: AttentionOnly, progress: Progress = silent) -> pl.DataFrame:
    """Train every model of the grid, and measure how much of its table it stores.

    With one thread, the same grid gives the same bytes. The experiments are

    - ``heads``, ``head_width``, ``width``, ``square``: accuracy over H, K, D, and H where D = K;
    - ``parameters``: one head and an MLP, of as many parameters as the models of ``heads``;
    - ``narrow``: D = K = 2, where the bound is about a small share of what can be stored;
    - ``routing``: a head that stays random and an MLP, against the model of ``heads`` with the
      most heads: one stores in the MLP and the other in attention, and a bypass does not tell them
      apart. The third model has only the random head.

    `progress` is called with the numbers of finished steps and of all, each of a whole stack.

    Returns:
        As `ATTENTION_ONLY`: an experiment's shapes in the order of the grid, seed by seed, three
        quantities each. A model that is part of two experiments is trained once.
    """
    stacks = list(_stacks(grid))
    done, total = count(1), sum(steps for *_, steps in stacks)
    outcomes: dict[tuple[int, Shape, int], dict[str, float]] = {}
    for stacked, seeds, steps in stacks:
        stack = Stack(stacked, seeds)
        stack.train(steps, grid.learning_rate, lambda: progress(next(done), total))
        models = [(steps, *model) for model in zip(stacked, seeds, strict=True)]
        outcomes |= dict(zip(models, stack.outcomes(), strict=True))
    rows = [
        {
            **asdict(shape),
            "experiment": experiment,
            "parameters": shape.parameters,
            "seed": seed,
            "quantity": quantity,
            "value": value,
            "bound": _bound(quantity, shape, seed),
        }
        for experiment, members in shapes(grid).items()
        for shape in members
        for seed in grid.seeds
        for quantity, value in outcomes[_steps(experiment, grid), shape, seed].items()
    ]
    return experiment_table(ATTENTION_ONLY, rows)


def shapes(grid: AttentionOnly) -> dict[str, list[Shape]]:
    """The models of each experiment, seeds aside."""
    base = Shape(grid.vocabulary, grid.width, 1, grid.head_width)
    fixed = replace(base, heads=grid.fixed_heads)
    heads = [replace(base, heads=each) for each in grid.heads]
    most = max(heads, key=lambda each: each.heads)
    frozen = replace(base, architecture=FROZEN)
    return {
        "heads": heads,
        "head_width": [
            replace(fixed, head_width=each, architecture=architecture)
            for architecture in (PLAIN, SHARED)
            for each in grid.head_widths
        ],
        "width": [replace(fixed, width=each) for each in grid.widths],
        "square": [
            replace(base, width=width, head_width=width, heads=each)
            for width in grid.square_widths
            for each in grid.square_heads
        ],
        "parameters": [
            replace(base, hidden=equal_hidden(each), architecture=MLP)
            for each in heads
            if each.heads > 1
        ],
        "narrow": [Shape(grid.narrow_vocabulary, 2, each, 2) for each in grid.narrow_heads],
        "routing": [most, replace(frozen, hidden=equal_hidden(most)), frozen],
    }


def equal_hidden(shape: Shape) -> int:
    """Units of an MLP behind one head for about as many parameters; 0 for one head.

    A head has four matrices of D by K; a hidden unit reads D numbers, adds one, and writes D.
    """
    return round((shape.heads - 1) * 4 * shape.width * shape.head_width / (2 * shape.width + 1))


def stored(heads: int, head_width: int, width: int, *, chosen: bool = True) -> int:
    """The number of sequences that an attention-only transformer of one block can store.

    H min(K, D) + D: a head reads no more than D numbers, and an unembedding that is chosen too is
    worth D sequences; otherwise it is given. As printed: H K + D, and H K in the README.

    Source: arXiv 2411.10115, Theorem 1; `constructive` builds it.
    """
    return heads * min(head_width, width) + (width if chosen else 0)


def lower_bound(known: int, vocabulary: int, sequences: int) -> float:
    """The accuracy, 0 to 1, of a model that knows some of all sequences and guesses the others.

    Of N equally likely answers a guess is right in 1/N of the cases, on average over tables (in one
    table, more or fewer of the others may be right).

    Source: arXiv 2411.10115, Corollary 1.
    """
    return 1 / vocabulary + (1 - 1 / vocabulary) * min(1.0, known / sequences)


def _stacks(grid: AttentionOnly) -> Iterator[tuple[Sequence[Shape], Sequence[int], int]]:
    """The models in groups that can be trained at once: shapes, seeds, steps."""
    kinds: dict[Any, list[tuple[Shape, int]]] = {}
    for experiment, members in shapes(grid).items():
        steps = _steps(experiment, grid)
        for shape in members:
            kind = (steps, shape.architecture, shape.vocabulary, shape.hidden > 0)
            models = kinds.setdefault(kind, [])
            models += [(shape, seed) for seed in grid.seeds if (shape, seed) not in models]
    for (steps, _, vocabulary, _), models in kinds.items():
        # similar sizes together, since a stack computes with the size of its largest model
        models.sort(key=lambda model: model[0].parameters)
        size = max(1, STACKED_LOGITS // vocabulary**3)
        for start in range(0, len(models), size):
            stacked, seeds = zip(*models[start : start + size], strict=True)
            yield stacked, seeds, steps


def _steps(experiment: str, grid: AttentionOnly) -> int:
    """The steps for which the models of an experiment are trained."""
    return grid.narrow_steps if experiment == "narrow" else grid.steps


def _bound(quantity: str, shape: Shape, seed: int) -> float | None:
    """What a theorem says about a quantity of a model."""
    if quantity == "bypassed_accuracy":
        return ceiling(table(shape.vocabulary, seed))
    # heads that write through a bottleneck cannot produce the outputs of the theorem's proof
    if quantity != "accuracy" or shape.architecture != PLAIN:
        return None
    known = stored(shape.heads, shape.head_width, shape.width)
    return lower_bound(known, shape.vocabulary, shape.vocabulary**CONTEXT)
