"""Tries until a suffix is seen, against high precision."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from pipeline.measure.extraction import log_tries, out_within

LOG_PROBS = (-1e-300, -1e-12, -0.01, -0.5, -math.log(2), -1.0, -20.0, -36.9, -37.1, -100.0, -2000.0)


def exactly(log_prob: float, probability: float) -> float:
    """The logarithm of the number of tries, with a thousand digits."""
    with localcontext() as context:
        context.prec = 1000
        p = Decimal(log_prob).exp()
        tries = (1 - Decimal(probability)).ln() / (1 - p).ln()
        return max(0.0, float(tries.ln()))


@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("log_prob", LOG_PROBS)
def test_tries_are_right_to_the_last_digits(log_prob: float, probability: float) -> None:
    found = log_tries(np.array([log_prob]), probability)
    np.testing.assert_allclose(found, [exactly(log_prob, probability)], rtol=1e-13, atol=1e-13)


def test_nothing_underflows() -> None:
    """A float64 holds neither e⁻²⁰⁰⁰ nor 1 less that; what is twice as rare takes twice as long."""
    rare = log_tries(np.array([-2000.0, -2000.0 - math.log(2), -math.inf]))
    assert rare[0] == pytest.approx(2000 + math.log(math.log(2)), rel=1e-15)
    assert rare[1] - rare[0] == pytest.approx(math.log(2))
    assert rare[2] == math.inf
    assert np.all(np.diff(log_tries(-np.geomspace(1e-3, 5000, 2000))) >= 0)


def test_a_sure_suffix_takes_one_try() -> None:
    sure = np.array([0.0, 1e-9, math.log(0.5), math.log(0.49)])
    assert log_tries(sure)[:3].tolist() == [0, 0, 0]
    assert out_within(sure, 1).tolist() == [True, True, True, False]
    assert out_within(np.array([-math.inf, -2000.0, -14.0]), 10**6).tolist() == [False, False, True]
