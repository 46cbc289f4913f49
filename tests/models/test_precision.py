"""A model in half precision computes as its float32 copy would, and is itself again afterwards."""

import copy

import pytest
import torch

from pipeline.models.precision import at_least_single

TOKENS = torch.randint(1, 61, (3, 20), generator=torch.Generator().manual_seed(0))
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def hooks(model):
    """Of every module; transformers' own, which stay, included."""
    return [(list(m._forward_hooks), list(m._forward_pre_hooks)) for m in model.modules()]


def snapshot(model):
    values = {name: (value, value.detach().clone()) for name, value in model.named_parameters()}
    return values, hooks(model)


def assert_restored(model, snapshot):
    before, hooked = snapshot
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    for name, (own, bits) in before.items():
        assert after[name] is own
        assert own.dtype == bits.dtype
        assert torch.equal(own.view(torch.int16), bits.view(torch.int16)), name
    assert hooks(model) == hooked


@HALVES
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_logits_are_those_of_the_model_in_float32(model, dtype, mode):
    half = copy.deepcopy(model).to(dtype)
    whole = copy.deepcopy(half).float()
    before = snapshot(half)
    with mode():
        with at_least_single(half):
            ours = half(TOKENS, use_cache=False).logits
            assert half.dtype == dtype  # between calls nothing is converted
        assert ours.dtype == torch.float32
        assert torch.equal(ours, whole(TOKENS, use_cache=False).logits)
    assert_restored(half, before)


@HALVES
@torch.inference_mode()
def test_an_exception_within_a_module_does_no_harm_in_the_context_and_after_it(model, dtype):
    half = copy.deepcopy(model).to(dtype)
    before = snapshot(half)
    inner = next(m for m in half.modules() if isinstance(m, torch.nn.Linear))

    def fail(*_args):
        raise KeyboardInterrupt

    with at_least_single(half):
        expected = half(TOKENS, use_cache=False).logits
        inner.forward = lambda x: x[:, :, :, 99]
        with pytest.raises(IndexError):
            half(TOKENS)
        del inner.forward
        assert torch.equal(half(TOKENS, use_cache=False).logits, expected)
    assert_restored(half, before)
    inner.forward = fail
    with pytest.raises(KeyboardInterrupt), at_least_single(half):
        half(TOKENS)
    del inner.forward
    assert_restored(half, before)


@torch.inference_mode()
def test_float32_is_left_alone(model):
    before = hooks(model)
    with at_least_single(model):
        assert hooks(model) == before
