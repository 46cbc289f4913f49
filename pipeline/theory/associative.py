"""How many pairs a linear associative memory holds, over its width.

One matrix W maps the embedding of i to the unembedding of its answer g(i), a permutation; a pair is
stored where g(i) has the largest logit. W is either the sum of the outer products (closed form), or
trained. Embeddings are random and stay as they are.

Shapes: R seeds, N pairs, D width. `embeddings` and `unembeddings` are (R, N, D) float32, `targets`
(R, N) the answer of each; W is (R, D, D), and takes an embedding from the right.

Source: the slides on arXiv 2411.10115, "Associative memory", after arXiv 2306.00802, which say that
the sum stores "only d" pairs.
"""

from collections.abc import Iterator, Sequence

import polars as pl
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.theory.columns import ASSOCIATIVE, experiment_table
from pipeline.theory.schema import Associative
from pipeline.theory.training import train

THRESHOLDS = {"capacity_50": 0.5, "capacity_99": 0.99}
"""Quantity -> the accuracy at which it is the number of stored pairs."""
SHARPNESS = 4.0
"""Factor of the logits in training, since embeddings of length one give small logits."""
QUADRATURE_POINTS = 200


def associative(grid: Associative) -> pl.DataFrame:
    """Fill memories with increasing numbers of pairs, until less than half of them are right.

    With one thread, the same grid gives the same bytes.

    Returns:
        As `ASSOCIATIVE`: for each experiment and width, accuracy over the number of pairs, then
        the pairs at each of `THRESHOLDS`, one row a seed.
    """
    kinds = [("closed", width) for width in grid.widths]
    kinds += [("trained", width) for width in grid.trained_widths]
    rows = [
        {"experiment": experiment, "width": width, **row}
        for experiment, width in kinds
        for row in _curve(experiment, width, grid)
    ]
    return experiment_table(ASSOCIATIVE, rows)


def closed_form(embeddings: Tensor, unembeddings: Tensor, targets: Tensor) -> Tensor:
    """W, the sum of the outer products of each pair."""
    answers = unembeddings.gather(1, targets[..., None].expand_as(unembeddings))
    return answers.mT @ embeddings


def trained(
    embeddings: Tensor, unembeddings: Tensor, targets: Tensor, steps: int, learning_rate: float
) -> Tensor:
    """W found by softmax regression, from the closed form on; `steps` and rate as of `train`."""
    matrix = closed_form(embeddings, unembeddings, targets)

    def losses() -> Tensor:
        logits = SHARPNESS * embeddings @ matrix.mT @ unembeddings.mT
        return functional.cross_entropy(logits.mT, targets, reduction="none").mean(1)

    train([matrix], losses, steps, learning_rate)
    return matrix


def predicted_accuracy(pairs: int, width: int) -> float:
    """The accuracy of the closed form if all interference were normal and independent.

    In units of |e|² of the own embedding e, the right logit is |u|², chi-squared with mean 1, and
    each of the other N - 1 pairs adds a product of two inner products, of variance 1/D². A wrong
    logit is a sum of N - 2 such products and two terms of variance |u|²/D and 1/D: those in which
    the own embedding, or the wrong unembedding, meets itself.

    Of N pairs, at least 2, and width D: a share, 0 to 1; half where N is about D² / (2 ln N).
    """
    points = (torch.arange(QUADRATURE_POINTS, dtype=torch.float64) + 0.5) / QUADRATURE_POINTS
    normal = torch.special.ndtri(points)
    spread = 2 / (9 * width)  # Wilson and Hilferty: the cube root of chi-squared is nearly normal
    length = (1 - spread + spread**0.5 * normal).clamp_min(0)[:, None] ** 3
    right = length + (pairs - 1) ** 0.5 / width * normal
    wrong = ((1 + length) / width + (pairs - 2) / width**2).sqrt()
    return float((torch.special.ndtr(right / wrong) ** (pairs - 1)).mean())


def capacity(pairs: Sequence[int], accuracies: Sequence[float], threshold: float) -> float | None:
    """The number of pairs at which accuracy falls below a threshold for the first time.

    `pairs` rise. Interpolated, linearly in log N; None where accuracy is never below, or above.
    """
    below = next((i for i, each in enumerate(accuracies) if each < threshold), None)
    if not below:
        return None
    low, high = pairs[below - 1 : below + 1]
    above, under = accuracies[below - 1 : below + 1]
    return float(low * (high / low) ** ((above - threshold) / (above - under)))


def _curve(experiment: str, width: int, grid: Associative) -> Iterator[dict[str, object]]:
    """The rows of one width, without it and the experiment."""
    tried: list[int] = []
    curves: dict[int, list[float]] = {seed: [] for seed in grid.seeds}
    for pairs in _numbers(grid.spacing):
        tried.append(pairs)
        predicted = predicted_accuracy(pairs, width) if experiment == "closed" else None
        row = {"pairs": pairs, "quantity": "accuracy", "predicted": predicted}
        for seed, value in _accuracies(experiment, width, pairs, grid).items():
            curves[seed].append(value)
            yield {**row, "seed": seed, "value": value}
        if all(curve[-1] < min(THRESHOLDS.values()) for curve in curves.values()):
            break
    for quantity, threshold in THRESHOLDS.items():
        for seed, curve in curves.items():
            if (held := capacity(tried, curve, threshold)) is not None:
                yield {"quantity": quantity, "bound": float(width), "seed": seed, "value": held}


def _accuracies(experiment: str, width: int, pairs: int, grid: Associative) -> dict[int, float]:
    """The accuracy of each seed."""
    drawn = [_draw(pairs, width, seed) for seed in grid.seeds]
    embeddings, unembeddings, targets = (torch.stack(each) for each in zip(*drawn, strict=True))
    if experiment == "trained":
        matrix = trained(embeddings, unembeddings, targets, grid.steps, grid.learning_rate)
    else:
        matrix = closed_form(embeddings, unembeddings, targets)
    logits = embeddings @ matrix.mT @ unembeddings.mT
    right = (logits.argmax(-1) == targets).double().mean(1).tolist()
    return dict(zip(grid.seeds, right, strict=True))


def _draw(pairs: int, width: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings and unembeddings of length about one, and a permutation."""
    generator = torch.Generator().manual_seed(seed)
    embeddings, unembeddings = torch.randn(2, pairs, width, generator=generator) / width**0.5
    return embeddings, unembeddings, torch.randperm(pairs, generator=generator)


def _numbers(spacing: float) -> Iterator[int]:
    """Whole numbers from 2 on, each about `spacing` times the one before."""
    exact = 2.0
    while True:
        yield round(exact)
        exact = max(exact * spacing, round(exact) + 1)
