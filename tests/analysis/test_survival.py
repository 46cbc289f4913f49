"""Survival at equal baseline probability, against a loop over tokens."""

import numpy as np
import pytest

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

    found = []
    bins = [bin_of(log_prob) for log_prob in theirs.log_prob]
    for log_prob, stays in zip(own.log_prob, own.stays[:, v], strict=True):
        here = bin_of(log_prob)
        same = [theirs.stays[i, v] for i, other in enumerate(bins) if other == here]
        if same:
            found.append((float(stays), sum(same) / len(same)))
    return np.mean([a for a, _ in found]), np.mean([b for _, b in found]), len(found)


def test_the_matching_is_that_of_a_loop():
    own, theirs = simulated(0, 30, low=-0.1), simulated(1, 20, low=-3)
    found = survival(own, theirs, 0)
    for v in range(2):
        mine, other, count = by_loop(own, theirs, v)
        assert found.memorized.value[v] == pytest.approx(mine)
        assert found.control.value[v] == pytest.approx(other)
        assert found.gap.value[v] == pytest.approx(mine - other)
        assert found.matched == pytest.approx(count / len(own.log_prob))


def test_tokens_of_other_probability_are_left_out():
    """Control tokens that are less likely by far cannot be compared with."""
    own, theirs = simulated(0, 30, low=-0.001), simulated(1, 30, shift=-1.0)
    assert survival(own, theirs, 0) is None
    nobody = Tokens(np.empty(0), np.empty(0, int), np.empty((0, 2), bool))
    assert survival(own, nobody, 0) is None
    assert survival(nobody, theirs, 0) is None
    alike = Tokens(np.full(8, -0.01), np.arange(8), np.ones((8, 1), bool))
    found = survival(alike, alike, 0)  # where all agree there is no interval
    assert found.gap.value == 0
    assert np.isnan(found.gap.low).all()


@pytest.mark.parametrize("gap", [0.0, 0.2])
def test_the_interval_holds_the_truth(gap):
    """Memorized tokens are likelier, so that unmatched they would seem to survive more often."""
    held = []
    for seed in range(40):
        own = simulated(2 * seed, 40, gap, low=-0.05)
        theirs = simulated(2 * seed + 1, 40, low=-1)
        found = survival(own, theirs, seed, draws=200)
        held += list((found.gap.low <= -gap) & (-gap <= found.gap.high))
    assert np.mean(held) > 0.85


def test_samples_are_drawn_whole():
    """Tokens of a sample that go together count once: copies of them narrow nothing."""
    random = np.random.default_rng(0)
    groups = np.arange(40)
    stays = random.random((40, 1)) < 0.6
    once = Tokens(np.full(40, -0.01), groups, stays)
    often = Tokens(np.full(400, -0.01), np.repeat(groups, 10), np.repeat(stays, 10, 0))
    theirs = Tokens(np.full(40, -0.01), groups, random.random((40, 1)) < 0.6)
    narrow, wide = (vars(survival(each, theirs, 3).gap) for each in (often, once))
    for name in wide:
        assert narrow[name] == pytest.approx(wide[name]), name
