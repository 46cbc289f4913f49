"""The engine's completions against the reference's, token for token."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPTNeoConfig, GPTNeoForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

from pipeline.bypass import completion, reference
from pipeline.bypass.completion import complete
from pipeline.bypass.interventions import BASELINE, bypass, sweep
from pipeline.bypass.memory import Journal
from pipeline.errors import InputError

PREFIX, SUFFIX, BLOCKS, VOCABULARY = 9, 8, 5, 61
NEAR_TIE = 1e-4  # where the reference, in float32, cannot be trusted to choose right
SWEEP = sweep(BLOCKS)


def half_remembered(model, n, prefix=PREFIX, suffix=SUFFIX, seed=0):
    """Samples whose suffix is the model's own, with an error somewhere in most of them.

    So rows go wrong at every place, at the last token, and nowhere, as in a trained model.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, model.config.vocab_size, (n, prefix + suffix), generator=generator)
    own = reference.complete(model, tokens, suffix, [BASELINE], n).continuation[0]
    tokens[:, prefix:] = own
    for i in range(n):
        where = int(torch.randint(0, suffix + 1, (), generator=generator))
        if where < suffix:
            tokens[i, prefix + where] = (tokens[i, prefix + where] + 1) % model.config.vocab_size
    return tokens


def assert_same(ours, expected, tolerance=1e-4):
    surely = expected.min_margin > NEAR_TIE
    assert surely.float().mean() > 0.5
    assert torch.equal(ours.continuation[surely], expected.continuation[surely])
    assert (ours.teacher_forced == expected.teacher_forced).float().mean() > 0.99
    for name in ("completion_entropy", "suffix_log_prob"):
        torch.testing.assert_close(
            getattr(ours, name), getattr(expected, name), rtol=0, atol=tolerance
        )
    torch.testing.assert_close(
        ours.min_margin[surely], expected.min_margin[surely], rtol=0, atol=tolerance
    )


def test_a_sweep_is_the_references(model):
    tokens = half_remembered(model, 12)
    expected = reference.complete(model, tokens, SUFFIX, SWEEP, 12)
    matching = (expected.continuation == tokens[:, PREFIX:]).long().cumprod(-1).sum(-1)
    assert len(matching.unique()) > 4, "rows should go wrong in many places"
    assert_same(complete(model, tokens, SUFFIX, SWEEP), expected)


@given(
    family=st.sampled_from(["neox", "neo"]),
    n_blocks=st.integers(1, 4),
    heads=st.sampled_from([1, 2]),
    parallel=st.booleans(),
    window=st.integers(1, 6),
    n=st.integers(1, 4),
    prefix=st.integers(1, 7),
    suffix=st.integers(1, 6),
    scale=st.sampled_from([0.05, 0.5]),
    stop=st.sampled_from([None, 3]),
    seed=st.integers(0, 99),
    data=st.data(),
)
@settings(deadline=None, max_examples=25)
def test_any_shape_is_the_references(
    family, n_blocks, heads, parallel, window, n, prefix, suffix, scale, stop, seed, data
):
    torch.manual_seed(seed)
    common = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 24, "eos_token_id": stop}
    if family == "neox":
        model = GPTNeoXForCausalLM(
            GPTNeoXConfig(
                num_hidden_layers=n_blocks, num_attention_heads=heads,
                use_parallel_residual=parallel, max_position_embeddings=16,
                tie_word_embeddings=bool(seed % 2), **common,
            )
        )  # fmt: skip
    else:
        types = ["local" if (seed >> b) % 2 else "global" for b in range(n_blocks)]
        model = GPTNeoForCausalLM(
            GPTNeoConfig(
                num_layers=n_blocks, num_heads=heads, attention_types=[[types, 1]],
                window_size=window, max_position_embeddings=16, **common,
            )
        )  # fmt: skip
    model.eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=scale if parameter.dim() > 1 else 0.3)
    sets = data.draw(st.lists(st.sets(st.integers(0, n_blocks - 1)), min_size=1, max_size=4))
    interventions = [bypass(f"{i}", tuple(sorted(blocks))) for i, blocks in enumerate(sets)]
    tokens = torch.randint(0, 23, (n, prefix + suffix))
    tokens = torch.cat([tokens, tokens[:1]])  # and a duplicate
    expected = reference.complete(model, tokens, suffix, interventions, 2)
    ours = complete(model, tokens, suffix, interventions, data.draw(st.sampled_from([None, 1, 2])))
    surely = expected.min_margin > NEAR_TIE
    assert torch.equal(ours.continuation[surely], expected.continuation[surely])
    assert torch.equal(ours.continuation[:, 0], ours.continuation[:, -1])
    for name in ("completion_entropy", "suffix_log_prob"):
        torch.testing.assert_close(getattr(ours, name), getattr(expected, name), rtol=0, atol=1e-4)


@pytest.mark.parametrize("budget", [1, 400, 10**9])
def test_no_token_depends_on_the_budget(model, budget):
    tokens = half_remembered(model, 10)
    whole = complete(model, tokens, SUFFIX, SWEEP)
    ours = complete(model, tokens, SUFFIX, SWEEP, token_budget=budget)
    assert torch.equal(ours.continuation, whole.continuation)
    assert torch.equal(ours.teacher_forced, whole.teacher_forced)
    torch.testing.assert_close(ours.completion_entropy, whole.completion_entropy)


def test_running_out_of_memory_halves_the_batch(neox, monkeypatch):
    tokens = half_remembered(neox, 9)
    expected = complete(neox, tokens, SUFFIX, SWEEP)

    def small_memory(decoder, sheet, *rest, **options):
        if len(sheet.tokens) > 3:
            raise torch.OutOfMemoryError("no memory")
        return run(decoder, sheet, *rest, **options)

    run = completion.run
    monkeypatch.setattr(completion, "run", small_memory)
    journal = Journal()
    ours = complete(neox, tokens, SUFFIX, SWEEP, journal=journal)
    assert journal.halvings == [(9, 4), (4, 2)]
    assert torch.equal(ours.continuation, expected.continuation)


def test_a_sample_that_does_not_fit_alone_is_an_error(neox, monkeypatch):
    def no_memory(*_arguments, **_options):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(completion, "run", no_memory)
    journal = Journal()
    with pytest.raises(torch.OutOfMemoryError):
        complete(neox, half_remembered(neox, 4), SUFFIX, SWEEP, journal=journal)
    assert journal.halvings == [(4, 2), (2, 1)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_the_tokens_of_float32(model, dtype):
    coarse = copy.deepcopy(model).to(dtype)
    exact = copy.deepcopy(coarse).float()
    tokens = half_remembered(exact, 10)
    journal = Journal()
    ours = complete(coarse, tokens, SUFFIX, SWEEP, journal=journal)
    expected = complete(exact, tokens, SUFFIX, SWEEP)
    assert torch.equal(ours.continuation, expected.continuation)
    assert torch.equal(ours.teacher_forced, expected.teacher_forced)
    assert journal.recomputed > 0
    assert journal.tolerance > 1e-4
    off = (ours.completion_entropy - expected.completion_entropy).abs()
    assert off.max() < 0.5


@torch.inference_mode()
def test_exact_ties_go_to_the_lowest_id_whatever_the_batch(neox):
    model = copy.deepcopy(neox)
    model.lm_head.weight[31:] = model.lm_head.weight[1:31]  # every token but 0 has a twin
    tokens = torch.randint(1, 31, (7, PREFIX + SUFFIX), generator=torch.Generator().manual_seed(3))
    journal = Journal()
    ours = complete(model, tokens, SUFFIX, SWEEP, journal=journal)
    assert journal.recomputed == len(SWEEP) * len(tokens)
    assert ours.continuation.max() < 31
    assert ours.teacher_forced.max() < 31
    assert ours.min_margin.abs().max() < 1e-6
    for size in (1, 3):
        assert torch.equal(
            complete(model, tokens, SUFFIX, SWEEP, size).continuation, ours.continuation
        )


@torch.inference_mode()
def test_nan_names_the_intervention_the_block_and_the_sample(model):
    model = copy.deepcopy(model)
    body = model.gpt_neox if hasattr(model, "gpt_neox") else model.transformer
    embedding = body.embed_in if hasattr(body, "embed_in") else body.wte
    embedding.weight.data = embedding.weight.data.clone()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())  # untied
    embedding.weight[7] = torch.nan
    tokens = torch.randint(8, VOCABULARY, (5, PREFIX + SUFFIX))
    tokens[3, 2] = 7
    with pytest.raises(InputError, match=r"baseline, sample 3(.|\n)*after block 0"):
        complete(model, tokens, SUFFIX, SWEEP)


@torch.inference_mode()
def test_nan_in_a_late_block_or_in_the_head_is_found(neox):
    tokens = torch.randint(1, VOCABULARY, (3, PREFIX + SUFFIX))
    late = copy.deepcopy(neox)
    late.gpt_neox.layers[3].mlp.dense_4h_to_h.bias[0] = torch.inf
    with pytest.raises(InputError, match="after block 3"):
        complete(late, tokens, SUFFIX, [bypass("block-02", (2,))])
    head = copy.deepcopy(neox)
    head.lm_head.weight[5, 0] = torch.nan
    with pytest.raises(InputError, match="in the head"):
        complete(head, tokens, SUFFIX, [BASELINE])


@torch.inference_mode()
def test_neox_is_the_stock_class_with_weights_whose_softmax_is_the_identity(neox):
    """Queries and keys of one constant: rotation makes the own position win by 60 or more."""
    tokens = half_remembered(neox, 6)
    for block in range(BLOCKS):
        model = copy.deepcopy(neox)
        attention = model.gpt_neox.layers[block].attention
        heads, size = model.config.num_attention_heads, attention.head_size
        distance = torch.arange(1, PREFIX + SUFFIX)[:, None]
        turned = distance * model.gpt_neox.rotary_emb.inv_freq
        gap = (2 * (1 - turned.cos())).sum(-1).min() / size**0.5
        weight = attention.query_key_value.weight.view(heads, 3, size, -1)
        bias = attention.query_key_value.bias.view(heads, 3, size)
        weight[:, :2] = 0
        bias[:, :2] = 0
        bias[:, :2, : attention.rotary_ndims] = (60 / gap) ** 0.5
        stock = reference.complete(model, tokens, SUFFIX, [BASELINE], 6)
        assert_same(complete(neox, tokens, SUFFIX, [bypass("it", (block,))]), stock, 2e-4)


def test_progress_and_bad_calls(neox):
    tokens = torch.randint(1, VOCABULARY, (5, PREFIX + SUFFIX))
    told = []
    complete(neox, tokens, SUFFIX, [BASELINE], 2, lambda *done: told.append(done))
    assert told == [(2, 5), (4, 5), (5, 5)]
    with pytest.raises(ValueError, match="need a token each"):
        complete(neox, tokens, PREFIX + SUFFIX, [BASELINE])
    with pytest.raises(ValueError, match="training mode"):
        complete(copy.deepcopy(neox).train(), tokens, SUFFIX, [BASELINE])
