"""The parts of a block, put together, are the stock block; those of a copy leave it alone."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from pipeline.theory.parts import Described
from pipeline.workflow.errors import InputError

TOKENS = torch.randint(1, 61, (3, 20), generator=torch.Generator().manual_seed(0))


def states_of(described, embedded, dtype=None):
    """The states before each block, and after the last, from the parts alone."""
    states = [embedded]
    for number in range(described.n_blocks):
        block = described.block(number, dtype)
        hidden = states[-1].to(dtype)
        attended = block.mixed(block.attend(hidden, hidden.shape[1]))
        read = hidden if block.parallel else hidden + attended
        states.append(hidden + attended + block.feed_forward(read))
    return states


def assert_like_stock(model, tokens, atol):
    seen = model(tokens, use_cache=False, output_hidden_states=True).hidden_states
    described = Described(model)
    *ours, last = states_of(described, described.embed(tokens))
    assert len(seen) == len(ours) + 1
    for mine, theirs in zip(ours, seen, strict=False):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=atol)
    norm = getattr(model.base_model, "ln_f", None) or model.base_model.final_layer_norm
    torch.testing.assert_close(norm(last), seen[-1], rtol=0, atol=atol)


@torch.inference_mode()
def test_states_are_the_stock_models(model):
    assert_like_stock(model, TOKENS, 2e-5)


@given(data=st.data())
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@torch.inference_mode()
def test_states_are_the_stock_models_for_odd_shapes(odd_cases, data):
    model, _ = data.draw(odd_cases)
    assert_like_stock(model, TOKENS[:, :16] % 23, 1e-4)


@torch.inference_mode()
def test_a_copy_of_a_block_computes_in_another_precision(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    described = Described(model)
    embedded = described.embed(TOKENS)
    fine = states_of(described, embedded, torch.float64)
    whole = states_of(Described(copy.deepcopy(model).double()), embedded.double())
    for mine, theirs in zip(fine, whole, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=1e-12)
    assert model.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_parts_are_the_models_own_modules(model):
    own = set(model.modules())
    described = Described(model)
    for number in range(described.n_blocks):
        block = described.block(number)
        assert {block.attention_norm, *block.projections, block.output, block.mlp_norm} <= own
        assert {block.up, block.down} <= set(block.mlp.modules()) <= own


def test_another_architecture_is_refused_with_those_that_are_known():
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=1, n_layer=1, vocab_size=11))
    with pytest.raises(InputError, match=r"gpt2 \(GPT2LMHeadModel\).*\n.*gpt_neo, gpt_neox"):
        Described(model)


def test_an_activation_of_unknown_slope_is_refused(neox):
    model = copy.deepcopy(neox)
    model.config.hidden_act = "silu"
    with pytest.raises(InputError, match=r"'silu'(.|\n)*gelu_new"):
        Described(model)
