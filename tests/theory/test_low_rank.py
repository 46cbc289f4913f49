"""The bounds on maps of low rank: which of them always hold, and where the printed ones do not."""

import math

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.theory.low_rank import (
    Table,
    bounds,
    decompose,
    loss,
    phi,
    printed_bound,
    range_bound,
    spectral_bound,
    truncate,
    variance_bound,
)

ALWAYS = ("variance", "range", "spectral")


def drawn(seed, contexts, vocabulary, spread, unevenness):
    """A table of random logits; the prior varies by a factor of e^unevenness."""
    generator = torch.Generator().manual_seed(seed)
    size = {"generator": generator, "dtype": torch.float64}
    weights = (unevenness * torch.rand(contexts, **size)).exp()
    return Table.of(spread * torch.randn(contexts, vocabulary, **size), weights)


def mapped(table, rank, weighted):
    return truncate(table, decompose(table, weighted), rank, weighted)


def close_to_uniform(contexts=300, vocabulary=30):
    return drawn(0, contexts, vocabulary, spread=0.01, unevenness=0)


ANY_TABLE = st.builds(
    drawn,
    seed=st.integers(0, 10_000),
    contexts=st.integers(2, 40),
    vocabulary=st.integers(2, 15),
    spread=st.floats(0.001, 12),
    unevenness=st.floats(0, 12),
)


def assert_at_most(value, bound):
    assert value <= bound * (1 + 1e-9) + 1e-12


@settings(max_examples=150, deadline=None)
@given(table=ANY_TABLE, rank=st.integers(0, 14), weighted=st.booleans())
def test_what_always_holds_does(table, rank, weighted):
    logits, tail = mapped(table, rank, weighted)
    found = bounds(table, logits, tail, weighted)
    for name in (*ALWAYS, *(() if weighted else ("printed_conditional",))):
        assert_at_most(loss(table, logits), found[name])


@settings(max_examples=100, deadline=None)
@given(table=ANY_TABLE, seed=st.integers(0, 10_000), scale=st.floats(0, 20))
def test_the_bounds_of_a_row_hold_for_any_logits(table, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(table.given.shape, generator=generator, dtype=torch.float64)
    assert_at_most(loss(table, logits), variance_bound(table, logits))
    assert_at_most(loss(table, logits), range_bound(table, logits))


def test_half_of_the_variance_bound_does_not_hold():
    table = close_to_uniform()
    for weighted in (False, True):
        logits, _ = mapped(table, 4, weighted)
        assert loss(table, logits) > 0.9 * variance_bound(table, logits)


def test_half_of_the_range_and_the_spectral_bound_do_not_hold():
    # two tokens and one context: a gap as large as can be for its range, and for its length
    table = Table(torch.ones(1).double(), torch.tensor([[0.5, 0.5]]).double())
    logits = torch.tensor([[0.01, -0.01]]).double()
    value = loss(table, logits)
    tail = torch.linalg.svdvals(logits - table.logs)
    assert value == pytest.approx(range_bound(table, logits), rel=1e-3)
    for weighted in (False, True):
        assert value == pytest.approx(spectral_bound(table, tail, weighted), rel=1e-3)


def test_the_printed_bound_for_ls_fails_with_the_largest_joint_probability():
    table = close_to_uniform()
    joint = table.prior[:, None] * table.given
    for raw in (False, True):  # L as it is, and centred
        logs = table.given.log() if raw else table.logs
        left, values, right = torch.linalg.svd(logs, full_matrices=False)
        for rank in (2, 8, 20):
            logits = (left[:, :rank] * values[:rank]) @ right[:rank]
            value = loss(table, logits)
            assert value > 3 * printed_bound(joint, values[rank:], False)
            assert value < printed_bound(table.given, values[rank:], False)


def test_the_printed_bound_for_wls_fails_near_uniform_with_either_reading():
    table = close_to_uniform()
    joint = table.prior[:, None] * table.given
    ratios = []
    for rank in (2, 8, 16):
        logits, tail = mapped(table, rank, weighted=True)
        ratios.append(loss(table, logits) / printed_bound(table.given, tail, True))
        assert loss(table, logits) > printed_bound(joint, tail, True)
    assert ratios[0] > 5
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] > 1.5


def test_what_wls_loses_is_half_the_variance_to_which_all_values_left_out_add():
    table = close_to_uniform()
    logits, tail = mapped(table, 5, weighted=True)
    second_order = float((tail**2).sum()) / (2 * table.given.shape[1])
    assert loss(table, logits) == pytest.approx(second_order, rel=0.02)
    assert float((tail**2).sum()) > 10 * float(tail[0]) ** 2


@pytest.mark.parametrize("weighted", [False, True])
def test_one_less_than_the_vocabulary_is_rank_enough(weighted):
    table = drawn(3, 50, 9, spread=2, unevenness=3)
    assert loss(table, mapped(table, 8, weighted)[0]) == pytest.approx(0, abs=1e-12)
    assert loss(table, mapped(table, 7, weighted)[0]) > 1e-3
    assert torch.linalg.matrix_rank(table.given.log()) == 9  # without centring it is not


def test_with_an_even_prior_both_maps_are_the_same():
    table = drawn(1, 40, 10, spread=1, unevenness=0)
    torch.testing.assert_close(mapped(table, 3, False)[0], mapped(table, 3, True)[0])


def test_weighting_helps_where_the_prior_is_uneven():
    table = drawn(2, 200, 20, spread=0.2, unevenness=6)
    plain, weighted = (loss(table, mapped(table, 6, each)[0]) for each in (False, True))
    assert weighted < 0.95 * plain


def test_the_loss_by_hand():
    given = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    table = Table(torch.tensor([0.25, 0.75]).double(), given)
    logits = torch.tensor([[math.log(3), 0.0], [0.0, 0.0]]).double()
    first = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    second = math.log(2) + 0.9 * math.log(0.9) + 0.1 * math.log(0.1)
    assert loss(table, logits) == pytest.approx(0.25 * first + 0.75 * second, abs=1e-6)


def test_phi_is_smooth_and_rises():
    points = torch.linspace(-3, 3, 6001, dtype=torch.float64)
    values = phi(points)
    assert values[3000] == 0.5
    assert (values.diff() > 0).all()
    assert (values.diff() < 2e-3).all()


def test_the_table(table):
    frame = table("low_rank")
    assert len(frame) == 2 * 4 * 3 * 3 * 5
    holds = frame.filter(pl.col("statement").is_in(ALWAYS))
    assert (holds["value"] <= holds["bound"]).all()
    near = frame.filter(table="nearly-uniform", statement="printed_joint")
    assert (near["value"] > near["bound"]).any()
    falls = frame.filter(statement="range").group_by("experiment", "table", "seed")
    assert falls.agg((pl.col("value").diff() < 0).sum() == 2)["value"].all()
