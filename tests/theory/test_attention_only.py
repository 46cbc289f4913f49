"""Trained transformers of one block: the model against a plain one, and what the study shows."""

import math
from dataclasses import replace
from itertools import product

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.theory.attention_only import attention_only, equal_hidden, lower_bound, shapes, stored
from pipeline.theory.small_transformer import FROZEN, MLP, SHARED, Shape, Stack, ceiling, initial
from pipeline.theory.small_transformer import table as answers
from tests.theory.conftest import GRIDS

GRID = GRIDS["attention_only"]
SHAPES = [
    Shape(6, 4, 3, 2),
    Shape(6, 4, 3, 2, architecture=SHARED),
    Shape(6, 4, 1, 4, hidden=7, architecture=MLP),
    Shape(6, 4, 2, 3, hidden=9, architecture=FROZEN),
]


@pytest.fixture(scope="module")
def frame(table):
    return table("attention_only")


def means(frame, experiment, architecture="attention-only"):
    """The mean accuracy over the seeds for each shape, in the order of the grid."""
    found = frame.filter(experiment=experiment, architecture=architecture, quantity="accuracy")
    by_shape = found.group_by("width", "heads", "head_width", "hidden", maintain_order=True)
    return by_shape.agg(pl.col("value").mean())["value"].to_list()


def plainly(shape, parameters, first, last, bypass):
    """The logits of one pair, head by head and position by position."""
    p = {name: value.double() for name, value in parameters.items()}
    stream = torch.stack([p["embedding"][first], p["embedding"][last]]) + p["position"]
    inner = stream @ p["narrow"] if "narrow" in p else stream
    written = torch.zeros(inner.shape[1], dtype=torch.float64)
    for head in range(shape.heads):
        query, key, value = (inner @ p[name][head] for name in ("query", "key", "value"))
        weights = (key @ query[1] / math.sqrt(shape.head_width)).softmax(0)
        if bypass:
            weights = torch.tensor([0.0, 1.0]).double()
        written += weights @ value @ p["output"][head]
    end = stream[1] + (written @ p["widen"] if "widen" in p else written)
    if shape.hidden:
        hidden = torch.nn.functional.gelu(end @ p["enter"] + p["offset"])
        end = end + hidden @ p["leave"]
    return end @ p["unembedding"].T


# ------------------------------------------------------------- the model


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.architecture)
def test_the_logits_are_those_of_a_plain_transformer(shape, bypass):
    stack = Stack([shape, shape], [3, 4])
    if shape.hidden:
        stack.parameters["offset"] += 0.3
    for model, (first, last) in product(range(2), ((0, 0), (1, 5), (4, 2))):
        parameters = {name: value[model] for name, value in stack.parameters.items()}
        ours = stack.logits(bypass)[model, last, first].double()
        plain = plainly(shape, parameters, first, last, bypass)
        torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.architecture)
def test_a_filling_of_zeros_changes_nothing(shape):
    hidden = shape.hidden + 5 if shape.hidden else 0
    larger = replace(shape, width=7, heads=shape.heads + 2, head_width=6, hidden=hidden)
    alone, beside = Stack([shape], [1]), Stack([shape, larger], [1, 2])
    torch.testing.assert_close(alone.logits()[0], beside.logits()[0])
    for stack in (alone, beside):
        stack.train(6, 0.02)
    torch.testing.assert_close(alone.logits()[0], beside.logits()[0], atol=1e-4, rtol=1e-4)
    for name, value in beside.parameters.items():
        corner = tuple(slice(length) for length in shape.sizes[name])
        filling = value[0].clone()
        filling[corner] = 0
        assert (filling == 0).all()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.architecture)
def test_all_learns_but_what_is_frozen(shape):
    start, stack = initial(shape, 5), Stack([shape], [5])
    assert shape.parameters == sum(value.numel() for value in start.values())
    before = stack.losses()
    stack.train(60, 0.02)
    kept = {n for n, value in stack.parameters.items() if torch.equal(value[0], start[n])}
    frozen = shape.architecture == FROZEN
    assert kept == ({"query", "key", "value", "output"} if frozen else set())
    assert (stack.losses() < before - 0.5).all()


# ------------------------------------------------------------- bypass


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1_000), vocabulary=st.integers(2, 9), scale=st.floats(0.1, 30))
def test_no_bypassed_model_is_above_the_ceiling(seed, vocabulary, scale):
    shape = Shape(vocabulary, 4, 2, 3, hidden=5, architecture=MLP)
    stack = Stack([shape], [seed])
    for value in stack.parameters.values():
        value *= scale
    most = ceiling(answers(vocabulary, seed))
    assert stack.outcomes()[0]["bypassed_accuracy"] <= most + 1e-9


def test_the_ceiling_by_hand():
    assert ceiling(torch.tensor([[0, 0, 1], [2, 1, 0], [1, 1, 1]])) == pytest.approx(6 / 9)


def test_a_drop_under_bypass_does_not_tell_where_the_table_is_stored(frame):
    """One has no MLP; the attention of the others is as random as it began, and stores nothing."""
    kept = frame.filter(experiment="routing", seed=0)
    found = kept.filter(quantity="accuracy").select("architecture", "heads", "hidden")
    assert found.rows() == [
        ("attention-only", 9, 0),
        ("frozen-attention", 1, 73),
        ("frozen-attention", 1, 0),
    ]
    *stored, alone = kept.pivot("quantity", index=["architecture", "hidden"], values="value").rows(
        named=True
    )
    assert all(each["accuracy"] > max(0.6, 3 * each["bypassed_accuracy"]) for each in stored)
    assert alone["accuracy"] < 0.45


# ------------------------------------------------------------- the study


def test_accuracy_rises_with_heads_and_stays_over_the_bound(frame):
    accuracies = means(frame, "heads")
    assert accuracies == sorted(accuracies)
    assert accuracies[0] < 0.5
    assert accuracies[-1] > 0.95
    bounded = frame.filter(quantity="accuracy").drop_nulls("bound")
    assert (bounded["value"] > bounded["bound"]).all()
    assert set(bounded["architecture"]) == {"attention-only"}


def test_a_bottleneck_that_heads_share_changes_the_growth_with_the_head_width(frame):
    own = means(frame, "head_width")
    shared = means(frame, "head_width", architecture="shared-bottleneck")
    assert own == sorted(own)
    assert shared == sorted(shared)
    assert own[0] > shared[0] + 0.1
    assert own[1] > shared[1] + 0.2
    # a step from 1 to 2 is worth more than a third of that from 2 to 5, and less with a bottleneck
    assert own[1] - own[0] > (own[2] - own[1]) / 3
    assert shared[1] - shared[0] < (shared[2] - shared[1]) / 3


def test_accuracy_rises_with_the_width(frame):
    assert means(frame, "width")[0] < means(frame, "width")[1] - 0.1
    assert means(frame, "square")[0] < means(frame, "square")[1]
    assert means(frame, "narrow")[0] < means(frame, "narrow")[1]


def test_an_mlp_of_equal_parameters_stores_about_as_much(frame):
    attends = means(frame, "heads")[1:]
    stores = means(frame, "parameters", architecture="mlp")
    assert len(stores) == 2
    assert all(abs(a - b) < 0.25 for a, b in zip(attends, stores, strict=True))


def test_every_member_is_there_and_no_bypassed_one_above_the_ceiling(frame):
    assert len(frame) == sum(len(each) for each in shapes(GRID).values()) * 3 * 3
    bypassed = frame.filter(quantity="bypassed_accuracy")
    assert (bypassed["value"] <= bypassed["bound"] + 1e-9).all()


def test_progress_and_what_is_trained_beside_a_model(threads):
    small = {"heads": [1, 3], "head_widths": [1], "widths": [3], "steps": 8, "narrow_steps": 8}
    small = GRID.model_copy(update={**small, "seeds": [4, 2]})
    told = []
    with threads(1):
        one = attention_only(small, lambda *numbers: told.append(numbers))
        again = attention_only(small.model_copy(update={"seeds": [2]}))
    assert told == [(done, len(told)) for done in range(1, len(told) + 1)]
    close = one.filter(seed=2)["value"] - again["value"]
    assert (close.abs() < 0.05).all()  # what is beside a model changes its rounding alone


# ------------------------------------------------------------- the numbers


@pytest.mark.parametrize("heads", [2, 6, 31])
def test_the_rival_has_as_many_parameters(heads):
    shape = Shape(50, 10, heads, 10)
    rival = replace(shape, heads=1, hidden=equal_hidden(shape), architecture=MLP)
    assert abs(rival.parameters - shape.parameters) <= 2 * 10 + 1
    assert equal_hidden(replace(shape, heads=1)) == 0


def test_the_lower_bound_by_hand():
    assert stored(31, 10, 10) == 320
    assert stored(31, 10, 10, chosen=False) == 310
    assert stored(20, 10, 4) == 84  # a head reads four numbers, however wide it is
    assert lower_bound(320, 50, 2500) == pytest.approx(0.02 + 0.98 * 0.128)
    assert lower_bound(stored(17, 2, 2), 10, 100) == pytest.approx(0.1 + 0.9 * 0.36)
    assert lower_bound(9_999, 50, 2500) == 1
