"""The reference against models whose attention weights are an explicit identity matrix."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType

import pytest
import torch
from torch import Tensor
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
)
from transformers.masking_utils import eager_mask
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention
from transformers.models.gpt_neox.modeling_gpt_neox import eager_attention_forward

from pipeline.interventions.interventions import BASELINE, Intervention, bypass, sweep
from pipeline.interventions.reference import bypassed, complete, score
from pipeline.errors import InputError

PREFIX, SUFFIX, BLOCKS = 9, 6, 5
SINGLES = [bypass(f"block-{b:02d}", (b,)) for b in range(BLOCKS)]
PAIR = bypass("pair", (1, 3))
ALL = bypass("all", range(BLOCKS))
INTERVENTIONS = [BASELINE, *SINGLES, PAIR, *sweep(BLOCKS)[-4:], ALL]
by_name = pytest.mark.parametrize("intervention", INTERVENTIONS, ids=lambda i: i.name)


def random_tokens(n: int, length: int, seed: int = 0) -> Tensor:
    """(n, length) ids from 1 on: end-of-text, 0, is kept for the tests about it."""
    return torch.randint(1, 61, (n, length), generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------- identity matrices, spelled out


def identity_rows(query: Tensor, key: Tensor) -> Tensor:
    """(queries, keys): the identity matrix, of which a cached step sees the last rows."""
    queries, keys = query.shape[-2], key.shape[-2]
    return torch.eye(keys)[keys - queries :]


@contextmanager
def identity_weights(model: PreTrainedModel, blocks: tuple[int, ...]) -> Iterator[PreTrainedModel]:
    """A copy of the model, eager, whose attention weights are a matrix of ones and zeros."""
    model = copy.deepcopy(model)
    if hasattr(model, "gpt_neox"):

        def attend(module, query, key, value, mask, scaling, dropout=0.0, **_):
            if module.layer_idx not in blocks:
                return eager_attention_forward(module, query, key, value, mask, scaling, dropout)
            weights = identity_rows(query, key).expand(*query.shape[:2], -1, -1)
            return (weights @ value).transpose(1, 2).contiguous(), weights

        # without a mask of the same name transformers would drop the causal mask
        AttentionInterface.register("explicit_identity", attend)
        AttentionMaskInterface.register("explicit_identity", eager_mask)
        model.set_attn_implementation("explicit_identity")
    else:

        def attend(self, query, key, value, attention_mask=None):
            return identity_rows(query, key) @ value, None

        for block in blocks:
            attention = model.transformer.h[block].attn.attention
            assert isinstance(attention, GPTNeoSelfAttention)
            attention._attn = MethodType(attend, attention)
    yield model


@by_name
def test_logits_are_those_of_identity_weights(model, intervention):
    tokens = random_tokens(3, PREFIX + SUFFIX)
    with bypassed(model, intervention), torch.inference_mode():
        ours = model(tokens, use_cache=False).logits
    with identity_weights(model, intervention.blocks) as explicit, torch.inference_mode():
        expected = explicit(tokens, use_cache=False).logits
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5)


@by_name
def test_logits_are_the_same_with_a_cache(model, intervention):
    tokens = random_tokens(3, PREFIX + SUFFIX)
    with bypassed(model, intervention), torch.inference_mode():
        whole = model(tokens, use_cache=False).logits
        step = model(tokens[:, :PREFIX], use_cache=True)
        pieces = [step.logits]
        for lengths in (1, 3, 2):  # one token, then several at once
            seen = sum(piece.shape[1] for piece in pieces)
            step = model(
                tokens[:, seen : seen + lengths],
                past_key_values=step.past_key_values,
                use_cache=True,
            )
            pieces.append(step.logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=2e-5)


@by_name
def test_a_bypass_matters_and_leaves_the_rest_alone(model, intervention):
    tokens = random_tokens(3, PREFIX)
    with torch.inference_mode():
        plain = model(tokens).logits
        with bypassed(model, intervention):
            changed = model(tokens).logits
    first_position = (changed[:, 0] - plain[:, 0]).abs().max()
    assert first_position < 2e-5, "the first position attends to itself alone anyway"
    if intervention == BASELINE:
        assert torch.equal(changed, plain)
    else:
        assert (changed[:, 1:] - plain[:, 1:]).abs().max() > 0.01


def test_the_last_position_sees_itself_alone_when_all_blocks_are_bypassed(model):
    tokens = random_tokens(2, PREFIX)
    other = torch.cat([random_tokens(2, PREFIX - 1, seed=1), tokens[:, -1:]], dim=1)
    with bypassed(model, ALL), torch.inference_mode():
        torch.testing.assert_close(
            model(tokens).logits[:, -1], model(other).logits[:, -1], rtol=0, atol=2e-5
        )


@pytest.mark.parametrize("intervention", [SINGLES[0], PAIR, ALL], ids=lambda i: i.name)
def test_left_padding_changes_no_continuation(model, intervention):
    tokens = random_tokens(2, PREFIX)
    padded = torch.nn.functional.pad(tokens, (3, 0))
    mask = (padded > 0).long()
    with bypassed(model, intervention), torch.inference_mode():
        plain = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=4, do_sample=False
        )
        shifted = model.generate(padded, attention_mask=mask, max_new_tokens=4, do_sample=False)
    assert torch.equal(plain[:, PREFIX:], shifted[:, PREFIX + 3 :])


# ------------------------------------------------------------- identity softmax, stock code


@by_name
def test_gpt_neox_equals_stock_code_with_an_identity_softmax(
    neox, with_identity_softmax, intervention
):
    tokens = random_tokens(3, 40)
    edited = with_identity_softmax(neox, intervention.blocks)
    with bypassed(neox, intervention), torch.inference_mode():
        ours = neox(tokens).logits
        expected = edited(tokens).logits
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


# ------------------------------------------------------------- restoring, refusing


def test_the_model_is_restored_bit_for_bit_after_an_exception(model):
    tokens = random_tokens(2, PREFIX)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.inference_mode():
        before = model(tokens).logits
    for failing in (lambda: 1 / 0, lambda: model(tokens.float())):
        with pytest.raises((ZeroDivisionError, RuntimeError)), bypassed(model, ALL):
            failing()
    with torch.inference_mode():
        assert torch.equal(model(tokens).logits, before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_an_exception_inside_a_forward_leaves_nothing_for_the_next_one(model):
    tokens = random_tokens(2, PREFIX)

    def fail(*_):
        raise RuntimeError("mixing failed")

    attention = (
        model.gpt_neox.layers[0].attention.dense
        if hasattr(model, "gpt_neox")
        else model.transformer.h[0].attn.attention.out_proj
    )
    with bypassed(model, SINGLES[0]), torch.inference_mode():
        expected = model(tokens).logits
        handle = attention.register_forward_pre_hook(fail, prepend=True)
        with pytest.raises(RuntimeError, match="mixing failed"):
            model(random_tokens(2, PREFIX, seed=9))
        handle.remove()
        assert torch.equal(model(tokens).logits, expected)


def test_other_classes_are_refused_with_the_supported_ones():
    other = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1, n_positions=8))
    refused = pytest.raises(InputError, match="GPTNeoXForCausalLM or GPTNeoForCausalLM")
    with refused, bypassed(other, BASELINE):
        pass


def test_blocks_beyond_the_last_are_refused(model):
    refused = pytest.raises(InputError, match=r"blocks 5, 7[\s\S]*blocks 0 to 4")
    with refused, bypassed(model, bypass("far", (1, 5, 7))):
        pass


def test_training_mode_is_refused(neo):
    training = copy.deepcopy(neo).train()
    with pytest.raises(ValueError, match=r"model\.eval"):
        complete(training, random_tokens(1, 4), 2, [BASELINE], batch_size=1)
    with pytest.raises(ValueError, match=r"model\.eval"):
        score(training, [([1], [2])], [BASELINE], batch_size=1)


# ------------------------------------------------------------- complete


def recompute(model: PreTrainedModel, row: Tensor, suffix_length: int) -> tuple[list[int], float]:
    """Greedy, token by token, the whole row anew each time; and the smallest top-2 gap."""
    row, gaps = row[None], []
    for _ in range(suffix_length):
        logits = model(row, use_cache=False).logits[0, -1].clone()
        logits[0] = -torch.inf  # end-of-text is never chosen
        best, second = logits.topk(2).values
        gaps.append(float(best - second))
        row = torch.cat([row, logits.argmax().view(1, 1)], dim=1)
    return row[0, -suffix_length:].tolist(), min(gaps)


@pytest.mark.parametrize("suffix_length", [1, 6])
@by_name
def test_completions_equal_a_full_recompute_of_identity_weights(model, intervention, suffix_length):
    tokens = random_tokens(3, PREFIX + suffix_length)
    ours = complete(model, tokens, suffix_length, [intervention], batch_size=2)
    assert ours.continuation.shape == ours.teacher_forced.shape == (1, 3, suffix_length)
    with identity_weights(model, intervention.blocks) as explicit, torch.inference_mode():
        for i, row in enumerate(tokens):
            continuation, margin = recompute(explicit, row[:PREFIX], suffix_length)
            assert ours.continuation[0, i].tolist() == continuation
            assert float(ours.min_margin[0, i]) == pytest.approx(margin, abs=1e-4)

            logits = explicit(row[None]).logits[0].double()
            probabilities = logits.softmax(-1)[PREFIX - 1 : PREFIX + suffix_length - 1]
            entropy = -(probabilities * probabilities.log()).sum()
            suffix = row[PREFIX:]
            log_prob = probabilities[range(suffix_length), suffix].log().sum()
            assert ours.teacher_forced[0, i].tolist() == probabilities.argmax(-1).tolist()
            assert float(ours.completion_entropy[0, i]) == pytest.approx(float(entropy), rel=1e-5)
            assert float(ours.suffix_log_prob[0, i]) == pytest.approx(float(log_prob), rel=1e-5)


def test_completions_have_the_promised_types(model):
    ours = complete(model, random_tokens(2, 8), 3, [BASELINE, ALL], batch_size=2)
    assert ours.continuation.dtype == ours.teacher_forced.dtype == torch.int64
    assert ours.completion_entropy.dtype == ours.suffix_log_prob.dtype == torch.float64
    assert ours.min_margin.dtype == torch.float32
    assert ours.completion_entropy.shape == ours.min_margin.shape == (2, 2)


@pytest.mark.parametrize("batch_size", [1, 2, 7, 100])
def test_completions_do_not_depend_on_the_batch_size(model, batch_size):
    tokens = random_tokens(7, PREFIX + SUFFIX)
    expected = complete(model, tokens, SUFFIX, [BASELINE, PAIR], batch_size=3)
    calls = []
    ours = complete(
        model, tokens, SUFFIX, [BASELINE, PAIR], batch_size, lambda *call: calls.append(call)
    )
    assert torch.equal(ours.continuation, expected.continuation)
    assert torch.equal(ours.teacher_forced, expected.teacher_forced)
    for name in ("completion_entropy", "suffix_log_prob", "min_margin"):
        torch.testing.assert_close(
            getattr(ours, name), getattr(expected, name), rtol=1e-5, atol=1e-4
        )
    batches = 2 * math.ceil(7 / batch_size)
    assert calls == [(done, batches) for done in range(1, batches + 1)]


def favouring(model: PreTrainedModel, token: int) -> PreTrainedModel:
    """A copy that ranks `token` first everywhere: its output embedding is the mean direction."""
    model = copy.deepcopy(model)
    head = torch.nn.Linear(32, 61, bias=True)
    head.weight.data.copy_(model.get_output_embeddings().weight)
    head.bias.data.zero_()
    head.bias.data[token] = 1e4
    model.config.tie_word_embeddings = False
    model.set_output_embeddings(head)
    return model


def test_end_of_text_cannot_end_a_continuation(model):
    tokens = random_tokens(2, PREFIX + SUFFIX)
    ours = complete(favouring(model, 0), tokens, SUFFIX, [BASELINE], batch_size=2)
    assert (ours.teacher_forced == 0).all(), "teacher-forced, the whole vocabulary counts"
    assert (ours.continuation != 0).all()
    assert (ours.min_margin < 1e3).all(), "the margin is that of the tokens that can be chosen"


def test_a_model_without_end_of_text_may_choose_any_token(neo):
    model = favouring(neo, 0)
    model.generation_config.eos_token_id = None
    ours = complete(model, random_tokens(2, PREFIX + SUFFIX), SUFFIX, [BASELINE], batch_size=2)
    assert (ours.continuation == 0).all()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_refused_by_name(model, poison):
    broken = copy.deepcopy(model)
    embedding = torch.nn.Embedding.from_pretrained(model.get_input_embeddings().weight.clone())
    embedding.weight[0] = poison  # end-of-text: no continuation comes across it by itself
    broken.set_input_embeddings(embedding)
    tokens = random_tokens(5, PREFIX + SUFFIX)
    tokens[3, 2] = 0
    with pytest.raises(InputError, match=r"pair \(bypassed blocks: 1, 3\), sample 3"):
        complete(broken, tokens, SUFFIX, [PAIR], batch_size=2)
    requests = [([1, 2], [3]), ([1, 0], [3, 4])]
    with pytest.raises(InputError, match=r"baseline \(bypassed blocks: none\), request 1"):
        score(broken, requests, [BASELINE], batch_size=2)


# ------------------------------------------------------------- score


REQUESTS = [
    ([5, 6, 7], [8, 9]),
    ([5, 6, 7], [8, 10]),  # shares its row with the one before
    ([5, 6, 7, 8], [11]),  # and so does this one
    ([1], [2]),
    ([3] * 20, [4] * 5),
    (list(range(1, 50)), [7, 8, 9]),  # longer than the context: truncated from the left
    ([9, 8, 7], list(range(1, 41))),  # the longest continuation that fits
]


@by_name
def test_scores_equal_one_request_at_a_time_under_identity_weights(model, intervention):
    ours = score(model, REQUESTS, [BASELINE, intervention], batch_size=3)
    assert ours.log_prob.shape == ours.is_greedy.shape == (2, len(REQUESTS))
    with identity_weights(model, intervention.blocks) as explicit, torch.inference_mode():
        for r, (context, continuation) in enumerate(REQUESTS):
            row = torch.tensor((context + continuation)[-41:])
            logits = explicit(row[None, :-1]).logits[0, -len(continuation) :].double()
            target = torch.tensor(continuation)
            expected = logits.log_softmax(-1).gather(-1, target[:, None]).sum()
            assert float(ours.log_prob[1, r]) == pytest.approx(float(expected), rel=1e-5)
            assert bool(ours.is_greedy[1, r]) == bool((logits.argmax(-1) == target).all())


def test_a_greedy_continuation_is_seen_as_such(model):
    tokens = random_tokens(1, PREFIX)
    with torch.inference_mode():
        likely, _ = recompute(model, tokens[0], 3)
    context = tokens[0].tolist()
    requests = [(context, likely), (context, [*likely[:2], likely[2] % 60 + 1])]
    assert score(model, requests, [BASELINE], batch_size=4).is_greedy.tolist() == [[True, False]]


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_scores_do_not_depend_on_the_batch_size(model, batch_size):
    expected = score(model, REQUESTS, [BASELINE, PAIR], batch_size=4)
    ours = score(model, REQUESTS, [BASELINE, PAIR], batch_size)
    torch.testing.assert_close(ours.log_prob, expected.log_prob, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours.is_greedy, expected.is_greedy)


def test_a_shorter_context_can_be_asked_for(neox):
    requests = [(list(range(1, 20)), [7, 8])]
    ours = score(neox, requests, [BASELINE], batch_size=1, max_length=6)
    expected = score(neox, [(list(range(15, 20)), [7, 8])], [BASELINE], batch_size=1)
    torch.testing.assert_close(ours.log_prob, expected.log_prob, rtol=1e-5, atol=1e-5)


def test_requests_that_cannot_be_scored_are_refused_together(neo):
    requests = [([], [1]), ([1], [2]), ([1], []), ([1], [2] * 41)]
    with pytest.raises(InputError, match="3 problems") as raised:
        score(neo, requests, [BASELINE], batch_size=1)
    assert [problem.what for problem in raised.value.problems] == [
        "request 0",
        "request 2",
        "request 3",
    ]


def test_unknown_operations_are_not_silently_ignored(neo):
    unknown = bypass("odd", (0,))
    object.__setattr__(unknown, "operations", {0: "zero_ablation"})
    with pytest.raises(NotImplementedError, match="zero_ablation"), bypassed(neo, unknown):
        pass
    assert isinstance(unknown, Intervention)
