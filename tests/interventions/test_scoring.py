"""What `score` promises beyond the right numbers: batches, truncation, errors."""

import copy
import math

import pytest
import torch

from pipeline.interventions import score, sweep
from pipeline.interventions.interventions import BASELINE, bypass
from pipeline.interventions.memory import Journal
from pipeline.workflow.errors import InputError
from tests.families import BLOCKS, CONTEXT, END_OF_TEXT, tiny
from tests.interventions.cases import (
    MAX_LENGTH,
    assert_same_scores,
    half_remembered,
    interventions,
    multiple_choice,
    rolling,
    rounding,
)
from tests.oracle import plain

SWEEP = sweep(BLOCKS)
SOME = ["gpt_neox", "gpt_neo", "gemma2", "falcon", "bloom", "mpt", "opt"]


@pytest.mark.parametrize("family", SOME)
def test_batches_change_nothing(family):
    model, requests = tiny(family), [*multiple_choice(), *rolling()]
    options = {"max_length": MAX_LENGTH, "calibration_tokens": half_remembered(model)}
    listed = interventions(family)
    whole = score(model, requests, listed, **options)
    for batches in ({"batch_size": 1}, {"batch_size": 2}, {"batch_size": 7}, {"token_budget": 1}):
        calls = []
        batches["progress"] = lambda *call, calls=calls: calls.append(call)
        ours = score(model, requests, listed, **options, **batches)
        assert_same_scores(ours, whole, rounding(model))
        done, total = zip(*calls, strict=True)
        assert list(done) == sorted(set(done))
        assert set(total) == {done[-1]}


@pytest.mark.parametrize("family", ["llama", *SOME])
@pytest.mark.parametrize(
    ("requests", "listed"),
    [
        ([([4] * 9, [5, 6]), ([4] * 9, [7, 8, 9]), ([5] * 9, [4, 6]), ([5] * 9, [7, 8])], SWEEP),
        (
            [([5, 6, 7], [8, 9]), ([5], [8, 9, 4]), ([5, 6], [8])],
            [BASELINE, bypass("block-01", (1,))],
        ),
    ],
    ids=["contexts of one length", "an intervention before blocks without any"],
)
def test_scores_are_the_plain_loops(family, requests, listed):
    """Also where the configuration has the context length by another name, or none."""
    model = tiny(family)
    expected = plain.score(model, requests, listed, 4, max_length=MAX_LENGTH)
    ours = score(model, requests, listed)
    assert_same_scores(ours, expected, rounding(model))


def test_the_context_is_the_models_own_unless_given():
    model = tiny("llama")
    requests = [([1, 2, *range(4, CONTEXT)], [7, 8, 9, 10, 11])]
    truncated = [(requests[0][0][2:], requests[0][1])]
    ours = score(model, requests, SWEEP)
    assert_same_scores(ours, score(model, truncated, SWEEP), rounding(model))
    lost = [(requests[0][0][3:], requests[0][1])]
    assert not torch.allclose(ours.log_prob, score(model, lost, SWEEP).log_prob)


def test_no_requests():
    ours = score(tiny("llama"), [], SWEEP)
    assert ours.log_prob.shape == ours.is_greedy.shape == (len(SWEEP), 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs(dtype):
    coarse = copy.deepcopy(tiny("gpt_neox")).to(dtype)
    exact = copy.deepcopy(coarse).float()
    ours, expected = (score(each, multiple_choice(), SWEEP) for each in (coarse, exact))
    off = (ours.log_prob - expected.log_prob).abs().max()
    assert off < 2 * rounding(coarse) * 5


def test_requests_that_overflow_in_half_precision_are_done_again_in_single(overflowing):
    requests = [([5, 6, 9, 4], [8, 4]), ([5, 6, 7, 6], [8, 9]), ([5, 6], [9]), ([4, 5, 6, 7], [8])]
    listed = [BASELINE, bypass("block-00", (0,)), bypass("block-02", (2,))]
    journal = Journal()
    ours = score(overflowing, requests, listed, journal=journal)
    assert journal.overflows == 2
    coarse = score(overflowing, requests, listed[::2])
    assert torch.equal(ours.log_prob[::2], coarse.log_prob)
    exact = score(copy.deepcopy(overflowing).float(), requests, listed)
    torch.testing.assert_close(ours.log_prob[1, [1, 3]], exact.log_prob[1, [1, 3]])
    assert torch.equal(ours.is_greedy[1, [1, 3]], exact.is_greedy[1, [1, 3]])


@pytest.mark.parametrize("where", ["context", "continuation", "shared context"])
def test_nan_names_intervention_request_and_block(where):
    model = copy.deepcopy(tiny("llama"))
    model.get_input_embeddings().weight.data[END_OF_TEXT] = math.nan
    bad = {
        "context": [([5, END_OF_TEXT, 6], [7])],
        "continuation": [([5, 6], [END_OF_TEXT, 7])],
        "shared context": [([5] * 8, [7, 8]), ([5] * 8, [8, END_OF_TEXT, 7])],
    }[where]
    requests = [([4, 5], [6]), ([4] * 9, [5, 6]), *bad]
    message = rf"baseline, request {99 + len(requests)}\n[\s\S]*after block 0"
    for batch_size in (None, 1):
        with pytest.raises(InputError, match=message):
            score(model, requests, SWEEP, batch_size, first=100)
