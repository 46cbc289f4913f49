"""The corrected bounds hold on any block; the printed ones do not, and each claim has its test."""

import copy
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.activations import ACT2FN

from pipeline.theory import bounds
from pipeline.theory.block_bounds import know, one_block_on, right_after
from pipeline.theory.linear_fit import Fits, LinearFit
from pipeline.theory.parts import ACTIVATIONS, Described, Parts

SCALES = st.floats(-1.0, 1.5).map(lambda exponent: 10**exponent)  # 0.1 to 30


def some_fit(weight):
    shifted = weight + torch.eye(len(weight), dtype=weight.dtype)
    norm, plus = (float(bounds.operator_norm(each)) for each in (weight, shifted))
    return LinearFit(weight, norm, plus, None)


def known_of(block, weight):
    return know(block, Fits(some_fit(weight), some_fit(weight)))


@st.composite
def blocks_at_work(draw, odd_cases):
    """A random model with a block, states before it with and without a change, any matrix W."""
    model, _ = draw(odd_cases)
    model = copy.deepcopy(model).double()
    scale = draw(SCALES)
    for name, parameter in model.named_parameters():
        if ".h." in name or "layers." in name:
            parameter.data.mul_(scale)
    described = Described(model)
    block = described.block(draw(st.integers(0, described.n_blocks - 1)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * draw(SCALES)

    states = random(3, draw(st.integers(1, 12)), described.width)
    other = states + random(*states.shape)
    return block, states, other, random(described.width, described.width)


def all_at_once(block, states, other, weight):
    known = known_of(block, weight)
    look, after = right_after(block, known, states)
    return after | one_block_on(block, known, look, states, other)


slow = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


# --------------------------------------------------------------------------- corrected


@given(data=st.data())
@slow
@torch.inference_mode()
def test_corrected_bounds_hold_for_any_block_and_any_matrix(odd_cases, data):
    found = all_at_once(*data.draw(blocks_at_work(odd_cases)))
    assert not found["violated"].any()
    assert not found["next_violated"].any()
    for tighter, looser in (("a5", "a1"), ("bound", "bound_a5"), ("bound_a5", "bound_a1")):
        assert (found[tighter] <= found[looser] * (1 + 1e-9) + 1e-12).all()


@given(data=st.data())
@slow
@torch.inference_mode()
def test_the_change_of_the_attention_is_exactly_what_the_others_bring(odd_cases, data):
    block, states, *_ = data.draw(blocks_at_work(odd_cases))
    look = block.last_token(states)
    apart = look.values[:, -1:] - look.values
    exact = torch.einsum("bhi,bihe,hde->bd", look.weights, apart, block.output_matrices())
    plain, bypassed = look.plain.attended, look.bypassed.attended
    size = max(1.0, float(plain.abs().max()), float(bypassed.abs().max()))
    torch.testing.assert_close(bypassed - plain, exact, rtol=0, atol=1e-9 * size)


@pytest.mark.parametrize(
    "name", ["a5", "a1", "bound", "bound_a5", "bound_without_fit", "next_bound"]
)
@torch.inference_mode()
def test_halves_of_the_bounds_are_violated(name):
    """So the checks above would see a bound that is wrong by a factor of two."""
    block = one_block(heads=1)
    states = torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0]])[None].double()
    other = states.clone()
    other[:, -1] = -other[:, -1]  # the norm keeps its length
    found = all_at_once(block, states, other, torch.zeros(4, 4, dtype=torch.float64))
    change = found["next_change" if name.startswith("next") else "change"]
    assert not bounds.exceeds(change, found[name], change).any()
    assert bounds.exceeds(change, found[name] / 2, change).all()


@torch.inference_mode()
def test_the_headline_is_within_a_small_factor(model):
    described = Described(copy.deepcopy(model).double())
    generator = torch.Generator().manual_seed(3)
    states = described.embed(torch.randint(1, 61, (40, 24), generator=generator))
    ratios = []
    for block in map(described.block, range(described.n_blocks)):
        known = known_of(block, torch.zeros(32, 32, dtype=torch.float64))
        _, found = right_after(block, known, states)
        ratios.append(found["a5"] / found["attention_change"])
        states = states + block.mixed(block.attend(states, 24))
    assert 1 <= torch.cat(ratios).median() < 4


def test_no_activation_is_steeper_than_the_constant():
    x = torch.linspace(-8, 8, 20001, dtype=torch.float64, requires_grad=True)
    for name in ACTIVATIONS:
        (slope,) = torch.autograd.grad(ACT2FN[name](x).sum(), x)
        assert slope.abs().max() < bounds.SLOPE
    (slope,) = torch.autograd.grad(nn.functional.gelu(x).sum(), x)
    assert slope.max() > 1.128  # and a smaller constant would not do


@given(seed=st.integers(0, 99), exponent=st.floats(-6, 3), step=st.floats(-6, 1))
@settings(deadline=None)
def test_layer_norm_stretches_no_more_than_the_proof_says(seed, exponent, step):
    generator = torch.Generator().manual_seed(seed)
    z, move, gain = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    z = z * 10**exponent
    other = z + move * 10**step * 10**exponent
    norm = nn.LayerNorm(8, eps=1e-5, bias=False, dtype=torch.float64)
    norm.weight = nn.Parameter(gain)
    # with ||W_in|| ||W_out|| = 1 / 1.13 what is added to 1 is the stretch of the norm alone
    stretch = bounds.stretch(z, other, 1e-5, gain.abs().max(), 1.0, 1 / bounds.SLOPE) - 1
    limit = stretch * (other - z).norm()
    assert (norm(other) - norm(z)).norm() <= limit * (1 + 1e-9)


@pytest.mark.parametrize(("rows", "columns"), [(5, 9), (9, 5), (6, 6)])
def test_norms_are_those_of_the_whole_matrices(rows, columns):
    generator = torch.Generator().manual_seed(rows)
    value = torch.randn(4, 3, rows, generator=generator, dtype=torch.float64)
    output = torch.randn(4, columns, 3, generator=generator, dtype=torch.float64)
    whole = output @ value
    expected = torch.linalg.matrix_norm(whole, 2)
    torch.testing.assert_close(bounds.operator_norm(whole), expected)
    torch.testing.assert_close(bounds.norms_of_heads(value, output), expected)


# --------------------------------------------------------------------------- as printed: Theorem 1


def matrix(weight):
    made = nn.Linear(*reversed(weight.shape), bias=False)
    made.weight = nn.Parameter(weight)
    return made


def one_block(*, heads, gain=1.0, parallel=False):
    """A block of width 4: uniform attention, an MLP that is zero, M_h = gain x I.

    With two heads, M_h is `gain` times the projection to the first two dimensions.
    """
    size = 4 // heads
    eye = torch.eye(4, dtype=torch.float64)
    none = matrix(0 * eye)
    plain = nn.LayerNorm(4, eps=1e-9, dtype=torch.float64)
    return Parts(
        attention_norm=plain,
        projections=(none, none, matrix(eye[:size].repeat(heads, 1))),
        output=matrix(gain * eye[:, :size].repeat(1, heads)),
        mlp_norm=plain,
        mlp=nn.Sequential(none, nn.GELU(), none),
        up=none,
        down=none,
        heads=heads,
        scale=1.0,
        parallel=parallel,
        window=None,
        rotary=None,
    )


SIGNS = torch.tensor([[1.0, -1.0, -1.0, 1.0], [1.0, 1.0, -1.0, -1.0]], dtype=torch.float64)[None]
"""Two tokens that a layer norm leaves as they are."""


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    ("heads", "gain", "size"),
    [(1, 3.0, 1.0), (1, 1.0, 0.1), (2, 1.0, 1.0)],
    ids=["value-and-output-projection", "layer-norm", "heads"],
)
@torch.inference_mode()
def test_theorem_1_as_printed_fails_on_a_real_block(heads, gain, size, parallel):
    block = one_block(heads=heads, gain=gain, parallel=parallel)
    states = SIGNS * size
    found = all_at_once(block, states, states, torch.zeros(4, 4, dtype=torch.float64))
    assert found["epsilon"].item() == 0  # the MLP is zero, and W = 0 is exact
    assert found["printed_violated"].all()
    assert found["printed_generous_violated"].all()
    assert not found["violated"].any()


@torch.inference_mode()
def test_theorem_1_as_printed_holds_where_the_block_is_the_papers():
    block = one_block(heads=1)
    found = all_at_once(block, SIGNS, SIGNS, torch.zeros(4, 4, dtype=torch.float64))
    assert not found["printed_violated"].any()
    torch.testing.assert_close(found["printed"], found["change"])


def test_a_parallel_block_passes_nothing_through_its_mlp():
    """So what the printed factor 1 + ||W|| adds there is slack, however large W is."""
    one = torch.ones(1).double()
    assert bounds.theorem_1(one, 100.0, 5 * one, parallel=True).item() == 1
    assert math.isclose(bounds.theorem_1(one, 100.0, 5 * one, parallel=False).item(), 105)
