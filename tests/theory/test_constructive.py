"""The theorem's transformer, built: exact up to its numbers, and not beyond them."""

import polars as pl
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.theory.attention_only import stored
from pipeline.theory.constructive import build, gap_bound, likeliest, logits, read, residual
from pipeline.theory.lookup import divergence, unit_rows


def case(seed, sequences, context, vocabulary, width, heads, head_width):
    """Features, last positions, a target and an unembedding of random sequences, all different."""
    generator = torch.Generator().manual_seed(seed)
    everything = torch.cartesian_prod(*[torch.arange(vocabulary)] * context).view(-1, context)
    chosen = torch.randperm(len(everything), generator=generator)[:sequences]
    features, last = read(everything[chosen], vocabulary, width, heads, head_width, seed)
    unembedding = unit_rows(vocabulary, width, generator)
    answers = torch.randint(vocabulary, (sequences,), generator=generator)
    return features, last, unembedding[answers], unembedding


def error(features, last, target, unembedding, chosen=True):
    """Of the transformer that is built for such a case, relative."""
    solved = build((features, last), target, unembedding, chosen=chosen)
    return residual(logits((features, last), solved), target @ unembedding.T)


def rank(matrix):
    return int(torch.linalg.matrix_rank(matrix, rtol=1e-10))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("context", [2, 3])
@pytest.mark.parametrize("head_width", [1, 3, 6, 9])
@pytest.mark.parametrize("chosen", [False, True])
def test_exact_up_to_its_number_of_sequences_and_no_further(seed, context, head_width, chosen):
    sizes = {"context": context, "vocabulary": 14, "width": 6, "heads": 4, "head_width": head_width}
    most = stored(4, head_width, 6, chosen=chosen)
    assert error(*case(seed, most, **sizes), chosen) < 1e-6
    assert error(*case(seed, most + 1, **sizes), chosen) > 1e-3


def test_any_target_is_reached_not_unembeddings_alone():
    features, last, target, unembedding = case(0, 30, 2, 14, 6, 4, 6)
    assert error(features, last, torch.randn_like(target), unembedding) < 1e-6


@pytest.mark.parametrize("sequences", [1, 3, 7])
def test_few_sequences_need_no_special_case(sequences):
    """Fewer than D: the smallest solution would have no inverse."""
    assert error(*case(1, sequences, 2, 14, 6, 4, 3)) < 1e-6


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1_000),
    heads=st.integers(1, 6),
    head_width=st.integers(1, 8),
    width=st.integers(2, 6),
)
def test_the_rank_is_the_number_of_sequences(seed, heads, head_width, width):
    features, last, *_ = case(seed, 144, 2, 12, width, heads, head_width)
    assert rank(features) == stored(heads, head_width, width, chosen=False)
    assert rank(torch.cat([features, last], 1)) == stored(heads, head_width, width)


def test_with_one_token_heads_add_nothing():
    features, last, *_ = case(0, 30, 1, 40, 6, 5, 4)
    assert rank(features) == 6
    assert rank(torch.cat([features, last], 1)) == 6


def test_the_likeliest_sequences():
    prior = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
    assert likeliest(prior, 0.0).tolist() == [1, 3, 2, 0]
    assert likeliest(prior, 0.1).tolist() == [1, 3, 2]
    assert likeliest(prior, 0.35).tolist() == [1, 3]
    assert likeliest(prior, 0.99).tolist() == [1]


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sequences=st.integers(2, 20),
    scale=st.floats(0.01, 30),
    kept=st.integers(0, 19),
)
def test_divergences_differ_by_no_more_than_the_bound(seed, sequences, scale, kept):
    assume(kept < sequences)
    generator = torch.Generator().manual_seed(seed)
    draws = scale * torch.randn(3, sequences, 6, generator=generator, dtype=torch.float64)
    table, wanted, built = draws[0].softmax(1), draws[1], draws[2]
    built[:kept] = wanted[:kept]
    prior = torch.rand(sequences, generator=generator, dtype=torch.float64)
    prior /= prior.sum()
    one, other = (float(prior @ divergence(table, each)) for each in (wanted, built))
    bound = gap_bound(prior, wanted, built)
    assert abs(one - other) <= bound * (1 + 1e-9) + 1e-12


def test_half_of_that_bound_does_not_hold():
    table = torch.tensor([[1.0, 0.0]]).double()
    wanted, built = torch.tensor([[0.0, 99.0]]).double(), torch.tensor([[-30.0, 130.0]]).double()
    gap = float((divergence(table, built) - divergence(table, wanted))[0])
    assert gap == pytest.approx(gap_bound(torch.ones(1).double(), wanted, built))


def test_look_up_tables(table):
    frame = table("constructive")
    exact = frame.filter(quantity="accuracy").drop_nulls("bound")
    assert (exact["value"] == 1).all()
    stored = pl.col("heads") * pl.col("head_width")
    unbounded = frame.filter(pl.col("bound").is_null())
    beyond = unbounded.filter(pl.col("sequences") >= 3 * stored, quantity="accuracy")
    assert len(beyond) > 0
    assert (beyond["value"] < 1).all()
    # one sequence more than the unembedding given allows, and it must be chosen too
    more = frame.filter(pl.col("sequences") == stored + 1, quantity="residual")
    assert (more.filter(experiment="given")["value"] > 0.01).all()
    assert (more.filter(experiment="chosen")["value"] < 1e-9).all()


def test_the_built_transformer_copies_the_best_map(table):
    gaps = table("constructive").filter(experiment="distribution", quantity="divergence_gap")
    assert (gaps["value"] <= gaps["bound"]).all()
    solved = gaps.filter(pl.col("unsolved") < 1e-9)
    assert solved.select("sequences", "heads").rows() == [(144, 29)] * 3
    assert (solved["value"] < 1e-9).all()
    assert (gaps.filter(pl.col("unsolved") > 0.05)["value"] > 0.01).all()


def test_the_known_share_and_guesses_give_the_bound(table):
    frame = table("constructive").filter(quantity="table_accuracy").drop_nulls("bound")
    assert float((frame["value"] - frame["bound"]).mean()) == pytest.approx(0, abs=0.02)
