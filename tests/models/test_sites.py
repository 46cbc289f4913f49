"""Where the engine finds a model's modules, against names written down by hand; and refusals."""

import copy
import gc
import weakref

import pytest
import torch
import transformers as t

from pipeline.interventions import Group, complete, sweep
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
    cases,
    randomized,
    tiny,
)
from tests.interventions.cases import random_tokens, unchanged
from tests.oracle import plain

every_family = pytest.mark.parametrize("family", cases(FAMILIES))
TOKENS = random_tokens(2, 9)


@every_family
def test_modules_are_those_written_down_for_the_family(family):
    model = tiny(family)
    known = anatomy(model)
    assert known.additive == (family not in NOT_ADDITIVE)
    for site, part in zip(known.sites, plain.parts(model), strict=True):
        assert site.block is part.block
        assert site.values.heads == HEADS
        assert site.source is part.source
        assert site.mixer is part.context
        assert site.attention is part.output
        if known.additive:
            assert site.mlp is part.mlp


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
    with torch.inference_mode(), unchanged(model):
        before = model(TOKENS).logits
        random_state = torch.get_rng_state()
        known = anatomy(model)
        assert anatomy(model).sites is known.sites
        assert torch.equal(torch.get_rng_state(), random_state)
        assert torch.equal(model(TOKENS).logits, before)


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


@pytest.mark.parametrize("multi_query", [True, False])
def test_gpt_bigcode_works_or_is_refused(multi_query):
    model = randomized(t.GPTBigCodeForCausalLM(t.GPTBigCodeConfig(**_GPT, multi_query=multi_query)))
    try:
        complete(model, TOKENS, 4, sweep(BLOCKS, [Group("each")]))
    except InputError:
        return
