"""A model that changes between calls: each call compares it with what was proved before."""

import copy

import pytest
import torch
from peft import LoraConfig
from torch import nn
from torch.nn.utils import parametrize
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from pipeline.interventions import Intervention, bypassed, complete, score
from pipeline.interventions.guard import proven
from pipeline.interventions.interventions import BASELINE, bypass
from pipeline.models.sites import anatomy
from pipeline.workflow.errors import InputError
from tests.families import _GROUPED, BLOCKS, randomized, tiny
from tests.interventions.cases import (
    PREFIX,
    SUFFIX,
    assert_same_completions,
    half_remembered,
    random_tokens,
    rounding,
)
from tests.oracle import plain

TARGETS = {
    "llama": ["q_proj", "v_proj"],
    "gpt_neox": ["query_key_value"],
    "gpt_neo": ["q_proj", "v_proj"],
    "gpt2": ["c_attn"],
}
"""Family -> the projections that an adapter goes to."""
EACH = [BASELINE, *(bypass(f"block-{block}", (block,)) for block in range(BLOCKS))]
four = pytest.mark.parametrize("family", TARGETS)


def used_before(family):
    """A copy of a tiny model, which the engine has used."""
    model = copy.deepcopy(tiny(family))
    proven(model)
    return model


def replace(model, old, new):
    """Put a module into the place of another."""
    (place,) = (name for name, module in model.named_modules() if module is old)
    model.set_submodule(place, new)


def assert_exact(model, tokens=None):
    """Every token of every single bypass is the plain loop's."""
    tokens = half_remembered(model, 4) if tokens is None else tokens
    ours = complete(model, tokens, SUFFIX, EACH)
    expected = plain.complete(model, tokens, SUFFIX, EACH, len(tokens))
    assert_same_completions(ours, expected, rounding(model))
    assert (ours.continuation[1:] != ours.continuation[0]).any(), "a bypass changes something"


@four
def test_equal_modules_in_other_places_are_found_again(family):
    """As a quantizer, or the merge of an adapter, puts new modules where the old ones were."""
    model = used_before(family)
    for site in anatomy(model).sites:
        replace(model, site.attention, copy.deepcopy(site.attention))
    assert_exact(model)


@four
def test_blocks_in_another_order_are_found_again(family):
    model = used_before(family)
    first = anatomy(model).sites[0].block
    blocks = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and m[0] is first)
    kept = list(blocks)
    order = [4, 2, 1, 3, 0] if family == "gpt_neo" else [2, 0, 4, 1, 3]  # as local as before
    for place, block in enumerate(order):
        blocks[place] = kept[block]
        for module in kept[block].modules():
            for name in {"layer_idx", "layer_id"} & set(vars(module)):
                setattr(module, name, place)
    assert_exact(model)


@four
def test_a_hook_of_the_user_is_proved_again(family):
    model = used_before(family)
    before = anatomy(model).sites
    proven(model)
    assert anatomy(model).sites is before, "nothing is searched without a change"
    block = anatomy(model).sites[2].block
    handle = block.register_forward_hook(lambda *_: None)
    assert anatomy(model).sites is not before
    handle.remove()
    with bypassed(model, [1]), bypassed(model, [3]):
        now = anatomy(model).sites
    assert anatomy(model).sites is now, "the engine's own hooks are no change"


@four
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "after a call"])
def test_adapters_are_refused_whatever_their_values(family, used):
    """One that is not trained yet adds zero, so a test of the outputs does not tell."""
    model = used_before(family) if used else copy.deepcopy(tiny(family))
    convolution = family == "gpt2"  # whose matrices are transposed
    model.add_adapter(LoraConfig(r=2, target_modules=TARGETS[family], fan_in_fan_out=convolution))
    tokens = half_remembered(tiny(family), 2)
    with pytest.raises(InputError, match=r"modules of adapters\n[\s\S]*merge"):
        complete(model.eval(), tokens, SUFFIX, EACH)
    with pytest.raises(InputError, match="adapters"), bypassed(model, [1]):
        pass


class Beside(nn.Module):
    """An adapter of one's own: the projection, and a path beside it that adds nothing yet."""

    def __init__(self, projection, width):
        super().__init__()
        self.projection, self.path = projection, nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.path.weight)

    def forward(self, x):
        return self.projection(x) + self.path(x)


@four
def test_a_path_beside_the_projection_is_refused(family):
    model = used_before(family)
    site = anatomy(model).sites[1]
    replace(model, site.attention, Beside(site.attention, 32))
    with pytest.raises(InputError, match="several modules that read the mixed values"):
        complete(model, half_remembered(tiny(family), 2), SUFFIX, EACH)


class Again(nn.Module):
    """A projection that is wrapped, and what it receives read once more after it has run."""

    def __init__(self, projection):
        super().__init__()
        self.projection = projection

    def forward(self, x):
        return self.projection(x) + 0.1 * x


@four
@pytest.mark.parametrize("edit", ["identity", "skip"])
def test_logits_are_the_same_with_gradients_and_without(family, edit):
    model = copy.deepcopy(tiny(family))
    tokens = half_remembered(model, 2)
    site = anatomy(model).sites[1]
    replace(model, site.attention, Again(site.attention))
    with bypassed(model, Intervention("two", {1: edit, 3: edit})):
        ours = model(tokens, use_cache=False).logits
        for without in (torch.no_grad, torch.inference_mode):
            with without():
                assert torch.equal(model(tokens, use_cache=False).logits, ours)


def test_complete_within_a_skipped_block_says_what_to_do():
    model = tiny("llama")
    refused = pytest.raises(InputError, match="outside of `bypassed`")
    with bypassed(model, Intervention("short", {2: "skip"})), refused:
        complete(model, half_remembered(model, 2), SUFFIX, EACH)


class Halved(nn.Module):
    """A parametrization that is no identity."""

    def forward(self, weight):
        return weight / 2


@four
@pytest.mark.parametrize("used", [False, True])
def test_parametrized_projections_are_edited_as_any_other(family, used):
    """Registered before the first call or after it; as weight_norm does."""
    model = used_before(family) if used else copy.deepcopy(tiny(family))
    for part in plain.parts(model)[1:3]:
        parametrize.register_parametrization(part.output, "weight", Halved(), unsafe=True)
    assert_exact(model)


def test_a_forward_whose_identity_is_used_again_is_noticed():
    model = used_before("llama")
    site = anatomy(model).sites[1]
    original = site.attention.forward
    for scale in (1.0, 2.0, 3.0):
        site.attention.forward = lambda x, scale=scale: original(x) * scale
        assert_exact(model)


# ------------------------------------------------------------- angles that depend on the length


def limited(kind, limit):
    """A tiny model whose rotary angles change beyond `limit` tokens."""
    torch.manual_seed(0)
    rope = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0}
    if kind == "dynamic":
        sizes = _GROUPED | {"max_position_embeddings": limit}
        return randomized(LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope)))
    rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 2.0, 1.5]}
    rope |= {"original_max_position_embeddings": limit}
    sizes = _GROUPED | {"max_position_embeddings": 4 * limit}
    sizes |= {"original_max_position_embeddings": limit, "rope_parameters": rope}
    return randomized(Phi3ForCausalLM(Phi3Config(**sizes)))


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_texts_beyond_the_limit_of_the_angles_are_refused(kind):
    length = PREFIX + SUFFIX
    model = limited(kind, length if kind == "longrope" else length + 1)
    tokens = random_tokens(4, length)
    with torch.inference_mode():
        model(torch.cat([tokens] * 2, 1))  # a longer text leaves nothing behind
    assert_exact(model, tokens)
    longer = torch.cat([tokens, tokens[:, :2]], 1)
    with pytest.raises(InputError, match=rf"{length + 1} tokens[\s\S]*at most {length}:"):
        complete(model, longer, SUFFIX, EACH)
    request = tokens[0].tolist()
    one = score(model, [(request[:5], request[5:9])], EACH)
    both = score(model, [(request[:5], request[5:9]), (request[:9], request[9:])], EACH)
    torch.testing.assert_close(one.log_prob[:, 0], both.log_prob[:, 0], rtol=1e-6, atol=0)
    with pytest.raises(InputError, match="depend on the length"):
        score(model, [(request[:5], request[5:9]), (request[:9], [*request[9:], 1, 1])], EACH)
