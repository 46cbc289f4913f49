"""What `complete`, `score` and `bypassed` refuse, and in which words."""

import copy

import pytest
import torch
from torch import nn

from pipeline.interventions import Intervention, bypassed, complete, score
from pipeline.interventions.interventions import BASELINE, bypass
from pipeline.workflow.errors import InputError
from tests.families import CONTEXT, UNSUPPORTED, VOCABULARY, tiny

ONES = torch.ones(1, 8, dtype=torch.int64)
CALLS = {
    "complete": lambda model, *listed: complete(model, ONES, 4, listed),
    "score": lambda model, *listed: score(model, [([1], [2])], listed, max_length=9),
    "bypassed": lambda model, one: bypassed(model, one).__enter__(),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
on_samples = pytest.mark.parametrize("call", [CALLS["complete"], CALLS["score"]])


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_models_that_cannot_work_are_refused_in_words(name):
    torch.manual_seed(0)
    model = UNSUPPORTED[name]().eval()
    kind = rf"{type(model).__name__} \({model.config.model_type}"
    for call in CALLS.values():
        with pytest.raises(InputError, match=kind):
            call(model, bypass("one", (1,)))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@on_samples
def test_what_is_no_model_ready_to_be_evaluated_is_refused(call):
    no_model = r"the model\n +got: +(str|NoneType)\n +expected: a stock transformers model"
    for model, error, message in (
        ("gpt2", InputError, no_model),
        (None, InputError, no_model),
        (copy.deepcopy(tiny("llama")).to("meta"), InputError, r"meta\n +expected: cpu or cuda"),
        (copy.deepcopy(tiny("llama")).train(), ValueError, r"model\.eval"),
    ):
        with pytest.raises(error, match=message):
            call(model, BASELINE)


@each_call
def test_a_wrapper_and_several_precisions_are_refused(call):
    model = copy.deepcopy(tiny("llama"))
    model.model.layers[1].half()
    quantized = copy.deepcopy(tiny("llama"))
    weight = quantized.model.layers[1].mlp.up_proj.weight
    quantized.model.layers[1].mlp.up_proj.weight = nn.Parameter(weight.to(torch.int8), False)
    for wrong, said in (
        (model, "float16 and torch.float32"),
        (nn.DataParallel(model), "Parallel"),
        (quantized, "float32 and torch.int8"),
    ):
        with pytest.raises(InputError, match=rf"got: +.*{said}"):
            call(wrong, bypass("one", (1,)))


@each_call
@pytest.mark.parametrize(
    ("one", "message"),
    [
        (bypass("far", (1, 5, 7)), r"block 5\n[\s\S]*blocks 0 to 4[\s\S]*block 7"),
        (Intervention("odd", {1: "heads"}, (1, 4)), r"head 4\n[\s\S]*heads 0 to 3"),
    ],
)
def test_blocks_and_heads_beyond_the_last_are_refused(one, message, call):
    with pytest.raises(InputError, match=message):
        call(tiny("llama"), one)


@on_samples
def test_no_interventions_are_refused(call):
    with pytest.raises(InputError, match="got:      none"):
        call(tiny("llama"))


@each_call
@pytest.mark.parametrize("family", ["opt-post-norm", "mixtral", "qwen3_moe"])
@pytest.mark.parametrize("edit", ["zero", "noise", "mlp-zero"])
def test_edits_that_a_model_has_no_place_for_are_refused(family, edit, call):
    with pytest.raises(InputError, match=rf"intervention odd[\s\S]*{edit}\n[\s\S]*identity"):
        call(tiny(family), Intervention("odd", {1: edit}))


def test_a_mean_needs_calibration_tokens_and_a_place():
    mean = Intervention("odd", {0: "mean"})
    with pytest.raises(ValueError, match="calibration tokens"):
        CALLS["score"](tiny("llama"), mean)
    with pytest.raises(InputError, match="without a mean"):
        CALLS["bypassed"](tiny("llama"), mean)
    for edit in ("mean", "mlp-mean"):
        with pytest.raises(InputError, match=rf"intervention odd[\s\S]*{edit}\n[\s\S]*identity"):
            CALLS["complete"](tiny("mixtral"), Intervention("odd", {1: edit}))


@pytest.mark.parametrize(
    ("tokens", "got"),
    [
        ([[5, 6, 7]], "list"),
        (torch.ones(2, 8), r"torch.float32 of shape \(2, 8\)"),
        (torch.ones(2, 8, dtype=torch.int16), r"torch.int16 of shape \(2, 8\)"),
        (torch.ones(8, dtype=torch.int64), r"torch.int64 of shape \(8,\)"),
        (torch.ones(0, 8, dtype=torch.int64), r"torch.int64 of shape \(0, 8\)"),
        (torch.ones(8, 0, dtype=torch.int64), r"torch.int64 of shape \(8, 0\)"),
        (torch.tensor([[5], [VOCABULARY]]), f"token {VOCABULARY} in sample 1 at position 0"),
        (torch.tensor([[5] * 7 + [-1]]), "token -1 in sample 0 at position 7"),
        (torch.ones(1, CONTEXT + 2, dtype=torch.int64), f"rows of {CONTEXT + 2} tokens"),
    ],
)
@pytest.mark.parametrize("edit", ["mean", "zero"])
def test_what_is_no_text_of_the_model_is_refused(tokens, got, edit):
    model, listed, refused = tiny("gpt2"), [Intervention("one", {1: edit})], rf"\n +got: +{got}\n"
    with pytest.raises(InputError, match=f"the tokens of samples{refused}"):
        complete(model, tokens, 4, listed)
    with pytest.raises(InputError, match=f"the calibration tokens{refused}"):
        complete(model, ONES, 4, listed, calibration_tokens=tokens)
    with pytest.raises(InputError, match=f"the calibration tokens{refused}"):
        score(model, [([5], [6])], listed, calibration_tokens=tokens)


def test_prefix_and_suffix_need_a_token_each_and_decode_names_every_sample():
    for suffix in (0, 8, 9):
        with pytest.raises(ValueError, match="a token each"):
            complete(tiny("llama"), ONES, suffix, [BASELINE])
    for length in (0, 2, 3):
        with pytest.raises(ValueError, match=f"decode of {length} samples; expected 1"):
            complete(tiny("llama"), ONES, 4, [BASELINE], decode=[True] * length)


def test_unfit_requests_are_refused_together():
    requests = [([], [1]), ([1], [2]), ([1], []), ([1], [2] * 7)]
    with pytest.raises(InputError, match="3 problems") as refused:
        score(tiny("llama"), requests, [BASELINE], max_length=6)
    assert [each.what for each in refused.value.problems] == ["request 0", "request 2", "request 3"]
    for odd, got in (
        (([VOCABULARY], [2]), VOCABULARY),
        (([1], [2, VOCABULARY]), VOCABULARY),
        (([1], [-1]), -1),
        (([1.0], [2]), r"1\.0"),
        ((torch.tensor([1, 3]), torch.tensor([2])), r"tensor\(1\)"),
    ):
        with pytest.raises(InputError, match=rf"request 1\n +got: +{got} among its tokens"):
            score(tiny("llama"), [([1], [2]), odd], [BASELINE])
