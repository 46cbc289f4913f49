"""The engine's likelihoods against the reference's, and the trees that requests become."""

import copy
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.bypass import reference
from pipeline.bypass.interventions import BASELINE, sweep
from pipeline.bypass.memory import Journal
from pipeline.bypass.scoring import score
from pipeline.bypass.trees import sheet, trees
from pipeline.errors import InputError

SWEEP = sweep(5)


def some_requests(seed, questions=6):
    """Multiple choice with shared beginnings, single continuations, and one longer than fits."""
    rng = random.Random(seed)

    def text(length):
        return [rng.randrange(1, 61) for _ in range(length)]

    requests = []
    for _ in range(questions):
        context, shared = text(rng.randrange(1, 15)), text(2)
        for choice in range(rng.randrange(1, 5)):
            requests.append((context, (shared if choice % 2 else []) + text(rng.randrange(1, 6))))
    requests += [(text(20), text(1)), (text(1), text(30)), (text(50), text(7)), (text(4), text(40))]
    return [*requests, requests[0]]


@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_scores_are_the_references(model, batch_size):
    requests = some_requests(0)
    expected = reference.score(model, requests, SWEEP, 8)
    ours = score(model, requests, SWEEP, batch_size)
    torch.testing.assert_close(ours.log_prob, expected.log_prob, rtol=0, atol=1e-4)
    assert torch.equal(ours.is_greedy, expected.is_greedy)


def test_what_the_model_would_say_is_greedy(model):
    context = [5, 9, 2]
    own = reference.complete(model, torch.tensor([context + [1] * 6]), 6, [BASELINE], 1)
    said = own.continuation[0, 0].tolist()
    requests = [(context, said), (context, said[:3]), (context, [*said[:3], said[3] % 60 + 1])]
    assert score(model, requests, [BASELINE]).is_greedy.tolist() == [[True, True, False]]


@given(seed=st.integers(0, 999), length=st.integers(40, 60))
@settings(deadline=None, max_examples=10)
def test_a_tree_reads_what_its_requests_ask(seed, length):
    requests = some_requests(seed)
    for tree in trees(requests, length, 64):
        for read in tree.reads:
            path, at = [], read.index
            while at >= 0:
                path.append(tree.tokens[at])
                at = tree.parents[at]
            context, continuation = requests[read.request]
            row = ([*context, *continuation])[-(length + 1) :]
            assert path[::-1] == row[: len(path)]
            assert read.target == row[len(path)]
    asked = sum(len(continuation) for _, continuation in requests)
    assert sum(len(tree.reads) for tree in trees(requests, length, 64)) == asked


def test_equal_beginnings_are_read_once():
    (tree,) = trees([([1, 2], [3, 4, 5]), ([1, 2], [3, 4, 6]), ([1, 2], [7, 8])], 20, 64)
    assert tree.tokens == [1, 2, 3, 4, 7]
    made, reads = sheet([tree], torch.device("cpu"))
    assert made.positions.tolist() == [[0, 1, 2, 3, 2]]
    assert made.visible[0, 4].tolist() == [True, True, False, False, True]
    assert reads.shape == (2, 8)


def test_running_out_of_memory_halves_the_batch(neo, monkeypatch):
    from pipeline.bypass import scoring

    requests = some_requests(1)
    expected = score(neo, requests, SWEEP)
    run = scoring.run

    def small_memory(decoder, made, trie):
        if len(made.tokens) > 2:
            raise torch.OutOfMemoryError("no memory")
        return run(decoder, made, trie)

    monkeypatch.setattr(scoring, "run", small_memory)
    journal = Journal()
    ours = score(neo, requests, SWEEP, journal=journal)
    assert journal.halvings
    torch.testing.assert_close(ours.log_prob, expected.log_prob, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_greedy_where_float32_is(model, dtype):
    coarse = copy.deepcopy(model).to(dtype)
    requests = some_requests(2)
    ours, expected = score(coarse, requests, SWEEP), score(coarse.float(), requests, SWEEP)
    assert torch.equal(ours.is_greedy, expected.is_greedy)
    assert (ours.log_prob - expected.log_prob).abs().max() < 2


def test_bad_requests_and_nan_are_refused(neox):
    with pytest.raises(InputError, match=r"request 0(.|\n)*request 1"):
        score(neox, [([], [1]), ([1], [])], [BASELINE])
    broken = copy.deepcopy(neox)
    broken.gpt_neox.layers[2].attention.dense.bias.data[0] = torch.nan
    with pytest.raises(InputError, match=r"baseline, request 0(.|\n)*after block 2"):
        score(broken, [([1, 2], [3])], [BASELINE])
    assert score(neox, [], [BASELINE]).log_prob.shape == (1, 0)


def test_sharing_a_row_is_chosen_where_it_is_less_work():
    long_context = [([1] * 30, [number, 2, 3]) for number in range(4)]
    assert [tree.branching for tree in trees(long_context, 64, 64)] == [True]
    windows = [([0], [number, *range(60)]) for number in range(100, 200)]
    alone = trees(windows, 64, 64)
    assert len(alone) == 100
    assert not any(tree.branching for tree in alone)
    assert sorted(read.request for tree in alone for read in tree.reads[:1]) == list(range(100))
