"""The capacity of a linear associative memory, closed form and trained, against its prediction."""

import math

import polars as pl
import pytest
import torch

from pipeline.theory.associative import capacity, closed_form, predicted_accuracy, trained


@pytest.fixture(scope="module")
def frame(table):
    return table("associative")


def capacities(frame, experiment, quantity):
    """Width -> the mean over the seeds."""
    found = frame.filter(experiment=experiment, quantity=quantity).group_by("width")
    return dict(found.agg(pl.col("value").mean()).iter_rows())


def test_the_sum_stores_more_than_its_width_and_less_than_its_square(frame):
    half, nearly = (capacities(frame, "closed", f"capacity_{each}") for each in (50, 99))
    assert half[16] > 1.2 * 16
    assert half[32] > 2.5 * 32
    assert half[64] > 4.5 * 64
    exponent = math.log(half[64] / half[16]) / math.log(4)
    assert 1.5 < exponent < 2
    every = frame.filter(experiment="closed", quantity="capacity_50")
    assert (every["value"] > every["bound"]).all()
    assert (every["bound"] == every["width"]).all()
    # nearly all right is another matter
    assert all(nearly[width] < half[width] / 3 for width in half)
    assert nearly[32] < 32  # here the slides' number is too high


def test_training_stores_a_share_of_the_parameters(frame):
    found = capacities(frame, "trained", "capacity_99")
    assert all(0.12 < value / width**2 < 0.35 for width, value in found.items())
    assert found[16] > 2 * capacities(frame, "closed", "capacity_99")[16]


def test_the_prediction_fits(frame):
    curves = frame.drop_nulls("predicted").group_by("width", "pairs")
    found = curves.agg(pl.col("value").mean(), pl.col("predicted").first()).filter(
        (pl.col("width") >= 32) & (pl.col("pairs") > 20)
    )
    assert len(found) > 15
    assert ((found["value"] - found["predicted"]).abs() < 0.07).all()
    assert frame.filter(experiment="trained")["predicted"].is_null().all()


def test_the_prediction_by_sampling():
    generator = torch.Generator().manual_seed(0)
    width, pairs, draws = 30, 40, 20_000
    length = torch.randn(draws, width, generator=generator).square().mean(1)
    right = length + math.sqrt(pairs - 1) / width * torch.randn(draws, generator=generator)
    deviation = ((1 + length) / width + (pairs - 2) / width**2).sqrt()
    wrong = deviation[:, None] * torch.randn(draws, pairs - 1, generator=generator)
    share = (right > wrong.max(1).values).float().mean()
    assert predicted_accuracy(pairs, width) == pytest.approx(float(share), abs=0.015)


def test_the_prediction_is_about_the_square_over_twice_the_logarithm():
    for width in (256, 1024):
        pairs = width**2
        for _ in range(20):
            pairs = width**2 / (2 * math.log(pairs))
        assert 0.25 < predicted_accuracy(int(pairs), width) < 0.75
        assert predicted_accuracy(int(2 * pairs), width) < 0.25
        assert predicted_accuracy(int(pairs / 2), width) > 0.75


def test_orthogonal_embeddings_are_stored_exactly():
    generator = torch.Generator().manual_seed(0)
    embeddings, unembeddings = (
        torch.linalg.qr(torch.randn(1, 12, 12, generator=generator)).Q for _ in range(2)
    )
    targets = torch.randperm(12, generator=generator)[None]
    matrix = closed_form(embeddings, unembeddings, targets)
    logits = embeddings @ matrix.mT @ unembeddings.mT
    wanted = torch.nn.functional.one_hot(targets, 12).float()
    torch.testing.assert_close(logits, wanted, atol=1e-5, rtol=0)


def test_a_trained_memory_does_not_depend_on_those_beside_it():
    generator = torch.Generator().manual_seed(0)
    embeddings, unembeddings = torch.randn(2, 3, 20, 8, generator=generator) / 8**0.5
    targets = torch.stack([torch.randperm(20, generator=generator) for _ in range(3)])
    together = trained(embeddings, unembeddings, targets, steps=5, learning_rate=0.05)
    for i in range(3):
        alone = trained(embeddings[i : i + 1], unembeddings[i : i + 1], targets[i : i + 1], 5, 0.05)
        torch.testing.assert_close(alone[0], together[i], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("accuracies", "threshold", "wanted"),
    [
        ([1.0, 1.0, 0.6, 0.4], 0.5, 8 * 2**0.5),
        ([1.0, 0.4, 0.6, 0.2], 0.5, 2 * 2 ** (0.5 / 0.6)),
        ([1.0, 0.9, 0.8, 0.7], 0.5, None),
        ([0.4, 0.3, 0.2, 0.1], 0.5, None),
    ],
)
def test_capacity_by_hand(accuracies, threshold, wanted):
    found = capacity([2, 4, 8, 16], accuracies, threshold)
    assert found == (None if wanted is None else pytest.approx(wanted))
