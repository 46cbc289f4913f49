"""The adapters against the stock models whose weights they use."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from pipeline.interventions.interventions import BASELINE
from pipeline.interventions.plan import plan
from pipeline.interventions.wavefront import Sheet, run
from pipeline.errors import InputError
from pipeline.models.activations import ACTIVATIONS
from pipeline.models.families import adapt


def logits_of(decoder, tokens):
    front = run(
        decoder, Sheet.plain(tokens, tokens.shape[1]), plan([BASELINE], len(decoder.blocks))
    )
    return decoder.logits(front.states[0])


def tensors(value):
    """Every tensor in nested dataclasses and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = (
        value
        if isinstance(value, tuple)
        else vars(value).values()
        if hasattr(value, "__dict__")
        else ()
    )
    return [tensor for part in parts for tensor in tensors(part)]


@torch.inference_mode()
def test_logits_are_the_stock_models(model):
    tokens = torch.randint(1, 61, (3, 20), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        logits_of(adapt(model), tokens), model(tokens, use_cache=False).logits, rtol=0, atol=2e-5
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.inference_mode()
def test_half_precision_is_the_stock_models(model, dtype):
    model = copy.deepcopy(model).to(dtype)
    tokens = torch.randint(1, 61, (3, 20), generator=torch.Generator().manual_seed(0))
    ours, stock = logits_of(adapt(model), tokens), model(tokens, use_cache=False).logits
    assert ours.dtype == dtype
    exact = copy.deepcopy(model).float()(tokens, use_cache=False).logits
    assert (ours - exact).abs().max() < 1.5 * (stock - exact).abs().max() + 1e-3


@torch.inference_mode()
def test_float64_agrees_with_float32(model):
    tokens = torch.randint(1, 61, (3, 20), generator=torch.Generator().manual_seed(0))
    decoder = adapt(model)
    fine = logits_of(decoder.in_precision(torch.float64), tokens)
    assert fine.dtype == torch.float64
    torch.testing.assert_close(fine.float(), logits_of(decoder, tokens), rtol=0, atol=2e-4)


@torch.inference_mode()
def test_a_large_model_is_converted_block_by_block(model, monkeypatch):
    tokens = torch.randint(1, 61, (2, 12), generator=torch.Generator().manual_seed(0))
    small = adapt(model).in_precision(torch.float64)
    monkeypatch.setattr("pipeline.models.decoder._SMALL", 0)
    large = adapt(model).in_precision(torch.float64)
    assert large.blocks[0].up.weight.dtype == torch.float32
    assert torch.equal(logits_of(large, tokens), logits_of(small, tokens))


def test_the_weights_are_the_models_own(model):
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    decoder = adapt(model)
    for tensor in tensors((*decoder.blocks, decoder.final_norm, decoder.head)):
        assert tensor.untyped_storage().data_ptr() in own


def test_an_unsupported_architecture_is_refused_with_those_that_are_supported():
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=1, n_layer=1, vocab_size=11))
    with pytest.raises(InputError, match=r"gpt2.*\n.*gpt_neo, gpt_neox"):
        adapt(model)


@pytest.mark.parametrize(
    ("change", "got", "expected"),
    [
        (lambda m: setattr(m.config, "hidden_act", "swish"), "swish", "gelu_new"),
        (lambda m: m.config.rope_parameters.update(rope_type="dynamic"), "dynamic", "linear"),
        (lambda m: m.gpt_neox.layers[1].half(), "float16", "throughout"),
    ],
)
def test_what_is_not_supported_is_named(neox, change, got, expected):
    model = copy.deepcopy(neox)
    change(model)
    with pytest.raises(InputError, match=rf"{got}(.|\n)*{expected}"):
        adapt(model)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_are_those_of_transformers(name):
    from transformers.activations import ACT2FN

    x = torch.linspace(-12, 12, 4001)
    before = x.clone()
    torch.testing.assert_close(ACTIVATIONS[name](x), ACT2FN[name](x), rtol=1e-5, atol=2e-6)
    assert torch.equal(x, before)
