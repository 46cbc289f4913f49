"""The bound on look-up tables: where the printed one says nothing, and that the corrected holds."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.theory.lookup import (
    coherence,
    corrected_bound,
    distributions,
    divergence,
    entropy,
    logits,
    printed_bound,
    unit_rows,
)


def case(seed, vocabulary, width, mistake, contexts=20):
    generator = torch.Generator().manual_seed(seed)
    directions = unit_rows(vocabulary, width, generator)
    answers = torch.randint(vocabulary, (contexts,), generator=generator)
    return distributions(answers, vocabulary, mistake, generator), answers, directions


def mean_divergence(table, answers, directions):
    return float(divergence(table, logits(table, answers, directions)).mean())


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.integers(3, 60),
    width=st.integers(2, 80),
    mistake=st.floats(0.001, 0.6),
)
def test_the_corrected_bound_holds(seed, vocabulary, width, mistake):
    table, answers, directions = case(seed, vocabulary, width, mistake)
    coherent = coherence(directions)
    assume(coherent < 0.999 and mistake < 1 - 1 / vocabulary)
    value = mean_divergence(table, answers, directions)
    assert value <= corrected_bound(table, answers, coherent) * (1 + 1e-9) + 1e-12


def test_half_of_the_corrected_bound_does_not_hold():
    table, answers, directions = case(0, 40, 600, 0.3)
    value = mean_divergence(table, answers, directions)
    assert value > corrected_bound(table, answers, coherence(directions)) / 2
    # with orthogonal rows it is what is lost
    directions = torch.eye(40, dtype=torch.float64)
    value = mean_divergence(table, answers, directions)
    assert value == pytest.approx(corrected_bound(table, answers, 0.0), rel=1e-9)


def test_the_answer_gets_the_probability_that_it_should():
    table, answers, directions = case(1, 30, 12, 0.2)
    made = logits(table, answers, directions).softmax(1).gather(1, answers[:, None])[:, 0]
    torch.testing.assert_close(made, (-entropy(table)).exp())


def test_the_divergence_is_the_scale_times_the_mean_gap():
    table, answers, directions = case(2, 30, 12, 0.2)
    made = logits(table, answers, directions)
    gaps = made.gather(1, answers[:, None]) - made
    torch.testing.assert_close(divergence(table, made), (table * gaps).sum(1))


def test_the_printed_bound_says_nothing_up_to_a_width_of_128_logarithms():
    """And nothing at all with the sign as printed: the logarithm is of a negative number."""
    table, answers, _ = case(0, 40, 600, 0.3)
    assert ((-entropy(table)).expm1() < 0).all()
    assert printed_bound(table, answers, width=600, sign=-1) is None
    limit = 128 * math.log(41)
    assert printed_bound(table, answers, math.floor(limit), sign=1) is None
    assert printed_bound(table, answers, math.ceil(limit), sign=1) > 0


def test_the_slack_of_the_printed_bound():
    table, answers, directions = case(0, 40, 600, 0.02)
    value = mean_divergence(table, answers, directions)
    printed = printed_bound(table, answers, 600, sign=1)
    assert printed > 20 * value
    assert corrected_bound(table, answers, coherence(directions)) < 1.6 * value


def test_the_table(table):
    frame = table("lookup")
    assert len(frame) == 3 * 2 * 3 * 3
    bounded = frame.drop_nulls("bound")
    assert (bounded["value"] <= bounded["bound"]).all()
    counts = dict(bounded.group_by("statement").len().iter_rows())
    assert counts == {"corrected": 18, "entropy_sign": 6}
    narrow, wide = (frame.filter(width=width)["coherence"].mean() for width in (16, 600))
    assert wide < narrow / 2
