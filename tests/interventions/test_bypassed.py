"""The context in which a stock model is edited, whatever is done with it."""

import contextlib
import copy
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest
import torch

from pipeline.interventions import Intervention, bypassed
from pipeline.interventions.interventions import BASELINE, IDENTITY, bypass
from pipeline.workflow.errors import InputError
from tests.families import BLOCKS, FAMILIES, OWN_ATTENTION, VOCABULARY, cases, tiny
from tests.interventions.cases import (
    IDENTITIES,
    PREFIX,
    SUFFIX,
    half_remembered,
    interventions,
    rounding,
)
from tests.oracle import plain
from tests.oracle.attention import identity_weights

every_family = pytest.mark.parametrize("family", cases(FAMILIES))
ALL = bypass("all", range(BLOCKS))


def random_tokens(n, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, VOCABULARY, (n, length), generator=generator)


def greedy(model, prefix, mask=None, length=SUFFIX):
    mask = torch.ones_like(prefix) if mask is None else mask
    made = model.generate(
        prefix, attention_mask=mask, max_new_tokens=length, min_new_tokens=length,
        do_sample=False, pad_token_id=0,
    )  # fmt: skip
    return made[:, prefix.shape[1] :]


@every_family
@torch.inference_mode()
def test_the_model_is_restored_bit_for_bit_after_an_exception(family):
    model = tiny(family)
    tokens = random_tokens(2, PREFIX)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = model(tokens).logits
    for each in interventions(family):
        if "mean" in str(each.edit):
            continue
        with contextlib.suppress(ZeroDivisionError), bypassed(model, each):
            changed = model(tokens).logits
            raise ZeroDivisionError
        assert torch.equal(changed, before) == (not each.edits)
    assert torch.equal(model(tokens).logits, before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_threads_that_edit_a_model_wait_for_each_other():
    model, tokens = copy.deepcopy(tiny("llama")), random_tokens(2, PREFIX)

    @torch.inference_mode()
    def logits(block):
        with bypassed(model, [block]):
            sleep(0.01)
            return model(tokens).logits

    alone = [logits(block) for block in range(BLOCKS)]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(logits, range(BLOCKS)))
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


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
def test_generation_is_the_oracles(family):
    model = tiny(family)
    prefix = half_remembered(model, 4)[:, :PREFIX]
    with bypassed(model, [1, 2]) as same, torch.inference_mode():
        assert same is model
        ours = greedy(model, prefix)
    oracle = plain.bypassed if family in OWN_ATTENTION else identity_weights
    with oracle(model, bypass("pair", (1, 2))), torch.inference_mode():
        assert torch.equal(ours, greedy(model, prefix))


@every_family
@torch.inference_mode()
def test_logits_are_the_oracles_with_a_cache_and_without(family):
    model = tiny(family)
    tokens = random_tokens(2, 12)
    for each in (ALL, bypass("pair", (1, 3)), IDENTITIES[-2]):
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


@pytest.mark.parametrize("family", ["gpt_neox", "gpt_neo", "gemma2", "bloom", "mpt"])
@torch.inference_mode()
def test_left_padding_changes_no_continuation(family):
    model = tiny(family)
    tokens = random_tokens(2, PREFIX)
    padded = torch.nn.functional.pad(tokens, (3, 0))
    with bypassed(model, [0, 2]):
        assert torch.equal(greedy(model, padded, (padded > 0).long()), greedy(model, tokens))


@every_family
@torch.inference_mode()
def test_the_last_position_sees_itself_alone_where_all_blocks_are_bypassed(family):
    model = tiny(family)
    tokens = random_tokens(2, PREFIX)
    other = torch.cat([random_tokens(2, PREFIX - 1, seed=1), tokens[:, -1:]], 1)
    with bypassed(model, ALL):
        ours, theirs = model(tokens).logits, model(other).logits
    torch.testing.assert_close(ours[:, -1], theirs[:, -1], rtol=0, atol=rounding(model))
    assert (ours[:, 0] - theirs[:, 0]).abs().max() > 0.01


@every_family
@torch.inference_mode()
def test_the_first_position_attends_to_itself_anyway(family):
    model = tiny(family)
    tokens = random_tokens(2, PREFIX)
    plain_logits = model(tokens).logits
    with bypassed(model, ALL):
        ours = model(tokens).logits
    torch.testing.assert_close(ours[:, 0], plain_logits[:, 0], rtol=0, atol=rounding(model))


@torch.inference_mode()
def test_contexts_can_be_nested():
    model = tiny("llama")
    tokens = random_tokens(2, PREFIX)
    with bypassed(model, [1, 3]):
        expected = model(tokens).logits
    with bypassed(model, [1]), bypassed(model, [3]):
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


@pytest.mark.parametrize("edit", ["zero", "noise", "skip", "mlp-zero", IDENTITY])
def test_every_edit_lets_gradients_through(edit):
    model, tokens = copy.deepcopy(tiny("gpt_neox")), random_tokens(2, PREFIX)
    with bypassed(model, Intervention("one", {2: edit})):
        model(tokens, labels=tokens).loss.backward()
    grad = model.get_input_embeddings().weight.grad
    assert grad.isfinite().all()
    assert grad.abs().max() > 0


# ------------------------------------------------------------- refusals


def test_a_block_beyond_the_last_is_refused():
    refused = pytest.raises(InputError, match=r"block 5\n[\s\S]*blocks 0 to 4")
    with refused, bypassed(tiny("llama"), [1, 5]):
        pass


@pytest.mark.parametrize("family", ["mixtral", "opt-post-norm"])
def test_an_edit_that_a_model_has_no_place_for_is_refused(family):
    refused = pytest.raises(InputError, match="intervention odd")
    with refused, bypassed(tiny(family), Intervention("odd", {1: "zero"})):
        pass


def test_a_head_beyond_the_last_is_refused():
    refused = pytest.raises(InputError, match=r"head 4\n[\s\S]*heads 0 to 3")
    with refused, bypassed(tiny("llama"), Intervention("odd", {1: "heads"}, (1, 4))):
        pass


def test_an_intervention_with_a_mean_is_refused():
    model = tiny("llama")
    refused = pytest.raises((InputError, ValueError))
    with refused, bypassed(model, Intervention("mean", {1: "mean"})):
        model(random_tokens(1, 4))


def test_the_baseline_changes_nothing():
    model, tokens = tiny("llama"), random_tokens(2, PREFIX)
    with torch.inference_mode():
        expected = model(tokens).logits
        for nothing in (BASELINE, []):
            with bypassed(model, nothing):
                assert torch.equal(model(tokens).logits, expected)
