"""What `complete` promises beyond the right tokens: batches, decoding on demand, errors."""

import copy
import math
import warnings
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import product

import pytest
import torch

from pipeline.interventions import Intervention, bypassed, complete, completion, patch, score, sweep
from pipeline.interventions.interventions import BASELINE, bypass
from pipeline.interventions.memory import Journal
from pipeline.interventions.tokenwise import look
from pipeline.measure.attribution import products
from pipeline.measure.near_verbatim import bounds
from pipeline.models.precision import at_least_single
from pipeline.workflow.errors import InputError
from tests.families import BLOCKS, CONTEXT, END_OF_TEXT, FAMILIES, VOCABULARY, cases, tiny
from tests.interventions.cases import (
    PREFIX,
    SUFFIX,
    assert_same_completions,
    assert_same_scores,
    half_remembered,
    interventions,
    random_tokens,
    right_tokens,
    rounding,
    unchanged,
)
from tests.oracle import plain

SWEEP = sweep(BLOCKS)
SOME = ["gpt_neox", "gpt_neo", "gemma2", "falcon", "bloom", "mixtral"]
some_families = pytest.mark.parametrize("family", SOME)


def assert_equal_tokens(ours, expected):
    assert torch.equal(ours.continuation, expected.continuation)
    assert torch.equal(ours.teacher_forced, expected.teacher_forced)


def changed(family, change):
    """A copy of a family's model, after `change` without gradients."""
    model = copy.deepcopy(tiny(family))
    with torch.no_grad():
        change(model)
    return model


# ------------------------------------------------------------- batches


@some_families
def test_batches_change_no_token(family):
    model, listed = tiny(family), interventions(family)
    tokens = half_remembered(model, 7)
    whole = complete(model, tokens, SUFFIX, listed)
    for options in ({"batch_size": 1}, {"batch_size": 2}, {"batch_size": 7}, {"token_budget": 1}):
        calls, size = [], options.get("batch_size", 1)
        options["progress"] = lambda *call, calls=calls: calls.append(call)
        ours = complete(model, tokens, SUFFIX, listed, **options)
        assert calls == [(min(done, 7), 7) for done in range(size, 7 + size, size)]
        assert_same_completions(ours, whole, rounding(model))


def test_equal_samples_and_equal_interventions_have_equal_results():
    model = tiny("llama")
    tokens = half_remembered(model, 4).repeat(2, 1)
    ours = complete(model, tokens, SUFFIX, [bypass("a", (1,)), BASELINE, bypass("b", (1,))])
    for value in ours.tensors().values():
        assert torch.equal(value[0], value[2])
    assert torch.equal(ours.continuation[:, :4], ours.continuation[:, 4:])


@pytest.mark.parametrize("family", [*SOME, "mistral-window", "gptj", "mpt", "xglm"])
@pytest.mark.parametrize(
    ("prefix", "suffix", "listed"),
    [(1, 1, SWEEP), (1, 5, SWEEP), (7, 1, SWEEP), (9, 6, [BASELINE, bypass("block-01", (1,))])],
)
def test_short_prefixes_and_suffixes_and_no_intervention_on_the_first_block(
    family, prefix, suffix, listed
):
    model, tokens = tiny(family), random_tokens(3, prefix + suffix)
    expected = plain.complete(model, tokens, suffix, listed, 3)
    assert_equal_tokens(complete(model, tokens, suffix, listed), expected)


def test_results_have_their_types_name_their_interventions_and_become_a_frame():
    model = tiny("gpt_neox")
    tokens = half_remembered(model, n := SUFFIX + 1)
    ours = complete(model, tokens, SUFFIX, SWEEP)
    for each in (ours.continuation, ours.teacher_forced):
        assert (each.dtype, each.shape) == (torch.int64, (len(SWEEP), n, SUFFIX))
    for each in (ours.completion_entropy, ours.suffix_log_prob, ours.min_margin.double()):
        assert (each.dtype, each.shape) == (torch.float64, (len(SWEEP), n))
    assert ours.min_margin.dtype == torch.float32
    suffix = tokens[:, -SUFFIX:].tolist()
    listed = ours.continuation.tolist()
    exact = [[row == true for row, true in zip(each, suffix, strict=True)] for each in listed]
    assert ours.exact_match.tolist() == exact
    assert 0 < sum(exact[0]) < n, "some samples are recited, others are not"
    assert list(ours.interventions) == [each.name for each in SWEEP]
    frame = ours.to_polars()
    assert frame.height == n * len(SWEEP)
    row = frame.row(n - 1, named=True)
    assert (row["intervention"], row["sample"]) == ("baseline", n - 1)
    assert row["continuation"] == listed[0][-1]
    assert row["exact_match"] is exact[0][-1] is True
    assert row["suffix_log_prob"] == ours.suffix_log_prob[0, -1].item()
    requests = [([1, 2, 3], [4]), ([1, 2, 3], [5, 6])]
    scored = score(model, requests, SWEEP)
    assert list(scored.interventions) == [each.name for each in SWEEP]
    last = SWEEP[-1].name, 1, scored.log_prob[-1, 1].item(), bool(scored.is_greedy[-1, 1])
    columns = ("intervention", "request", "log_prob", "is_greedy")
    assert scored.to_polars().row(-1, named=True) == dict(zip(columns, last, strict=True))


# ------------------------------------------------------------- decoding on demand


@some_families
def test_without_decoding_all_but_the_rest_is_known(family):
    model = tiny(family)
    tokens = half_remembered(model)
    whole = complete(model, tokens, SUFFIX, SWEEP)
    beyond = torch.arange(SUFFIX) > right_tokens(whole, tokens)[..., None]
    for decode in (False, [True, False, False, True, True, False, False, True]):
        ours = complete(model, tokens, SUFFIX, SWEEP, decode=decode)
        off = ~torch.tensor(decode or [False] * len(tokens))
        left_out = beyond & off[:, None]
        assert left_out.any()
        assert torch.equal(ours.continuation, whole.continuation.masked_fill(left_out, -1))
        for name in ("teacher_forced", "completion_entropy", "suffix_log_prob"):
            torch.testing.assert_close(getattr(ours, name), getattr(whole, name))
        torch.testing.assert_close(ours.min_margin[:, ~off], whole.min_margin[:, ~off])
        assert (ours.min_margin >= whole.min_margin - 1e-4).all()


# ------------------------------------------------------------- end of text


def favouring(token):
    """A model that ranks `token` first everywhere."""

    def change(model):
        head = torch.nn.Linear(model.lm_head.in_features, VOCABULARY)
        head.weight.copy_(model.lm_head.weight)
        head.bias.zero_()[token] = 1e3
        model.set_output_embeddings(head)

    return changed("gpt_neox", change)


@pytest.mark.parametrize("stop", [END_OF_TEXT, [END_OF_TEXT], [END_OF_TEXT, 7, 9]])
def test_end_of_text_cannot_end_a_continuation(stop):
    model = favouring(END_OF_TEXT)
    model.generation_config.eos_token_id = stop
    tokens = half_remembered(tiny("gpt_neox"), 4)
    ours = complete(model, tokens, SUFFIX, SWEEP)
    assert (ours.teacher_forced == END_OF_TEXT).all(), "teacher-forced, it is in the vocabulary"
    listed = [stop] if isinstance(stop, int) else stop
    assert not torch.isin(ours.continuation, torch.tensor(listed)).any()
    assert ours.min_margin.max() < 100, "the margin is among the tokens that may be generated"
    assert_same_completions(
        ours, plain.complete(model, tokens, SUFFIX, SWEEP, 4), rounding(tiny("gpt_neox"))
    )


def test_without_end_of_text_any_token_may_be_generated():
    model = favouring(END_OF_TEXT)
    model.generation_config.eos_token_id = None
    ours = complete(model, half_remembered(tiny("gpt_neox"), 2), SUFFIX, [BASELINE])
    assert (ours.continuation == END_OF_TEXT).all()


@pytest.mark.parametrize("odd", [-1, VOCABULARY, 50_256])
def test_end_of_text_outside_of_the_vocabulary_is_ignored_with_a_warning(odd):
    model = copy.deepcopy(tiny("llama"))
    tokens = half_remembered(model, 4)
    expected = complete(model, tokens, SUFFIX, SWEEP)
    model.generation_config.eos_token_id = [END_OF_TEXT, odd]
    with pytest.warns(UserWarning, match=rf"eos_token_id \[{odd}\].*vocabulary of {VOCABULARY}"):
        assert_equal_tokens(complete(model, tokens, SUFFIX, SWEEP), expected)
    model.generation_config.eos_token_id = END_OF_TEXT
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        complete(model, tokens, SUFFIX, SWEEP)


# ------------------------------------------------------------- not finite


@some_families
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_an_infinite_embedding_is_told_with_sample_and_block(family, poison):
    """In the prefix or in the suffix; no continuation comes across it."""
    model = changed(family, lambda m: m.get_input_embeddings().weight[END_OF_TEXT].fill_(poison))
    for place, batch_size in product((2, -2), (None, 2)):
        tokens = random_tokens(5)
        tokens[3, place] = END_OF_TEXT
        with pytest.raises(InputError, match=r"baseline, sample 103\n[\s\S]*after block 0"):
            complete(model, tokens, SUFFIX, SWEEP, batch_size, first=100)


@pytest.mark.parametrize("place", [*range(BLOCKS), "head"])
def test_the_place_where_nan_begins_is_named(place):
    def change(model):
        at = model.lm_head if place == "head" else plain.parts(model)[place].output
        at.weight[5, 0] = math.nan

    told = f"NaN or infinity in block {place}, in torch.float32"
    if place == "head":
        told = r"block-00, sample 0\n[\s\S]*in the head"
    with pytest.raises(InputError, match=told):
        complete(changed("llama", change), random_tokens(2), SUFFIX, [bypass("block-00", (0,))])


def test_nan_that_decoding_alone_meets_is_told():
    """The model writes a token that no sample has, and what it reads then is not finite."""
    tokens = random_tokens(12, high=30)
    written = complete(tiny("llama"), tokens, SUFFIX, [BASELINE]).continuation[0, :, :-1].tolist()
    first = {}
    for sample, row in enumerate(written):
        for token in row:
            first.setdefault(token, sample)
    sample, token = max((sample, token) for token, sample in first.items() if token >= 30)
    assert sample > 1, "in the second batch or later"
    model = changed("llama", lambda m: m.get_input_embeddings().weight[token].fill_(math.nan))
    for batch_size in (None, 2):
        with pytest.raises(InputError, match=rf"baseline, sample {sample}\n[\s\S]*after block 0"):
            complete(model, tokens, SUFFIX, [BASELINE], batch_size)


def test_what_is_not_finite_in_single_precision_either_is_told(overflowing):
    broken = copy.deepcopy(overflowing)
    plain.parts(broken)[0].output.weight.data[0, 0] = math.inf
    with pytest.raises(InputError, match=r"NaN or infinity.*float32"):
        complete(broken, random_tokens(5, low=8, high=61), SUFFIX, [bypass("block-00", (0,))])


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_rows_that_overflow_in_half_precision_are_done_again_in_single(
    overflowing, batch_size, decode
):
    tokens = random_tokens(5, low=8, high=61)
    tokens[3, 4] = tokens[1, 4] = 7
    listed = [bypass("block-02", (2,)), bypass("block-00", (0,)), BASELINE]
    journal, kept = Journal(), Journal()
    options = {"batch_size": batch_size, "decode": decode}
    with unchanged(overflowing):
        ours = complete(overflowing, tokens, SUFFIX, listed, **options, journal=journal)
    assert journal.overflows == 2
    coarse = complete(overflowing, tokens, SUFFIX, listed[::2], **options)
    exact = copy.deepcopy(overflowing).float()
    expected = complete(exact, tokens, SUFFIX, listed, **options, journal=kept)
    for field, found in ours.tensors().items():
        in_half, in_single = (getattr(x, field) for x in (coarse, expected))
        assert torch.equal(found[::2], in_half), "what is finite stays as it is"
        torch.testing.assert_close(found[1, [1, 3]], in_single[1, [1, 3]])
    assert kept.overflows == 0


def test_a_row_that_overflows_while_it_decodes_is_done_again(overflowing):
    """Token 7 is in no sample, but the model writes it."""
    model = copy.deepcopy(overflowing)
    model.lm_head.weight.data.zero_()
    model.lm_head.weight.data[7, 1] = 1
    model.lm_head.weight.data[8, 1] = -1
    tokens = random_tokens(4, low=8, high=61)
    journal, listed = Journal(), [bypass("block-00", (0,)), BASELINE]
    ours = complete(model, tokens, SUFFIX, listed, journal=journal)
    expected = complete(copy.deepcopy(model).float(), tokens, SUFFIX, listed)
    again = (expected.continuation == 7).any(-1)
    assert journal.overflows > 0
    assert torch.equal(ours.continuation[0][again[0]], expected.continuation[0][again[0]])
    assert ours.min_margin.isfinite().all()


@pytest.mark.parametrize("family", cases(FAMILIES))
def test_every_family_can_be_done_again_in_single(family):
    coarse = copy.deepcopy(tiny(family)).half()
    exact = copy.deepcopy(coarse).float()
    tokens, listed = half_remembered(exact, 4), interventions(family)
    expected = complete(exact, tokens, SUFFIX, listed)
    with at_least_single(coarse):
        ours = complete(coarse, tokens, SUFFIX, listed)
    assert_same_completions(ours, expected, rounding(exact))


# ------------------------------------------------------------- precision


@pytest.mark.parametrize("family", ["gpt_neox", "gpt_neo", "gemma2", "falcon"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs(family, dtype):
    coarse = copy.deepcopy(tiny(family)).to(dtype)
    exact = copy.deepcopy(coarse).float()
    tokens = half_remembered(exact)
    ours = complete(coarse, tokens, SUFFIX, SWEEP)
    expected = complete(exact, tokens, SUFFIX, SWEEP)
    tolerance = rounding(coarse)
    off = (ours.suffix_log_prob - expected.suffix_log_prob).abs()
    assert off.max() < 2 * tolerance * SUFFIX
    sure = expected.min_margin > 2 * tolerance
    assert torch.equal(ours.continuation[sure], expected.continuation[sure])
    assert (ours.teacher_forced == expected.teacher_forced).float().mean() > 0.8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("decode", [True, False])
def test_near_ties_of_half_precision_are_decided_in_single(dtype, decode, monkeypatch):
    """In half precision nearly every row has one; in float32 hardly any has."""
    coarse, alone = copy.deepcopy(tiny("gpt_neox")).to(dtype), []

    class Counted(completion.Alone):
        def __init__(self, *row):
            alone.append(row)
            super().__init__(*row)

    monkeypatch.setattr(completion, "Alone", Counted)
    exact, journal = copy.deepcopy(coarse).float(), Journal()
    tokens = half_remembered(exact, 6)
    ours = complete(coarse, tokens, SUFFIX, SWEEP, decode=decode, journal=journal)
    unsure = ours.min_margin <= journal.tolerance
    assert unsure.sum() > 10
    assert len(alone) < 0.2 * unsure.sum()
    expected = complete(exact, tokens, SUFFIX, SWEEP, decode=decode)
    assert torch.equal(ours.continuation[unsure], expected.continuation[unsure])
    by_one = complete(coarse, tokens, SUFFIX, SWEEP, 1, decode=decode)
    assert_equal_tokens(ours, by_one)


def test_double_precision_agrees_with_single():
    model = tiny("gpt_neox")
    tokens = half_remembered(model)
    precise = complete(copy.deepcopy(model).double(), tokens, SUFFIX, SWEEP)
    assert_same_completions(complete(model, tokens, SUFFIX, SWEEP), precise, rounding(model))


# ------------------------------------------------------------- the limits of what is taken


def test_rows_that_fill_the_context_and_32_bits_are_taken_and_a_mean_is_over_the_context():
    tokens = random_tokens(2, CONTEXT + 1).int()
    mean = [Intervention("one", {1: "mean"})]
    filled, inside = (
        complete(tiny("gpt2"), tokens, 4, mean, calibration_tokens=calibration)
        for calibration in (None, tokens[:, :-1])
    )
    assert torch.equal(filled.entropy, inside.entropy)


def test_threads_that_share_a_model_wait_for_each_other():
    model = copy.deepcopy(tiny("gpt_neox"))
    tokens, asked = random_tokens(2), [([5, 6], [7])]
    alone = complete(tiny("gpt_neox"), tokens, SUFFIX, SWEEP)
    with ThreadPoolExecutor(4) as threads:
        made = [threads.submit(complete, model, tokens, SUFFIX, SWEEP) for _ in range(6)]
        scored = threads.submit(score, model=model, requests=asked, interventions=SWEEP)
    assert all(torch.equal(one.result().continuation, alone.continuation) for one in made)
    assert scored.result().log_prob.shape == (len(SWEEP), 1)


def test_threads_wait_for_a_model_that_a_patch_reads():
    """And bounds for the model itself."""
    model, twin = (copy.deepcopy(tiny("llama")) for _ in range(2))
    twin.model.layers[1].self_attn.o_proj.weight.data.neg_()
    tokens = random_tokens(2)
    patched = [Intervention("patched", {1: patch(twin)})]
    works = (
        (twin, lambda: complete(model, tokens, SUFFIX, patched).suffix_log_prob),
        (model, lambda: bounds(model, tokens, SUFFIX, 0, 1).lower),
    )
    for edited, work in works:
        expected = work()
        with ThreadPoolExecutor(1) as thread:
            with bypassed(edited, range(BLOCKS)):
                made = thread.submit(work)
                wait([made], timeout=1)
                assert not made.done()
            assert torch.equal(made.result(), expected)


def test_a_source_that_overflows_is_done_again_with_the_rest():
    """The model that a patch reads overflows in half precision; the edited one does not."""

    def enlarge(model):
        for weight in model.model.layers[0].mlp.parameters():
            weight.mul_(300)

    model, twin = copy.deepcopy(tiny("llama")).half(), changed("llama", enlarge).half()
    tokens, journal = random_tokens(3), Journal()
    ours, expected = (
        complete(edited, tokens, SUFFIX, [Intervention("patched", {1: patch(read)})], journal=log)
        for edited, read, log in (
            (model, twin, journal),
            (copy.deepcopy(model).float(), copy.deepcopy(twin).float(), None),
        )
    )
    assert journal.overflows == len(tokens)
    torch.testing.assert_close(ours.log_prob, expected.log_prob, rtol=0, atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt_neo", "gpt2"])
def test_texts_of_end_of_text_alone_are_evaluated(family):
    """Also where its embedding is zero, as that of a padding token is in a fresh model."""
    model = changed(family, lambda model: model.get_input_embeddings().weight[END_OF_TEXT].zero_())
    tokens = torch.full((2, PREFIX + SUFFIX), END_OF_TEXT)
    every = interventions(family)
    ours = complete(model, tokens, SUFFIX, every)
    expected = plain.complete(model, tokens, SUFFIX, every, len(tokens))
    assert_same_completions(ours, expected, rounding(model))
    requests = [([END_OF_TEXT], [END_OF_TEXT]), ([END_OF_TEXT] * 3, [END_OF_TEXT] * 4)]
    scores = score(model, requests, SWEEP, max_length=16)
    expected = plain.score(model, requests, SWEEP, 2, max_length=16)
    assert_same_scores(scores, expected, rounding(model))
    seen = look(model, tokens, SUFFIX, every)
    assert seen.log_prob.isfinite().all()
    assert products(model, tokens, SUFFIX).isfinite().all()
