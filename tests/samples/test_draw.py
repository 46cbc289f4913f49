"""A draw depends on the seed and on what there is to draw from, not on its order."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.samples.draw import draw, number

IDS = st.sets(st.integers(0, 2**62), max_size=40).map(sorted)


@given(IDS, st.integers(0, 50), st.integers(0, 9), st.randoms(use_true_random=False))
def test_the_order_does_not_matter(ids: list[int], n: int, seed: int, rng: random.Random) -> None:
    drawn = draw(ids, n, seed).tolist()
    assert draw(rng.sample(ids, len(ids)), n, seed).tolist() == drawn == sorted(drawn)
    assert set(drawn) <= set(ids)
    assert len(drawn) == min(n, len(ids))


@given(IDS, st.integers(0, 40), st.integers(0, 9))
def test_a_larger_draw_holds_the_smaller_one(ids: list[int], n: int, seed: int) -> None:
    assert set(draw(ids, n, seed)) <= set(draw(ids, n + 1, seed))


@given(IDS, IDS, st.integers(0, 40), st.integers(0, 9))
def test_others_push_out_but_never_reorder(
    ids: list[int], others: list[int], n: int, seed: int
) -> None:
    both = set(draw(sorted({*ids, *others}), n, seed).tolist())
    assert both & set(ids) <= set(draw(ids, n, seed).tolist())


def test_seeds_draw_differently_and_evenly() -> None:
    ids = range(1000)
    one, other = (draw(ids, 500, seed) for seed in (0, 1))
    assert 200 < len(np.intersect1d(one, other)) < 300, "half of one half lies in another"
    assert 220 < (one < 500).sum() < 280
    assert draw(ids, 500, 0).tolist() == one.tolist()


def test_a_draw_is_the_same_on_every_machine() -> None:
    assert number(7, 146_432_000) == 7194114286548280493
    assert draw(range(100), 5, 0).tolist() == [3, 37, 52, 62, 74]
    assert draw(range(100), 5, 1).tolist() == [30, 36, 65, 85, 93]
