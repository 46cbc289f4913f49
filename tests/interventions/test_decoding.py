"""The engine's completions against the reference's, token for token."""

import copy
import math

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pipeline.interventions import completion, reference
from pipeline.interventions.completion import complete
from pipeline.interventions.interventions import BASELINE, bypass, sweep
from pipeline.interventions.memory import Journal
from pipeline.errors import InputError

PREFIX, SUFFIX, BLOCKS, VOCABULARY = 9, 8, 5, 61
NEAR_TIE = 1e-4  # where the reference, in float32, cannot be trusted to choose right
SWEEP = sweep(BLOCKS)
APART = [bypass(f"{blocks}", blocks) for blocks in [(4,), (0, 4), (1,), (2, 4), (2,), (0, 3)]]
"""Without a baseline: in block 4 two of the first branches attend to nothing, and later ones do."""


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


@torch.inference_mode()
def oracle(model, tokens, suffix, interventions):
    """The reference's completions, and its margin at every teacher-forced choice (V, N, S)."""
    margins = []
    for intervention in interventions:
        with reference.bypassed(model, intervention):
            logits = model(tokens[:, :-1], use_cache=False).logits[:, -suffix:]
        best, second = logits.topk(2).values.unbind(-1)
        margins.append(best - second)
    completions = reference.complete(model, tokens, suffix, interventions, len(tokens))
    return completions, torch.stack(margins)


def assert_same_tokens(ours, expected, forced_margin):
    surely = expected.min_margin > NEAR_TIE
    assert torch.equal(ours.continuation[surely], expected.continuation[surely])
    surely = forced_margin > NEAR_TIE
    assert torch.equal(ours.teacher_forced[surely], expected.teacher_forced[surely])


def assert_same(ours, expected, forced_margin):
    assert_same_tokens(ours, expected, forced_margin)
    for name in ("completion_entropy", "suffix_log_prob", "min_margin"):
        torch.testing.assert_close(getattr(ours, name), getattr(expected, name), rtol=0, atol=1e-4)


def right_tokens(completions, tokens):
    """Before the first wrong one, (V, N)."""
    suffix = tokens[:, -completions.continuation.shape[-1] :]
    return (completions.continuation == suffix).long().cumprod(-1).sum(-1)


@pytest.mark.parametrize("interventions", [SWEEP, APART], ids=["sweep", "apart"])
def test_many_interventions_are_the_references(model, interventions):
    tokens = half_remembered(model, 12)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ours = complete(model, tokens, SUFFIX, interventions)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    expected, forced_margin = oracle(model, tokens, SUFFIX, interventions)
    assert len(right_tokens(expected, tokens).unique()) > 3, "rows should go wrong in many places"
    assert (expected.min_margin > NEAR_TIE).float().mean() > 0.9
    assert_same(ours, expected, forced_margin)


def test_a_sweep_of_a_trained_model_is_the_references(trained, memorized):
    generator = torch.Generator().manual_seed(0)
    unseen = torch.randint(1, VOCABULARY, (3, PREFIX + SUFFIX), generator=generator)
    tokens = torch.cat([memorized, unseen, memorized[:2]])
    expected, forced_margin = oracle(trained, tokens, SUFFIX, SWEEP)
    right = right_tokens(expected, tokens)
    assert (right[0] == SUFFIX).sum() >= 8, "it should know most of its rows by heart"
    assert (right[1:, :8] < SUFFIX).sum() > 8, "and not under every intervention"
    assert_same(complete(trained, tokens, SUFFIX, SWEEP), expected, forced_margin)


@pytest.mark.usefixtures("another_way")
def test_another_way_through_the_same_sums(model):
    tokens = half_remembered(model, 7, seed=1)
    expected = oracle(model, tokens, SUFFIX, SWEEP)
    assert_same(complete(model, tokens, SUFFIX, SWEEP), *expected)


@given(
    data=st.data(),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float16, torch.bfloat16]),
    n=st.integers(1, 4),
    prefix=st.integers(1, 9),
    suffix=st.integers(1, 7),
    batch_size=st.sampled_from([None, 1, 2]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=40)
def test_any_shape_is_the_references(odd_cases, data, dtype, n, prefix, suffix, batch_size, seed):
    model, interventions = data.draw(odd_cases)
    model = model.to(dtype)
    exact = copy.deepcopy(model).float()
    tokens = half_remembered(exact, n, prefix, suffix, seed)
    tokens = torch.cat([tokens, tokens[:1]])  # and a duplicate
    ours = complete(model, tokens, suffix, interventions, batch_size)
    expected = oracle(exact, tokens, suffix, interventions)
    assert torch.equal(ours.continuation[:, 0], ours.continuation[:, -1])
    assert torch.equal(ours.teacher_forced[:, 0], ours.teacher_forced[:, -1])
    if dtype == torch.float32:
        assert_same(ours, *expected)
        return
    assert_same_tokens(ours, *expected)
    off = largest_difference(ours, expected[0], "completion_entropy")
    event(f"{dtype}: entropy is off by less than 1e{math.ceil(math.log10(off + 1e-9))} nats")


@pytest.fixture
def passes(monkeypatch):
    """How many tokens, counted once a branch, and how many samples went through each pass."""
    seen = []

    def run(decoder, sheet, trie, **options):
        seen.append((sheet.tokens.numel() * trie.branches, len(sheet.tokens)))
        return original(decoder, sheet, trie, **options)

    original = completion.run
    monkeypatch.setattr(completion, "run", run)
    return seen


@pytest.mark.parametrize(
    ("budget", "batch_size", "batches"),
    [
        (1, None, [1] * 10),  # a single sample is more, but less cannot be done
        (400, None, [3, 3, 3, 1]),
        (10**9, None, [10]),
        (10**9, 4, [4, 4, 2]),
        (400, 2, [2] * 5),
    ],
)
def test_no_token_depends_on_the_budget(model, passes, budget, batch_size, batches):
    tokens = half_remembered(model, 10)
    whole = complete(model, tokens, SUFFIX, SWEEP)
    passes.clear()
    ours = complete(model, tokens, SUFFIX, SWEEP, batch_size, token_budget=budget)
    assert [samples for _, samples in passes][: len(batches)] == batches
    assert all(size <= budget or samples == 1 for size, samples in passes)
    assert torch.equal(ours.continuation, whole.continuation)
    assert torch.equal(ours.teacher_forced, whole.teacher_forced)
    for name in ("completion_entropy", "suffix_log_prob", "min_margin"):
        torch.testing.assert_close(getattr(ours, name), getattr(whole, name), rtol=0, atol=1e-4)


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("no memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["gpu", "cpu"])
@pytest.mark.parametrize("where", ["run", "read", "decode"])
def test_running_out_of_memory_halves_the_batch(neox, passes, monkeypatch, where, error):
    tokens = half_remembered(neox, 9)
    expected = complete(neox, tokens, SUFFIX, SWEEP)
    original = getattr(completion, where)

    def small_memory(*arguments, **options):
        made = original(*arguments, **options)
        if passes[-1][1] > 3:
            raise error
        return made

    passes.clear()
    monkeypatch.setattr(completion, where, small_memory)
    journal = Journal()
    done = []
    ours = complete(
        neox, tokens, SUFFIX, SWEEP, progress=lambda *call: done.append(call), journal=journal
    )
    assert journal.halvings == [(9, 4), (4, 2)]
    assert [samples for _, samples in passes][:7] == [9, 4, 2, 2, 2, 2, 1]
    assert done == [(2, 9), (4, 9), (6, 9), (8, 9), (9, 9)]
    assert torch.equal(ours.continuation, expected.continuation)
    assert torch.equal(ours.teacher_forced, expected.teacher_forced)
    torch.testing.assert_close(ours.completion_entropy, expected.completion_entropy)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["gpu", "cpu"])
def test_a_sample_that_does_not_fit_alone_is_an_error(neox, monkeypatch, error):
    def no_memory(*_arguments, **_options):
        raise error

    monkeypatch.setattr(completion, "run", no_memory)
    journal = Journal()
    with pytest.raises(type(error), match=str(error)[:9]):
        complete(neox, half_remembered(neox, 4), SUFFIX, SWEEP, journal=journal)
    assert journal.halvings == [(4, 2), (2, 1)]


def test_another_error_is_not_taken_for_memory(neox, monkeypatch):
    def broken(*_arguments, **_options):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(completion, "run", broken)
    journal = Journal()
    with pytest.raises(RuntimeError, match="shapes do not match"):
        complete(neox, half_remembered(neox, 4), SUFFIX, SWEEP, journal=journal)
    assert journal.halvings == []


def largest_difference(ours, expected, name):
    return float((getattr(ours, name) - getattr(expected, name)).abs().max())


def assert_half_decides_as_float32(model, tokens, dtype, record_property):
    coarse = copy.deepcopy(model).to(dtype)
    exact = copy.deepcopy(coarse).float()
    journal = Journal()
    ours = complete(coarse, tokens, SUFFIX, SWEEP, journal=journal)
    expected = complete(exact, tokens, SUFFIX, SWEEP)
    assert torch.equal(ours.continuation, expected.continuation)
    assert torch.equal(ours.teacher_forced, expected.teacher_forced)
    assert_same_tokens(ours, *oracle(exact, tokens, SUFFIX, SWEEP))
    assert journal.recomputed > 0
    assert journal.tolerance > 1e-4
    off = {
        name: largest_difference(ours, expected, name)
        for name in ("completion_entropy", "suffix_log_prob", "min_margin")
    }
    for name, value in off.items():
        record_property(f"largest difference of {name}", value)
    return off


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_the_tokens_of_float32(model, dtype, record_property):
    tokens = half_remembered(model, 10)
    off = assert_half_decides_as_float32(model, tokens, dtype, record_property)
    assert off["completion_entropy"] < 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_of_a_trained_model(trained, memorized, dtype, record_property):
    assert_half_decides_as_float32(trained, memorized, dtype, record_property)


def test_near_ties_are_the_same_in_any_batch_and_with_any_threads(nearly_tied, threads):
    interventions = sweep(3)
    tokens = torch.randint(1, 128, (7, PREFIX + SUFFIX), generator=torch.Generator().manual_seed(0))
    precise = copy.deepcopy(nearly_tied).double()
    expected = complete(precise, tokens, SUFFIX, interventions)
    journals = []
    for batch_size, n_threads in [(None, 1), (1, 1), (3, 1), (None, 2)]:
        journals.append(Journal())
        with threads(n_threads):
            ours = complete(
                nearly_tied, tokens, SUFFIX, interventions, batch_size, journal=journals[-1]
            )
        assert torch.equal(ours.continuation, expected.continuation)
        assert torch.equal(ours.teacher_forced, expected.teacher_forced)
        torch.testing.assert_close(ours.min_margin, expected.min_margin, rtol=0, atol=1e-5)
        tied = expected.min_margin < 5e-7  # below what float32 can tell
        assert tied.any()
        torch.testing.assert_close(
            ours.min_margin[tied], expected.min_margin[tied], rtol=1e-4, atol=0
        )
    recomputed = {journal.recomputed for journal in journals}
    assert len(recomputed) == 1
    assert 0 < recomputed.pop() < len(interventions) * len(tokens), "some are near ties, not all"


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
def test_in_float64_the_lowest_id_wins_within_rounding(neox):
    model = copy.deepcopy(neox).double()
    model.lm_head.weight[31:] = model.lm_head.weight[1:31] * (1 + 1e-13)
    tokens = torch.randint(1, 31, (4, PREFIX + SUFFIX), generator=torch.Generator().manual_seed(3))
    ours = complete(model, tokens, SUFFIX, SWEEP)
    assert ours.continuation.max() < 31
    assert ours.teacher_forced.max() < 31


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("place", [2, -2], ids=["prefix", "suffix"])
def test_nan_names_the_intervention_the_block_and_the_sample(model, poison, batch_size, place):
    model = copy.deepcopy(model)
    embedding = torch.nn.Embedding.from_pretrained(model.get_input_embeddings().weight.clone())
    embedding.weight[0] = poison  # end-of-text: no continuation comes across it by itself
    model.set_input_embeddings(embedding)  # the head, if it was tied, is not any more
    tokens = torch.randint(1, VOCABULARY, (5, PREFIX + SUFFIX))
    tokens[3, place] = 0
    # the baseline's branch is the first wherever it stands in the list
    with pytest.raises(InputError, match=r"baseline, sample 3\n(.|\n)*after block 0"):
        complete(model, tokens, SUFFIX, [bypass("late", (3,)), BASELINE], batch_size)


def test_an_overflow_under_one_intervention_is_named_after_it(overflowing):
    tokens = torch.randint(8, VOCABULARY, (5, PREFIX + SUFFIX))
    tokens[3, 4] = 7
    others = [bypass("block-02", (2,)), BASELINE]
    assert complete(overflowing, tokens, SUFFIX, others).completion_entropy.isfinite().all()
    with pytest.raises(InputError, match=r"block-00, sample 3\n(.|\n)*after block 0, in.*float16"):
        complete(overflowing, tokens, SUFFIX, [*others, bypass("block-00", (0,))])


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("batch_size", [None, 2])
@torch.inference_mode()
def test_nan_that_only_decoding_meets_is_found(neox, poison, batch_size):
    """The model writes a token that no sample has, and what it reads then is not finite."""
    tokens = torch.randint(1, 31, (12, PREFIX + SUFFIX), generator=torch.Generator().manual_seed(0))
    written = complete(neox, tokens, SUFFIX, [BASELINE]).continuation[0, :, : SUFFIX - 1].tolist()
    first = {}  # sample that writes the token
    for sample, row in enumerate(written):
        for token in row:
            first.setdefault(token, sample)
    sample, token = max((sample, token) for token, sample in first.items() if token > 30)
    assert sample > 1, "a sample of the second batch or later"
    broken = copy.deepcopy(neox)
    broken.gpt_neox.embed_in.weight[token] = poison
    with pytest.raises(InputError, match=rf"baseline, sample {sample}\n(.|\n)*after block 0"):
        complete(broken, tokens, SUFFIX, [BASELINE], batch_size)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_infinite_logit_that_only_decoding_meets_is_found(neox, sign):
    """The model always writes token 7, which no sample has; after it a logit overflows."""
    model = copy.deepcopy(neox).half()
    body, head = model.gpt_neox, model.lm_head.weight.data
    for block in body.layers:  # the last two dimensions belong to the embedding alone
        for output in (block.attention.dense, block.mlp.dense_4h_to_h):
            output.weight.data[-2:] = 0
            output.bias.data[-2:] = 0
    body.embed_in.weight.data[:, -2:] = 0
    body.embed_in.weight.data[7, -1] = 40
    body.final_layer_norm.weight.data[-2:] = torch.tensor([0.0, 1.0])
    body.final_layer_norm.bias.data[-2:] = torch.tensor([10.0, -sign])
    head[:, -2:] = 0
    head[7, -2] = 100
    head[60] = 0
    head[60, -1] = sign * 30_000
    tokens = torch.randint(8, VOCABULARY, (3, PREFIX + SUFFIX))
    with pytest.raises(InputError, match="sample 0"):
        reference.complete(model, tokens, SUFFIX, [BASELINE], 3)
    with pytest.raises(InputError, match=r"baseline, sample 0\n(.|\n)*in the head, in.*float16"):
        complete(model, tokens, SUFFIX, [BASELINE])


@torch.inference_mode()
def test_nan_in_a_late_block_or_in_the_head_is_found(neox):
    tokens = torch.randint(1, VOCABULARY, (3, PREFIX + SUFFIX))
    late = copy.deepcopy(neox)
    late.gpt_neox.layers[3].mlp.dense_4h_to_h.bias[0] = torch.inf
    with pytest.raises(InputError, match=r"block-02, sample 0\n(.|\n)*after block 3"):
        complete(late, tokens, SUFFIX, [bypass("block-02", (2,))])
    head = copy.deepcopy(neox)
    head.lm_head.weight[5, 0] = torch.nan
    with pytest.raises(InputError, match="in the head"):
        complete(head, tokens, SUFFIX, [BASELINE])


@pytest.mark.parametrize("intervention", SWEEP[1:], ids=lambda each: each.name)
def test_neox_is_the_stock_class_with_weights_whose_softmax_is_the_identity(
    neox, with_identity_softmax, intervention
):
    tokens = half_remembered(neox, 6)
    stock = with_identity_softmax(neox, intervention.blocks)
    expected = oracle(stock, tokens, SUFFIX, [BASELINE])
    assert_same(complete(neox, tokens, SUFFIX, [intervention]), *expected)


def test_progress_and_bad_calls(neox):
    tokens = torch.randint(1, VOCABULARY, (5, PREFIX + SUFFIX))
    told = []
    complete(neox, tokens, SUFFIX, [BASELINE], 2, lambda *done: told.append(done))
    assert told == [(2, 5), (4, 5), (5, 5)]
    with pytest.raises(ValueError, match="need a token each"):
        complete(neox, tokens, PREFIX + SUFFIX, [BASELINE])
    with pytest.raises(ValueError, match="training mode"):
        complete(copy.deepcopy(neox).train(), tokens, SUFFIX, [BASELINE])
