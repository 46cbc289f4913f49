"""What bypasses change, measured, against the stock model and against slow sums."""

import copy

import polars as pl
import pytest
import torch

from pipeline.interventions.interventions import BASELINE, bypass
from pipeline.interventions.memory import Journal
from pipeline.models.sites import anatomy
from pipeline.theory import divergence, linear_fit
from pipeline.theory.columns import DIVERGENCE_BLOCKS, DIVERGENCE_BOUNDS, DIVERGENCE_TRIANGLE
from pipeline.theory.divergence import measure
from pipeline.theory.parts import Described
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests.measure.cases import FIRST_ID, random_samples
from tests.oracle.plain import states_of

BLOCKS, SAMPLE_COUNT, PREFIX = 5, 9, 14


def some_samples(count=SAMPLE_COUNT, prefix=PREFIX, suffix=3, seed=0):
    return random_samples(count, prefix, suffix, seed=seed)


def double(model):
    return copy.deepcopy(model).double()


def rounding(model):
    """Of a pass in float64: the stock GPT-Neo multiplies queries and keys in float32."""
    return 1e-4 if model.config.model_type == "gpt_neo" else 1e-9


@pytest.fixture(scope="module")
def measured(model):
    return measure(double(model), some_samples())


# --------------------------------------------------------------------------- tables


def test_tables_are_complete_and_in_order(measured):
    schemas = DIVERGENCE_TRIANGLE, DIVERGENCE_BOUNDS, DIVERGENCE_BLOCKS
    for frame, schema in zip(measured, schemas, strict=True):
        tables._check(frame, "divergence", schema)
        assert frame.columns == list(schema)
    ids = range(FIRST_ID, FIRST_ID + SAMPLE_COUNT)
    expected = [(s, b, a) for s in ids for b in range(BLOCKS) for a in range(b, BLOCKS + 1)]
    assert measured.triangle.select("sample_id", "block", "after").rows() == expected
    logits = measured.triangle["after"] == BLOCKS
    assert (measured.triangle["kl"].is_not_null() == logits).all()
    expected = [(s, b) for s in ids for b in range(BLOCKS)]
    assert measured.bounds.select("sample_id", "block").rows() == expected
    last = measured.bounds["block"] == BLOCKS - 1
    for name in (n for n in DIVERGENCE_BOUNDS if n.startswith("next_")):
        assert (measured.bounds[name].is_null() == last).all()
    assert measured.blocks["block"].to_list() == list(range(BLOCKS))
    splits = dict(some_samples().select("sample_id", "split").rows())
    assert all(splits[s] == split for s, split in measured.bounds["sample_id", "split"].rows())


def stock_states(model, tokens, intervention):
    """The last token's states after each block, (BLOCKS, N, D), and its logits, (N, V)."""
    return (found[..., -1, :] for found in states_of(model, tokens, intervention))


def test_the_triangle_is_that_of_the_stock_model(model, measured):
    tokens = torch.tensor(some_samples()["tokens"].to_list())[:, :PREFIX]
    stock = double(model)
    plain, logits = stock_states(stock, tokens, BASELINE)
    centred = logits - logits.mean(-1, keepdim=True)
    for block in range(BLOCKS):
        changed, other = stock_states(stock, tokens, bypass("one", (block,)))
        ours = measured.triangle.filter(block=block)
        pairs = {after: (plain[after], changed[after]) for after in range(block, BLOCKS)}
        pairs[BLOCKS] = centred, other - other.mean(-1, keepdim=True)
        for after, (before, now) in pairs.items():
            rows, change = ours.filter(after=after), (now - before).norm(dim=-1)
            assert rows["change"].to_list() == pytest.approx(change.tolist(), rel=1e-4)
            relative = change / before.norm(dim=-1)
            assert rows["relative"].to_list() == pytest.approx(relative.tolist(), rel=1e-4)
        kl = torch.distributions.kl_divergence(
            *(torch.distributions.Categorical(logits=each) for each in (logits, other))
        )
        assert rows["kl"].to_list() == pytest.approx(kl.tolist(), rel=1e-4, abs=1e-9)


def test_both_tables_agree_on_what_changes(model, measured):
    rel = rounding(model)
    keys = ["sample_id", "block"]
    triangle = measured.triangle.with_columns(gap=pl.col("after") - pl.col("block"))
    triangle = triangle.filter(pl.col("after") < BLOCKS)
    both = measured.bounds.join(triangle.filter(gap=0), on=keys, suffix="_seen")
    both = both.join(triangle.filter(gap=1).select(*keys, on="change"), on=keys, how="left")
    assert len(both) == len(measured.bounds)
    assert both["change"].to_list() == pytest.approx(both["change_seen"].to_list(), rel=rel)
    assert both["relative"].to_list() == pytest.approx(both["relative_seen"].to_list(), rel=rel)
    both = both.drop_nulls("next_change")
    assert both["next_change"].to_list() == pytest.approx(both["on"].to_list(), rel=rel)


# --------------------------------------------------------------------------- bounds


def assert_bounded(made):
    assert not made.bounds["violated"].any()
    assert not made.bounds["next_violated"].drop_nulls().any()


def test_no_corrected_bound_is_violated(measured):
    assert_bounded(measured)


def test_the_columns_are_what_they_say(measured, model):
    """A few of them by loops over heads and tokens."""
    described = Described(double(model))
    tokens = torch.tensor(some_samples()["tokens"].to_list())[:, :PREFIX]
    rel = max(1e-6, rounding(model))
    heads, size = model.config.num_attention_heads, 32 // model.config.num_attention_heads
    with torch.inference_mode():
        states = described.embed(tokens)
        for number in range(described.n_blocks):
            block = described.block(number)
            attention = block.attend(states, PREFIX)
            y, own = attention.normalized, attention.weights[:, :, -1, -1]
            unit = block.split(torch.eye(32).double()[:, None])[2]
            bias = block.split(torch.zeros(1, 1, 32).double())[2]
            matrices = [
                block.output.weight[:, h * size : (h + 1) * size] @ (unit - bias)[:, h, 0].T
                for h in range(heads)
            ]
            norms = torch.stack([torch.linalg.matrix_norm(m, 2) for m in matrices])
            a5 = sum(
                attention.weights[:, h, -1, i] * ((y[:, -1] - y[:, i]) @ matrices[h].T).norm(dim=-1)
                for h in range(heads)
                for i in range(PREFIX)
            )
            rows = measured.bounds.filter(block=number)
            expected = {
                "a5": a5,
                "own_weight_mean": own.mean(-1),
                "own_weight_min": own.amin(-1),
                "own_weight_max": own.amax(-1),
                "own_weight_weighted": own @ norms / norms.sum(),
                "input_spread": torch.cdist(states[:, -1:], states).amax((1, 2)),
            }
            for name, value in expected.items():
                assert rows[name].to_list() == pytest.approx(value.tolist(), rel=rel), name
            about = measured.blocks.row(number, named=True)
            assert about["head_norms"] == pytest.approx(norms.sum().item())
            attended = block.mixed(attention)
            read = states if block.parallel else states + attended
            states = states + attended + block.feed_forward(read)


def test_theorem_1_as_printed_fails_in_a_model_with_large_values(neox):
    """With W as it is fitted; the states before block 0 are small, and do not grow with values."""
    model = double(neox)
    for layer in model.gpt_neox.layers:
        layer.attention.dense.weight.data.mul_(8)  # not by an absurd factor
    made = measure(model, some_samples())
    first = made.bounds.filter(block=0)
    assert first["printed_violated"].all()
    assert first["printed_generous_violated"].all()
    assert first["printed_normalized_violated"].all()
    assert_bounded(made)


def test_few_samples_mean_none_held_out(neo):
    made = measure(neo, some_samples(count=3, prefix=2))
    assert made.blocks["r_squared"].is_null().all()
    assert_bounded(made)


# --------------------------------------------------------------------------- how


def assert_close(measured, again, most):
    """Float columns within `most`, relative or absolute; all others equal."""
    for ours, other in zip(measured, again, strict=True):
        floats = pl.selectors.float()
        assert ours.select(~floats).equals(other.select(~floats))
        for name in ours.select(floats).columns:
            pairs = zip(ours[name].to_list(), other[name].to_list(), strict=True)
            assert all(a == b or abs(a - b) <= most * max(1, abs(a)) for a, b in pairs), name


@pytest.mark.parametrize("budget", [1, 200, 10**6])
def test_batches_change_nothing(model, measured, budget):
    again = measure(double(model), some_samples(), token_budget=budget)
    assert_close(measured, again, rounding(model) / 10)


def test_small_pieces_change_nothing(model, measured, monkeypatch):
    monkeypatch.setattr(divergence, "_LOGIT_ROWS", 2)
    monkeypatch.setattr(linear_fit, "_CHUNK_TOKENS", 30)
    assert_close(measured, measure(double(model), some_samples()), 1e-6)


def test_single_precision_is_close_its_bounds_hold_and_the_model_stays_as_it_is(model, measured):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = measure(model, some_samples())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert_bounded(made)
    for frame in ("triangle", "bounds"):
        exact, coarse = (getattr(each, frame)["change"].to_list() for each in (measured, made))
        assert coarse == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_that_of_its_copy_in_float32(model, dtype):
    half = copy.deepcopy(model).to(dtype)
    whole = measure(copy.deepcopy(half).float(), some_samples(count=6))
    for ours, theirs in zip(measure(half, some_samples(count=6)), whole, strict=True):
        assert ours.equals(theirs)


def test_progress_reaches_the_end_and_the_journal_hears_of_halvings(neo, monkeypatch):
    calls, journal, run = [], Journal(), divergence.run

    def stingy(known, tokens, *rest, **more):
        if len(tokens) > 5:
            raise torch.OutOfMemoryError("too much")
        return run(known, tokens, *rest, **more)

    monkeypatch.setattr(divergence, "run", stingy)
    made = measure(neo, some_samples(), progress=lambda *call: calls.append(call), journal=journal)
    assert calls[-1] == (SAMPLE_COUNT, SAMPLE_COUNT)
    assert journal.halvings == [(SAMPLE_COUNT, SAMPLE_COUNT // 2)]
    assert len(made.bounds) == SAMPLE_COUNT * BLOCKS


@pytest.mark.parametrize("prefix", [1, 2])
def test_a_token_alone_is_not_changed(model, prefix):
    """With nothing before it, attention is the identity already, and every number stays finite."""
    made = measure(double(model), some_samples(prefix=prefix))
    assert made.bounds.select(pl.selectors.float().is_finite().all()).row(0).count(False) == 0
    if prefix == 1:
        assert made.triangle["change"].max() < 1e-12
        assert made.bounds["change"].max() < 1e-12


def test_one_block_has_no_next(neox):
    model = double(neox)
    model.gpt_neox.layers = model.gpt_neox.layers[:1]
    model.config.num_hidden_layers = 1
    made = measure(model, some_samples(count=3))
    assert made.bounds["next_change"].is_null().all()
    assert made.triangle.select("block", "after").unique().sort("after").rows() == [(0, 0), (0, 1)]


# --------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (some_samples(prefix=39), "at most 40"),
        (
            some_samples().with_columns(tokens=pl.col("tokens").list.eval(pl.element() + 60)),
            "ids below 61",
        ),
        (pl.concat([some_samples(), some_samples(suffix=4)]), "one prefix and one suffix length"),
        (some_samples().clear(), "no samples"),
    ],
)
def test_unfit_samples_are_refused(neox, samples, words):
    with pytest.raises(InputError, match=words):
        measure(neox, samples)


@pytest.mark.parametrize(
    ("weight", "at", "value", "where"),
    [
        (
            "gpt_neox.layers.2.mlp.dense_4h_to_h.bias",
            (3,),
            torch.nan,
            "NaN or infinity after block 2",
        ),
        ("lm_head.weight", (5, 0), torch.inf, "in the head"),
    ],
)
def test_what_is_not_finite_is_refused_with_sample_and_place(neox, weight, at, value, where):
    model = double(neox)
    anatomy(model)  # found before the weights break, and kept
    model.get_parameter(weight).data[at] = value
    with pytest.raises(InputError, match=rf"baseline, sample {FIRST_ID}\n.*{where}"):
        measure(model, some_samples())
