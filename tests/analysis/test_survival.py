"""Survival at equal baseline probability, against a loop over tokens."""

import numpy as np
import pytest
from scipy import stats

from pipeline.analysis.survival import EDGES, Tokens, survival


def simulated(seed, n_samples, gap=0.0, low=-0.5, per_sample=20, shift=0.0):
    """Tokens whose survival rises with log p, lower by `gap` than that."""
    random = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_samples), per_sample)
    log_prob = np.log(random.uniform(np.exp(low), 1, len(groups))) + shift
    chance = np.clip(0.4 + 0.5 * np.exp(log_prob) - gap, 0, 1)
    stays = random.random((len(groups), 2)) < chance[:, None]
    return Tokens(log_prob, groups, stays)


def by_loop(own, theirs, v):
    """Each memorized token beside the mean of the control tokens of its bin."""

    def bin_of(log_prob):
        return sum(log_prob > edge for edge in EDGES)

    found, bins = [], np.array([bin_of(log_prob) for log_prob in theirs.log_prob])
    for log_prob, stays in zip(own.log_prob, own.stays[:, v], strict=True):
        same = theirs.stays[bins == bin_of(log_prob), v]
        if len(same):
            found.append((stays, same.mean()))
    return *np.mean(found, axis=0), len(found)


def test_the_matching_is_that_of_a_loop():
    own, theirs = simulated(0, 30, low=-0.1), simulated(1, 20, low=-3)
    found = survival(own, theirs)
    for v in range(2):
        mine, other, count = by_loop(own, theirs, v)
        assert found.memorized.value[v] == pytest.approx(mine)
        assert found.control.value[v] == pytest.approx(other)
        assert found.gap.value[v] == pytest.approx(mine - other)
        assert found.matched == pytest.approx(count / len(own.log_prob))


def test_tokens_without_a_control_of_equal_probability_are_left_out():
    own, theirs = simulated(0, 30, low=-0.001), simulated(1, 30, shift=-1.0)
    assert survival(own, theirs) is None
    nobody = Tokens(np.empty(0), np.empty(0, int), np.empty((0, 2), bool))
    assert survival(own, nobody) is None
    assert survival(nobody, theirs) is None
    alike = Tokens(np.full(8, -0.01), np.arange(8), np.ones((8, 1), bool))
    [found] = {(gap.value[0], *gap.low, *gap.high) for gap in [survival(alike, alike).gap]}
    reach = stats.t.ppf(0.975, 7) ** 2 / 8  # what 8 samples may have missed
    assert found == pytest.approx((0, -reach, reach))
    one = Tokens(np.full(8, -0.01), np.zeros(8, int), np.ones((8, 1), bool))
    assert np.isnan(survival(one, one).gap.low).all()  # of one sample there is no interval


@pytest.mark.parametrize(("gap", "n_samples"), [(0.0, 40), (0.2, 40), (0.0, 8)])
def test_the_interval_holds_the_truth(gap, n_samples):
    """Memorized tokens are likelier, so that unmatched they would seem to survive more often."""
    held = []
    for seed in range(100):
        own = simulated(2 * seed, n_samples, gap, low=-0.05)
        theirs = simulated(2 * seed + 1, n_samples, low=-1)
        found = survival(own, theirs)
        held += list((found.gap.low <= -gap) & (-gap <= found.gap.high))
    assert np.mean(held) > 0.93


def test_few_samples_of_alike_tokens_are_no_certainty():
    """Eight samples, whose tokens often go together, as of a model that recites few."""
    random, held = np.random.default_rng(0), []
    for _ in range(200):
        both = []
        for _ in range(2):
            chance = random.beta(9 * 0.9, 9 * 0.1, 8)  # mean .9, correlation .1 within a sample
            stays = random.random((8, 16)) < chance[:, None]
            groups = np.repeat(np.arange(8), 16)
            both.append(Tokens(np.full(128, -0.01), groups, stays.reshape(-1, 1)))
        found = survival(*both)
        held.append((found.gap.low <= 0 <= found.gap.high) & (found.memorized.high >= 0.9))
    assert np.mean(held) > 0.93  # a bootstrap's percentiles hold in .8 to .9


def test_tokens_of_a_sample_that_go_together_count_once():
    random = np.random.default_rng(0)
    groups = np.arange(40)
    stays = random.random((40, 1)) < 0.6
    once = Tokens(np.full(40, -0.01), groups, stays)
    often = Tokens(np.full(400, -0.01), np.repeat(groups, 10), np.repeat(stays, 10, 0))
    theirs = Tokens(np.full(40, -0.01), groups, random.random((40, 1)) < 0.6)
    narrow, wide = (survival(each, theirs).gap for each in (often, once))
    np.testing.assert_allclose(narrow.value, wide.value)
    np.testing.assert_allclose(narrow.high - narrow.low, wide.high - wide.low, rtol=0.01)
