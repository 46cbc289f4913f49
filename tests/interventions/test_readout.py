"""What is read from logits, against torch.topk and float64."""

import copy
import functools
import math
from itertools import permutations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, TopKLogitsWarper

from pipeline.interventions import readout, score, sweep
from pipeline.interventions.readout import _best_two, choose, read
from pipeline.models.sites import anatomy
from tests.families import _BASE, BLOCKS, WIDTH, randomized, tiny


def random_logits(rows, vocabulary, seed=0):
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("vocabulary", [2, 3, 255, 256, 257, 300, 511, 512, 513, 1000])
def test_the_best_two_are_those_of_topk_and_of_equals_the_lowest_id_wins(vocabulary):
    """In random rows, wherever the two stand, among equals, and where nearly all is impossible."""
    last = vocabulary - 1
    places = {0, 1, vocabulary // 2, last - 1, last} & set(range(vocabulary))
    planted = [random_logits(1, vocabulary) for _ in permutations(places, 2)]
    for row, (first, second) in zip(planted, permutations(places, 2), strict=True):
        row[0, first], row[0, second] = 30.0, 29.5
    impossible = torch.full((2, vocabulary), -torch.inf)
    impossible[:, last] = torch.tensor([1.0, 3.0])
    impossible[1, 0] = 2.5
    rounded = random_logits(200, vocabulary).mul(2).round()
    logits = torch.cat([random_logits(40, vocabulary), *planted, impossible, rounded])
    before = logits.clone()
    token, margin, *two = _best_two(logits)
    assert torch.equal(logits, before)
    values = logits.topk(2).values
    assert torch.equal(torch.stack(two, 1), values)
    assert torch.equal(margin, values[:, 0] - values[:, 1])
    assert torch.equal(token, (logits == two[0][:, None]).int().argmax(-1))
    assert vocabulary == 2 or (margin == 0).any()


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 255, 256, 299])
def test_a_row_that_is_not_finite_has_no_margin(poison, place):
    logits = random_logits(3, 300)
    logits[1, place] = poison
    assert _best_two(logits)[1].isnan().tolist() == [False, True, False]


# ------------------------------------------------------------- through a model's head


def head(vocabulary):
    """A model with a vocabulary of this size, found, and random states for its head."""
    torch.manual_seed(vocabulary)
    sizes = _BASE | {"vocab_size": vocabulary, "num_hidden_layers": 1}
    model = randomized(LlamaForCausalLM(LlamaConfig(**sizes)))
    return anatomy(model), torch.randn(17, WIDTH), torch.randint(vocabulary, (17,))


@pytest.mark.parametrize("vocabulary", [41, 256, 300, 1000])
@pytest.mark.parametrize("rows_at_once", [None, 1, 4])
@torch.inference_mode()
def test_everything_is_that_of_double_precision(vocabulary, rows_at_once, monkeypatch):
    if rows_at_once is not None:
        monkeypatch.setattr(readout, "CHUNK_LOGITS", {"cpu": 3 * rows_at_once * vocabulary})
        monkeypatch.setattr(readout, "_PIECE_LOGITS", {"cpu": rows_at_once * vocabulary})
    known, states, targets = head(vocabulary)
    logits = states.double() @ known.model.lm_head.weight.double().T
    targets[::2] = logits.topk(40).indices[::2, 7]
    forbidden = logits[0].topk(2).indices
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
    chosen = (kept.values.log_softmax(-1) * (kept.indices == targets[:, None])).sum(-1)
    expected = chosen.masked_fill(~among, -torch.inf)
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
    *without, rank, spread, top = read(known, states, targets, forbidden, ranked=False)
    assert all(map(torch.equal, without, said))
    assert not rank.any()
    assert spread.isnan().all()
    assert top.isnan().all()


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
