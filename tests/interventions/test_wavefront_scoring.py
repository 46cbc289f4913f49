"""The engine's likelihoods against the reference's, and the trees that requests become."""

import copy
import math
import random

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pipeline.interventions import reference, scoring
from pipeline.interventions.completion import complete
from pipeline.interventions.interventions import BASELINE, bypass, sweep
from pipeline.interventions.memory import Journal
from pipeline.interventions.scoring import score
from pipeline.interventions.trees import sheet, trees
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


def assert_same(ours, expected):
    torch.testing.assert_close(ours.log_prob, expected.log_prob, rtol=0, atol=1e-4)
    assert torch.equal(ours.is_greedy, expected.is_greedy)


@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_scores_are_the_references(model, batch_size):
    requests = some_requests(0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ours = score(model, requests, SWEEP, batch_size)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert_same(ours, reference.score(model, requests, SWEEP, 8))


def test_scores_of_a_trained_model_are_the_references(trained, memorized):
    requests = [(row[:9], row[9:]) for row in memorized.tolist()]
    requests += [(row[:9], row[9:11]) for row in memorized.tolist()] + some_requests(3)
    expected = reference.score(trained, requests, SWEEP, 8)
    assert expected.is_greedy[0, :16].all(), "it knows its rows by heart"
    assert not expected.is_greedy[1:, :16].all(), "and not under every intervention"
    assert_same(score(trained, requests, SWEEP), expected)


@pytest.mark.usefixtures("another_way")
def test_another_way_through_the_same_sums(model):
    requests = some_requests(4)
    assert_same(score(model, requests, SWEEP), reference.score(model, requests, SWEEP, 8))


@given(
    data=st.data(),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float16, torch.bfloat16]),
    questions=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4),
    max_length=st.sampled_from([None, 6]),
    batch_size=st.sampled_from([None, 1, 2]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=25)
def test_any_requests_are_the_references(
    odd_cases, data, dtype, questions, max_length, batch_size, seed
):
    """`questions` are lengths of choices; the first two are what the model would say."""
    model, interventions = data.draw(odd_cases)
    model = model.to(dtype)
    exact = copy.deepcopy(model).float()
    rng, requests = random.Random(seed), []
    for lengths in questions:
        context = rng.choices(range(23), k=rng.randint(1, 11))
        row = torch.tensor([context + [1] * 5])
        said = [
            reference.complete(each, row, 5, interventions[:1], 1).continuation[0, 0].tolist()
            for each in (exact, model)
        ]
        for choice, length in enumerate(lengths):
            right = length if choice < 2 else rng.randrange(length)
            wrong = rng.choices(range(23), k=length - right)
            requests.append((context, said[choice % 2][:right] + wrong))
    requests.append(requests[0])  # and a duplicate
    ours = score(model, requests, interventions, batch_size, max_length=max_length)
    expected = reference.score(exact, requests, interventions, 2, max_length=max_length)
    assert torch.equal(ours.is_greedy, expected.is_greedy)
    off = float((ours.log_prob - expected.log_prob).abs().max())
    if dtype == torch.float32:
        assert off < 1e-4
    event(f"{dtype}: log-likelihoods are off by less than 1e{math.ceil(math.log10(off + 1e-9))}")


def test_what_the_model_would_say_is_greedy(model):
    context = [5, 9, 2]
    own = reference.complete(model, torch.tensor([context + [1] * 6]), 6, [BASELINE], 1)
    said = own.continuation[0, 0].tolist()
    requests = [(context, said), (context, said[:3]), (context, [*said[:3], said[3] % 60 + 1])]
    journal = Journal()
    ours = score(model, requests, [BASELINE], journal=journal)
    assert ours.is_greedy.tolist() == [[True, True, False]]
    assert journal.recomputed == 0, "nothing is close enough to need it"


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


@pytest.fixture
def passes(monkeypatch):
    """How many tokens, counted once a branch, and how many rows went through each pass."""
    seen = []

    def run(decoder, made, trie):
        seen.append((made.tokens.numel() * trie.branches, len(made.tokens)))
        return original(decoder, made, trie)

    original = scoring.run
    monkeypatch.setattr(scoring, "run", run)
    return seen


@pytest.mark.parametrize(
    ("budget", "batch_size"), [(1, None), (500, None), (10**9, None), (500, 2)]
)
def test_nothing_depends_on_the_budget(model, passes, budget, batch_size):
    requests = some_requests(5, questions=12)
    whole = score(model, requests, SWEEP)
    passes.clear()
    ours = score(model, requests, SWEEP, batch_size, token_budget=budget)
    assert_same(ours, whole)
    assert all(size <= budget or rows == 1 for size, rows in passes)
    rows = [rows for _, rows in passes]
    largest = {1: 1, 500: 5, 10**9: len(requests)}[budget]
    assert max(rows) <= min(largest, batch_size or largest)
    assert max(rows) > 1 or budget == 1
    if budget == 10**9:
        assert len(rows) <= 2, "those that branch and those that do not"


@pytest.mark.parametrize("where", ["run", "read"])
def test_running_out_of_memory_halves_the_batch(neo, passes, monkeypatch, where):
    requests = some_requests(1)
    expected = score(neo, requests, SWEEP)
    original = getattr(scoring, where)

    def small_memory(*arguments):
        made = original(*arguments)
        if passes[-1][1] > 2:
            raise torch.OutOfMemoryError("no memory")
        return made

    passes.clear()
    monkeypatch.setattr(scoring, where, small_memory)
    journal = Journal()
    assert_same(score(neo, requests, SWEEP, journal=journal), expected)
    failed = [rows for _, rows in passes if rows > 2]
    assert failed
    assert journal.halvings == [(rows, rows // 2) for rows in failed]


def test_near_ties_are_the_same_in_any_batch_and_with_any_threads(nearly_tied, threads):
    """What the model would say is greedy, and with the twins in place of its tokens it is not."""
    interventions = sweep(3)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 128, (7, 17), generator=generator)
    precise = copy.deepcopy(nearly_tied).double()
    said = complete(precise, tokens, 8, interventions).continuation.flatten(0, 1)
    contexts = tokens[:, :9].repeat(len(interventions), 1)
    is_twin = ((said - 1) % 64 < 8) & (said > 0)
    twins = said.where(~is_twin, (said + 64) % 128)
    requests = list(zip(contexts.tolist(), said.tolist(), strict=True))
    requests += zip(contexts.tolist(), twins.tolist(), strict=True)
    expected = score(precise, requests, interventions)
    for v in range(len(interventions)):
        own = torch.arange(7 * v, 7 * v + 7)
        assert expected.is_greedy[v, own].all()
        assert torch.equal(expected.is_greedy[v, own + len(said)], ~is_twin[own].any(-1))
    journals = []
    for batch_size, n_threads in [(None, 1), (1, 1), (3, 1), (None, 2)]:
        journals.append(Journal())
        with threads(n_threads):
            ours = score(nearly_tied, requests, interventions, batch_size, journal=journals[-1])
        assert torch.equal(ours.is_greedy, expected.is_greedy)
    assert len({journal.recomputed for journal in journals}) == 1
    assert 0 < journals[0].recomputed < expected.is_greedy.numel()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_greedy_where_float32_is(model, dtype, record_property):
    """Asked about what either would say: where they differ, half precision alone is wrong."""
    coarse = copy.deepcopy(model).to(dtype)
    exact = copy.deepcopy(coarse).float()
    tokens = torch.randint(1, 61, (10, 17), generator=torch.Generator().manual_seed(7))
    interventions = SWEEP[:3]
    contexts = tokens[:, :9].repeat(len(interventions), 1).tolist()
    requests = some_requests(2)
    for each in (exact, coarse):
        said = reference.complete(each, tokens, 8, interventions, 10).continuation.flatten(0, 1)
        requests += zip(contexts, said.tolist(), strict=True)
    journal = Journal()
    ours = score(coarse, requests, interventions, journal=journal)
    expected = score(exact, requests, interventions)
    assert torch.equal(ours.is_greedy, expected.is_greedy)
    assert journal.recomputed > 0
    off = float((ours.log_prob - expected.log_prob).abs().max())
    record_property("largest difference of log_prob", off)
    assert off < 2


def test_bad_requests_and_nan_are_refused(neox):
    with pytest.raises(InputError, match=r"request 0(.|\n)*request 1"):
        score(neox, [([], [1]), ([1], [])], [BASELINE])
    broken = copy.deepcopy(neox)
    broken.gpt_neox.layers[2].attention.dense.bias.data[0] = torch.nan
    with pytest.raises(InputError, match=r"baseline, request 0(.|\n)*after block 2"):
        score(broken, [([1, 2], [3])], [bypass("late", (3,)), BASELINE])
    assert score(neox, [], [BASELINE]).log_prob.shape == (1, 0)


@pytest.mark.parametrize("batch_size", [None, 1])
def test_an_overflow_under_one_intervention_is_named_after_it(overflowing, batch_size):
    requests = [([1, 2, 3], [4]), ([1, 2, 3], [5, 6]), ([9] * 8, [1]), ([5, 6, 8, 7, 9], [3])]
    others = [bypass("block-02", (2,)), BASELINE]
    assert score(overflowing, requests, others, batch_size).log_prob.isfinite().all()
    with pytest.raises(InputError, match=r"block-00, request 3\n(.|\n)*after block 0, in.*float16"):
        score(overflowing, requests, [*others, bypass("block-00", (0,))], batch_size)


def test_sharing_a_row_is_chosen_where_it_is_less_work():
    long_context = [([1] * 30, [number, 2, 3]) for number in range(4)]
    assert [tree.branching for tree in trees(long_context, 64, 64)] == [True]
    windows = [([0], [number, *range(60)]) for number in range(100, 200)]
    alone = trees(windows, 64, 64)
    assert len(alone) == 100
    assert not any(tree.branching for tree in alone)
    assert sorted(read.request for tree in alone for read in tree.reads[:1]) == list(range(100))
