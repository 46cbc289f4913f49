"""Where the engine finds a model's modules, against names written down by hand; and refusals."""

import copy
import gc
import weakref

import pytest
import torch
import transformers as t

from pipeline.interventions import Group, bypassed, complete, score, sweep
from pipeline.interventions.interventions import BASELINE
from pipeline.models.context import context_length
from pipeline.models.sites import anatomy
from pipeline.workflow.errors import InputError
from tests.families import (
    _GPT,
    _GROUPED,
    BLOCKS,
    CONTEXT,
    FAMILIES,
    HEADS,
    NOT_ADDITIVE,
    UNSUPPORTED,
    VOCABULARY,
    cases,
    randomized,
    tiny,
)
from tests.oracle import plain

every_family = pytest.mark.parametrize("family", cases(FAMILIES))
TOKENS = torch.randint(4, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(0))


@every_family
def test_modules_are_those_written_down_for_the_family(family):
    model = tiny(family)
    known = anatomy(model)
    assert known.n_heads == HEADS
    assert known.additive == (family not in NOT_ADDITIVE)
    for site, part in zip(known.sites, plain.parts(model), strict=True):
        assert site.block is part.block
        assert site.source is part.source
        assert site.mixer is part.context
        assert site.attention is part.output
        if known.additive:
            assert site.mlp is part.mlp


@every_family
@torch.inference_mode()
def test_values_are_those_written_down_for_the_family(family):
    model = tiny(family)
    for site, part in zip(anatomy(model).sites, plain.parts(model), strict=True):
        seen = []
        handle = part.source.register_forward_hook(lambda _m, _a, y, seen=seen: seen.append(y))
        model(TOKENS, use_cache=False)
        handle.remove()
        projected = seen[0].view(*TOKENS.shape, -1)
        assert torch.equal(site.values.pick(projected), part.values(projected))


@every_family
def test_an_attention_that_writes_zero_is_wired_as_before(family):
    """As in the export of a model whose first block has the edit zero."""
    model = copy.deepcopy(tiny(family))
    output = plain.parts(model)[0].output
    with torch.no_grad():
        for parameter in output.parameters():
            parameter.zero_()
    assert anatomy(model).parallel == anatomy(tiny(family)).parallel


@every_family
def test_finding_leaves_the_model_as_it_was(family):
    model = copy.deepcopy(tiny(family))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.inference_mode():
        before = model(TOKENS).logits
        random_state = torch.get_rng_state()
        known = anatomy(model)
        assert anatomy(model).sites is known.sites
        assert torch.equal(torch.get_rng_state(), random_state)
        assert torch.equal(model(TOKENS).logits, before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("family", ["gpt_neox", "gpt_neo", "gpt2", "llama", "mpt", "opt"])
def test_the_context_length(family):
    assert context_length(tiny(family).config) == CONTEXT


@pytest.mark.parametrize("family", cases(FAMILIES))
def test_sites_are_found_in_bfloat16(family):
    known = anatomy(copy.deepcopy(tiny(family)).bfloat16())
    expected = anatomy(tiny(family))
    assert [site.values for site in known.sites] == [site.values for site in expected.sites]
    assert known.additive == expected.additive


def test_sites_are_found_where_a_token_is_repeated():
    """With few tokens the first two of a row are often the same, and so are their values."""
    config = t.LlamaConfig(**_GROUPED | {"vocab_size": 5})
    anatomy(randomized(t.LlamaForCausalLM(config)))


def test_a_model_that_nobody_holds_is_freed():
    model = copy.deepcopy(tiny("gpt_neox"))
    complete(model, TOKENS, 4, [BASELINE])
    held = weakref.ref(model)
    del model
    gc.collect()
    assert held() is None


# ------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "name",
    sorted(UNSUPPORTED),
)
def test_models_that_cannot_work_are_refused_in_words(name):
    torch.manual_seed(0)
    model = UNSUPPORTED[name]().eval()
    calls = (
        lambda: complete(model, TOKENS, 4, [BASELINE]),
        lambda: score(model, [([1], [2])], [BASELINE], max_length=9),
        lambda: bypassed(model, [1]).__enter__(),
    )
    for call in calls:
        with pytest.raises(
            InputError, match=rf"{type(model).__name__} \({model.config.model_type}"
        ):
            call()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("multi_query", [True, False])
def test_gpt_bigcode_works_or_is_refused(multi_query):
    model = randomized(t.GPTBigCodeForCausalLM(t.GPTBigCodeConfig(**_GPT, multi_query=multi_query)))
    try:
        complete(model, TOKENS, 4, sweep(BLOCKS, [Group("each")]))
    except InputError:
        return
