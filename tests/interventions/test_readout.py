"""What is read from logits, against torch.topk and float64."""

import copy
import functools
import math

import pytest
import torch
from transformers import TopKLogitsWarper

from pipeline.interventions import readout, score, sweep
from pipeline.interventions.readout import _best_two, _without, choose, read
from pipeline.models.sites import anatomy
from tests.families import BLOCKS, WIDTH, randomized, tiny

VOCABULARIES = [2, 3, 255, 256, 257, 300, 511, 512, 513, 1000]


def random_logits(rows, vocabulary, seed=0):
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_best_two_are_those_of_topk(vocabulary):
    logits = random_logits(40, vocabulary)
    before = logits.clone()
    token, margin, *two = _best_two(logits)
    values, ids = logits.topk(2)
    assert torch.equal(token, ids[:, 0])
    assert torch.equal(torch.stack(two, 1), values)
    assert torch.equal(margin, values[:, 0] - values[:, 1])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_best_two_wherever_they_stand(vocabulary):
    places = sorted(
        {0, 1, vocabulary // 2, vocabulary - 2, vocabulary - 1} & set(range(vocabulary))
    )
    for first in places:
        for second in set(places) - {first}:
            logits = random_logits(1, vocabulary)
            logits[0, first], logits[0, second] = 30.0, 29.5
            assert [float(x) for x in _best_two(logits)] == [first, 0.5, 30.0, 29.5]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_of_equals_the_lowest_id_wins_with_a_margin_of_zero(vocabulary):
    rounded = random_logits(200, vocabulary).mul(2).round()
    token, margin, largest, _ = _best_two(rounded)
    assert torch.equal(largest, rounded.amax(-1))
    assert torch.equal(token, (rounded == largest[:, None]).int().argmax(-1))
    values = rounded.topk(2).values
    assert torch.equal(margin, values[:, 0] - values[:, 1])
    assert vocabulary == 2 or (margin == 0).any()


@pytest.mark.parametrize("vocabulary", [3, 256, 300, 512])
def test_where_nearly_all_is_impossible(vocabulary):
    logits = torch.full((2, vocabulary), -torch.inf)
    logits[:, vocabulary - 2] = torch.tensor([1.0, 3.0])
    logits[1, 0] = 2.5
    token, margin, *_ = _best_two(logits)
    assert token.tolist() == [vocabulary - 2] * 2
    assert margin.tolist() == [math.inf, 0.5]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 255, 256, 299])
def test_a_row_that_is_not_finite_has_no_margin(poison, place):
    logits = random_logits(3, 300)
    logits[1, place] = poison
    assert _best_two(logits)[1].isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("vocabulary", VOCABULARIES[1:])
def test_forbidden_tokens_are_never_chosen(vocabulary):
    logits = random_logits(30, vocabulary)
    before = logits.clone()
    forbidden = torch.tensor(sorted({0, vocabulary // 3}))
    token, margin, _, second = _best_two(logits)
    token, margin = _without(logits, token, margin, second, forbidden)
    allowed = before.index_fill(1, forbidden, -torch.inf)
    values, ids = allowed.topk(2)
    assert torch.equal(token, ids[:, 0])
    assert torch.equal(margin, values[:, 0] - values[:, 1])
    assert torch.equal(logits, before)


# ------------------------------------------------------------- through a model's head


def head(vocabulary):
    """A model with a vocabulary of this size, found, and random states for its head."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(vocabulary)
    model = randomized(
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocabulary,
                hidden_size=WIDTH,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=8,
                pad_token_id=None,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
    )
    return anatomy(model), torch.randn(17, WIDTH), torch.randint(vocabulary, (17,))


@pytest.mark.parametrize("vocabulary", [41, 256, 300, 1000])
@pytest.mark.parametrize("rows_at_once", [None, 1, 4])
@torch.inference_mode()
def test_everything_is_that_of_double_precision(vocabulary, rows_at_once, monkeypatch):
    if rows_at_once is not None:
        monkeypatch.setattr(readout, "CHUNK_LOGITS", {"cpu": 3 * rows_at_once * vocabulary})
        monkeypatch.setattr(readout, "_PIECE_LOGITS", {"cpu": rows_at_once * vocabulary})
    known, states, targets = head(vocabulary)
    forbidden = torch.tensor([1, 3])
    logits = states.double() @ known.model.lm_head.weight.double().T
    targets[::2] = logits.topk(40).indices[::2, 7]
    said = read(known, states, targets, forbidden)
    log_probs = logits.log_softmax(-1)
    assert torch.equal(said.token, logits.argmax(-1))
    close = {"rtol": 0, "atol": 2e-5, "check_dtype": False}
    torch.testing.assert_close(said.entropy, -(log_probs.exp() * log_probs).sum(-1), **close)
    torch.testing.assert_close(said.log_prob, log_probs.gather(1, targets[:, None])[:, 0], **close)
    place = (log_probs.argsort(-1, descending=True) == targets[:, None]).nonzero()[:, 1]
    assert torch.equal(said.rank, place.int() + 1)
    mean = (log_probs.exp() * log_probs).sum(-1, keepdim=True)
    variance = (log_probs.exp() * (log_probs - mean) ** 2).sum(-1)
    torch.testing.assert_close(said.spread, variance.sqrt(), **close)
    kept = logits.topk(40)
    among = (kept.indices == targets[:, None]).any(-1)
    expected = torch.full(among.shape, -torch.inf).double()
    expected[among] = (kept.values.log_softmax(-1) * (kept.indices == targets[:, None])).sum(-1)[
        among
    ]
    assert among[::2].all()
    torch.testing.assert_close(said.log_prob_top_40, expected, **close)
    for (token, margin), exact in (
        ((said.token, said.margin), logits),
        ((said.allowed_token, said.allowed_margin), logits.index_fill(1, forbidden, -torch.inf)),
        (choose(known, states, forbidden), logits.index_fill(1, forbidden, -torch.inf)),
    ):
        values, ids = exact.topk(2)
        assert torch.equal(token, ids[:, 0])
        torch.testing.assert_close(margin, values[:, 0] - values[:, 1], **close)


@pytest.mark.parametrize("size", [1e-6, 40.0, 1e4])
@torch.inference_mode()
def test_flat_and_sharp_distributions(size):
    """Entropy between log V and 0, without a loss of all digits on the way."""
    known, states, targets = head(300)
    said = read(known, states * size, targets, torch.tensor([], dtype=torch.int64))
    logits = (states * size) @ known.model.lm_head.weight.T
    log_probs = logits.double().log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    atol = 4e-6 * max(1.0, float(logits.abs().max()))
    torch.testing.assert_close(said.entropy.double(), entropy, rtol=0, atol=atol)
    assert said.entropy.min() > -atol
    expected = log_probs.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(said.log_prob.double(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("family", ["gemma2", "cohere", "granite", "phi", "gptj"])
@torch.inference_mode()
def test_the_head_is_the_models_own(family):
    """Caps, scales and biases of logits are not lost, and the body is restored."""
    model = copy.deepcopy(tiny(family))
    tokens = torch.arange(4, 16)[None]
    seen = []
    handle = model.get_output_embeddings().register_forward_pre_hook(
        lambda _m, args: seen.append(args[0])
    )
    logits = model(tokens, use_cache=False).logits[0].float()
    handle.remove()
    body = anatomy(model).body
    states = body(tokens, use_cache=False)[0][0]
    targets = tokens[0]
    said = read(anatomy(model), states, targets, torch.tensor([], dtype=torch.int64))
    expected = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(said.log_prob, expected, rtol=0, atol=1e-5)
    assert "forward" not in vars(body)
    assert torch.equal(model(tokens, use_cache=False).logits[0].float(), logits)


@pytest.mark.parametrize("vocabulary", [41, 300, 5000])
@torch.inference_mode()
def test_top_k_keeps_what_ties_for_the_last_place_as_transformers_does(vocabulary):
    known, states, targets = head(vocabulary)
    coarse = (2 * states).round() / 2  # and so are logits: many are equal
    several = known.model.lm_head.weight[torch.arange(vocabulary) % 300]  # equal ones far apart
    known.model.lm_head.weight.copy_(several.mul(20).round() / 2)
    logits = coarse @ known.model.lm_head.weight.T
    assert len(logits[0].unique()) < 0.9 * vocabulary
    none = torch.tensor([], dtype=torch.int64)
    kept = TopKLogitsWarper(40)(None, logits).log_softmax(-1)
    for target in (targets, logits.topk(40).indices[:, -1]):
        said = read(known, coarse, target, none)
        expected = kept.gather(1, target[:, None])[:, 0]
        torch.testing.assert_close(said.log_prob_top_40, expected, rtol=0, atol=2e-5)


@torch.inference_mode()
def test_a_forward_that_was_replaced_before_is_there_afterwards():
    """As torch.compile or accelerate replaces it; the same for written-out activations."""
    model = copy.deepcopy(tiny("gpt2"))
    known = anatomy(model)
    replaced = {module: functools.partial(module.forward) for module in known.slow_activations}
    replaced[known.body] = functools.partial(known.body.forward)
    for module, forward in replaced.items():
        module.forward = forward
    score(model, [([5, 6], [7, 8])], sweep(BLOCKS))
    assert all(module.forward is forward for module, forward in replaced.items())
