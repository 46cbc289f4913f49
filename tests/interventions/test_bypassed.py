"""The context in which a stock model is edited, whatever is done with it."""

import contextlib
import copy

import pytest
import torch

from pipeline.interventions import Intervention, bypassed, edit
from pipeline.interventions.interventions import IDENTITY, bypass
from tests.families import BLOCKS, FAMILIES, OWN_ATTENTION, cases, tiny
from tests.interventions.cases import (
    IDENTITIES,
    PREFIX,
    SUFFIX,
    half_remembered,
    interventions,
    random_tokens,
    rounding,
    unchanged,
)
from tests.oracle import plain
from tests.oracle.attention import identity_weights

every_family = pytest.mark.parametrize("family", cases(FAMILIES))


@every_family
@torch.inference_mode()
def test_the_model_is_restored_bit_for_bit_after_an_exception(family):
    model = tiny(family)
    tokens = random_tokens(2, PREFIX)
    before = model(tokens).logits
    with unchanged(model):
        for each in interventions(family):
            if "mean" in str(each.edit):
                continue
            with contextlib.suppress(ZeroDivisionError), bypassed(model, each):
                changed = model(tokens).logits
                raise ZeroDivisionError
            assert torch.equal(changed, before) == (not each.edits)
    assert torch.equal(model(tokens).logits, before)


@pytest.mark.parametrize("edit", ["identity", "zero", "noise", "skip", "mlp-zero"])
@torch.inference_mode()
def test_an_exception_inside_a_forward_leaves_nothing_for_the_next(edit):
    model = tiny("llama")
    tokens = random_tokens(2, PREFIX)

    def fail(*_):
        raise ZeroDivisionError

    with bypassed(model, Intervention("one", {1: edit})):
        expected = model(tokens).logits
        for module in (model.model.layers[1].self_attn.o_proj, model.model.layers[1].mlp):
            handle = module.register_forward_pre_hook(fail, prepend=True)
            with pytest.raises(ZeroDivisionError):
                model(random_tokens(3, PREFIX + 1, seed=9))
            handle.remove()
            assert torch.equal(model(tokens).logits, expected)


@every_family
@torch.inference_mode()
def test_logits_are_the_oracles_with_a_cache_and_without(family):
    model = tiny(family)
    tokens = random_tokens(2, 12)
    for each in (bypass("all", range(BLOCKS)), bypass("pair", (1, 3)), IDENTITIES[-2]):
        with plain.bypassed(model, each):
            expected = model(tokens, use_cache=False).logits
        with bypassed(model, each):
            whole = model(tokens, use_cache=False).logits
            step = model(tokens[:, :PREFIX], use_cache=True)
            parts = [step.logits]
            for token in tokens[:, PREFIX:].split(1, 1):
                step = model(token, past_key_values=step.past_key_values, use_cache=True)
                parts.append(step.logits)
        torch.testing.assert_close(whole, expected, rtol=0, atol=rounding(model))
        torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=rounding(model))


@every_family
@torch.inference_mode()
def test_generation_is_the_oracles(family):
    """With padding on the left, too, which changes no continuation."""
    model = tiny(family)
    prefix = half_remembered(model, 4)[:, :PREFIX]

    def greedy(read):
        options = {"attention_mask": (read > 0).long(), "do_sample": False, "pad_token_id": 0}
        made = model.generate(read, min_new_tokens=SUFFIX, max_new_tokens=SUFFIX, **options)
        return made[:, -SUFFIX:]

    oracle = plain.bypassed if family in OWN_ATTENTION else identity_weights
    with oracle(model, bypass("pair", (0, 2))):
        expected = greedy(prefix)
    with bypassed(model, [0, 2]) as same:
        assert same is model
        assert torch.equal(greedy(prefix), expected)
        if family in ("gpt_neox", "gpt_neo", "gemma2", "bloom", "mpt"):
            assert torch.equal(greedy(torch.nn.functional.pad(prefix, (3, 0))), expected)


@torch.inference_mode()
def test_contexts_can_be_nested():
    model = tiny("llama")
    tokens = random_tokens(2, PREFIX)
    with bypassed(model, [1, 3]):
        expected = model(tokens).logits
    with bypassed(model, [1]), bypassed(model, [3]), bypassed(model, []):
        assert torch.equal(model(tokens).logits, expected)


@pytest.mark.parametrize(
    "family", ["gemma2", "gpt2", "gpt_neox", "llama", "mixtral", "opt", "phi3", "qwen3"]
)
def test_gradients_flow(family):
    model, tokens = copy.deepcopy(tiny(family)), random_tokens(2, PREFIX)
    found = []
    for context in (bypassed, identity_weights):
        model.zero_grad()
        with context(model, bypass("pair", (1, 3))):
            model(tokens, labels=tokens, use_cache=False).loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    ours, expected = found
    assert any(grad is not None and grad.abs().max() > 0 for grad in ours.values())
    for name, grad in ours.items():
        exact = expected[name]
        if grad is None or exact is None:  # queries and keys of bypassed blocks
            assert all(each is None or not each.any() for each in (grad, exact))
            continue
        atol = 1e-4 * max(float(exact.abs().max()), 0.1)
        torch.testing.assert_close(grad, exact, rtol=1e-3, atol=atol)


@edit(site="key")
def halved(here):
    return here.now / 2


@pytest.mark.parametrize("edit", ["zero", "noise", "skip", "mlp-zero", IDENTITY, halved])
def test_every_edit_lets_gradients_through(edit):
    model, tokens = copy.deepcopy(tiny("gpt_neox")), random_tokens(2, PREFIX)
    with bypassed(model, Intervention("one", {2: edit})):
        model(tokens, labels=tokens).loss.backward()
    grad = model.get_input_embeddings().weight.grad
    assert grad.isfinite().all()
    assert grad.abs().max() > 0
