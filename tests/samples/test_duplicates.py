"""Near-duplicates are found, against every pair compared."""

from itertools import pairwise

import numpy as np

from pipeline.samples.duplicates import ALIKE, suffix_groups


def similarity(one: np.ndarray, other: np.ndarray) -> float:
    a, b = ({*pairwise(each.tolist())} for each in (one, other))
    return len(a & b) / len(a | b)


def test_one_other_token_is_a_near_duplicate() -> None:
    random = np.random.default_rng(0)
    suffixes = random.integers(1000, size=(60, 32))
    suffixes[20:40] = suffixes[:20]
    suffixes[20:40, 16] = 1001
    suffixes[40] = suffixes[0]
    groups = suffix_groups(suffixes)
    assert (groups[:20] == np.arange(20)).all()
    assert (groups[20:40] == np.arange(20)).all()
    assert groups[40] == 0
    assert len(set(groups[41:])) == 19
    assert (groups == suffix_groups(suffixes)).all()


def test_pairs_that_share_a_group_are_linked() -> None:
    """Every group is a chain of pairs that are alike; a pair far from the limit is never missed."""
    random = np.random.default_rng(1)
    suffixes = random.integers(500, size=(12, 20))[random.integers(12, size=80)]
    changed = random.random(suffixes.shape) < 0.04
    suffixes = np.where(changed, random.integers(500, size=suffixes.shape), suffixes)
    groups = suffix_groups(suffixes)
    for i in range(80):
        near = [similarity(suffixes[i], suffixes[j]) for j in range(80)]
        own = [near[j] for j in range(80) if j != i and groups[j] == groups[i]]
        assert not own or max(own) >= ALIKE
        assert all(groups[j] == groups[i] for j in range(80) if near[j] >= ALIKE + 0.15)


def test_suffixes_of_one_token() -> None:
    assert suffix_groups(np.array([[1], [2], [1]])).tolist() == [0, 1, 0]
