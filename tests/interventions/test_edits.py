"""Each edit against another way to do the same with stock weights and without any hook."""

import copy

import pytest
import torch

from pipeline.interventions import Group, Intervention, bypassed, complete, score, sweep
from pipeline.interventions.interventions import BASELINE, bypass
from tests.families import BLOCKS, FAMILIES, NOT_ADDITIVE, cases, tiny
from tests.interventions.cases import (
    SAMPLES,
    SUFFIX,
    assert_same_completions,
    half_remembered,
    random_tokens,
    rounding,
)
from tests.oracle import plain

every_family = pytest.mark.parametrize("family", cases(FAMILIES))
additive = pytest.mark.parametrize("family", cases(sorted(set(FAMILIES) - NOT_ADDITIVE)))
TOKENS = random_tokens(3, 14)
EDITED = (0, 2, 4)


def logits(model, intervention=BASELINE):
    with bypassed(model, intervention), torch.inference_mode():
        return model(TOKENS, use_cache=False).logits


def assert_equal(model, intervention, other, atol=None):
    """The edited model computes what the other one does by itself, and not what it did before."""
    ours, expected = logits(model, intervention), logits(other)
    atol = rounding(model) if atol is None else atol
    torch.testing.assert_close(ours, expected, rtol=0, atol=atol)
    assert (ours - logits(model)).abs().max() > 4 * atol


@additive
@pytest.mark.parametrize(("edit", "where"), [("zero", "output"), ("mlp-zero", "mlp")])
def test_zero_is_a_projection_without_weights(family, edit, where):
    model, other = tiny(family), copy.deepcopy(tiny(family))
    for part in [plain.parts(other)[block] for block in EDITED]:
        for parameter in getattr(part, where).parameters():
            parameter.data.zero_()
    assert_equal(model, Intervention("one", dict.fromkeys(EDITED, edit)), other)


@every_family
def test_skip_is_a_model_without_the_block(family):
    model, other = tiny(family), copy.deepcopy(tiny(family))
    blocks = other.get_submodule(plain.FAMILIES[other.config.model_type].blocks)
    for block in sorted(EDITED[1:], reverse=True):
        del blocks[block]
        if getattr(other.config, "layer_types", None):
            del other.config.layer_types[block]
    other.config.num_hidden_layers -= 2
    with torch.inference_mode():
        expected = other(TOKENS, use_cache=False).logits
    ours = logits(model, Intervention("one", dict.fromkeys(EDITED[1:], "skip")))
    torch.testing.assert_close(ours, expected, rtol=0, atol=rounding(model))


def test_identity_is_a_softmax_that_is_one_hot(neox, with_identity_softmax):
    tokens = random_tokens(3, 30, high=61)
    for each in sweep(BLOCKS):
        edited = with_identity_softmax(neox, each.blocks)
        with bypassed(neox, each), torch.inference_mode():
            ours = neox(tokens).logits
        with torch.inference_mode():
            torch.testing.assert_close(ours, edited(tokens).logits, rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2", "llama", "phi", "stablelm", "nemotron"])
@pytest.mark.parametrize(("edit", "where"), [("mean", "output"), ("mlp-mean", "mlp")])
def test_mean_is_a_projection_that_returns_the_measured_mean(family, edit, where):
    model, other = tiny(family), copy.deepcopy(tiny(family))
    seen = {block: [] for block in EDITED}
    for block in EDITED:
        module = getattr(plain.parts(other)[block], where)
        module.register_forward_hook(lambda _m, _a, y, block=block: seen[block].append(y))
    calibration = half_remembered(model, 20)
    with torch.inference_mode():
        other(calibration)
    other = copy.deepcopy(model)
    for block in EDITED:
        constant = torch.cat(seen[block]).double().flatten(0, -2).mean(0).float()
        module = getattr(plain.parts(other)[block], where)
        module.weight.data.zero_()
        module.bias = torch.nn.Parameter(constant)
    listed = [BASELINE, Intervention("one", dict.fromkeys(EDITED, edit))]
    tokens = half_remembered(model)
    ours = complete(model, tokens, SUFFIX, listed, calibration_tokens=calibration)
    expected = plain.complete(other, tokens, SUFFIX, [BASELINE], SAMPLES)
    assert_same_completions(type(ours)(*(x[1:] for x in ours.tensors().values())), expected, 1e-4)
    requests = [(row[:9].tolist(), row[9:].tolist()) for row in tokens]
    scored = score(model, requests, listed, calibration_tokens=calibration)
    torch.testing.assert_close(
        scored.log_prob[1], expected.suffix_log_prob[0], rtol=0, atol=2e-4 * SUFFIX
    )


def test_the_mean_is_over_all_calibration_tokens_up_to_256_rows_evenly_spread():
    model = tiny("llama")
    calibration = random_tokens(300, 6)
    chosen = calibration[torch.arange(256) * 300 // 256]
    listed, tokens = [Intervention("one", {1: "mean"})], half_remembered(model, 3)
    some, all_of_them = (
        complete(model, tokens, SUFFIX, listed, calibration_tokens=each).completion_entropy
        for each in (calibration, chosen)
    )
    assert torch.equal(some, all_of_them)
    fewer = complete(model, tokens, SUFFIX, listed, calibration_tokens=calibration[:100])
    assert not torch.equal(some, fewer.completion_entropy)


def outputs_of(model, block, intervention):
    """What the output projection of a block returns, (B, T, D)."""
    seen = []
    with bypassed(model, intervention), torch.inference_mode():
        module = plain.parts(model)[block].output
        handle = module.register_forward_hook(lambda _m, _a, y: seen.append(y.clone()))
        model(TOKENS, use_cache=False)
        handle.remove()
    return seen[0]


@additive
def test_noise_is_a_change_of_the_same_size_in_another_direction(family):
    model = tiny(family)
    before = outputs_of(model, 2, BASELINE)
    identity = outputs_of(model, 2, bypass("identity", (2,))) - before
    changes = [
        outputs_of(model, 2, Intervention("noise", {2: "noise"}, seed=seed)) - before
        for seed in (1, 2, 1)
    ]
    for change in changes:
        torch.testing.assert_close(change.norm(dim=-1), identity.norm(dim=-1))
    first, second, first_again = (change[:, 1:].flatten(0, 1) for change in changes)
    assert torch.equal(first, first_again)
    for left, right in ((first, identity[:, 1:].flatten(0, 1)), (first, second)):
        cosine = torch.cosine_similarity(left, right, dim=-1)
        assert cosine.abs().mean() < 0.5
        assert cosine.abs().max() < 0.95


def test_noise_draws_differ_and_can_be_repeated():
    model = tiny("llama")
    tokens = half_remembered(model)
    draws = sweep(BLOCKS, [Group((2,), "noise", draws=3), Group((2,), "noise", draws=3, seed=1)])
    ours = complete(model, tokens, SUFFIX, draws).completion_entropy
    assert len({tuple(row.tolist()) for row in ours}) == len(draws)
    again = complete(model, tokens, SUFFIX, draws[::-1], batch_size=3).completion_entropy
    torch.testing.assert_close(again.flip(0), ours, rtol=0, atol=1e-4)
