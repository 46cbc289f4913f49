"""Batches under a budget, and what happens when memory runs out."""

import copy
import multiprocessing
import types
from pathlib import Path
from unittest import mock

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from pipeline.interventions import (
    complete,
    completion,
    decoding,
    memory,
    near_ties,
    score,
    scoring,
    sweep,
    tokenwise,
    wavefront,
)
from pipeline.interventions.memory import Journal, in_batches, token_budget
from pipeline.interventions.trie import build_trie
from pipeline.models.sites import Values, anatomy
from tests.families import BLOCKS, CONTEXT, tiny
from tests.interventions.cases import SUFFIX, half_remembered, multiple_choice, rolling, rounding
from tests.performance.bench import high_water

SWEEP = sweep(BLOCKS)


def batches(costs, budget, largest=None, fits=None, error=None):
    """The sizes of batches that were worked on, and the journal."""
    journal = Journal()

    def work(numbers):
        if fits is not None and len(numbers) > fits:
            raise error
        return list(numbers)

    made = in_batches(costs, budget, largest, work, journal)
    assert [number for each in made for number in each] == list(range(len(costs)))
    return [len(each) for each in made], journal


@given(
    st.lists(st.integers(1, 50), max_size=30),
    st.integers(1, 200),
    st.none() | st.integers(1, 9),
)
def test_a_batch_stays_within_the_budget_or_is_a_single_item(costs, budget, largest):
    sizes, journal = batches(costs, budget, largest)
    start = 0
    for size in sizes:
        assert size == 1 or size * max(costs[start : start + size]) <= budget
        assert largest is None or size <= largest
        start += size
        if start < len(costs) and (largest is None or size < largest):
            assert (size + 1) * max(costs[start - size : start + 1]) > budget, "as many as fit"
    assert journal.halvings == []


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        MemoryError("no memory"),
    ],
    ids=["gpu", "cpu", "cuda", "cublas", "cudnn", "python"],
)
def test_running_out_of_memory_halves_the_batch_and_all_after_it_down_to_one_item(error):
    sizes, journal = batches([1] * 20, 9, fits=3, error=error)
    assert sizes == [2] * 10
    assert journal.halvings == [(9, 4), (4, 2)]
    with pytest.raises(type(error), match=str(error)[:9]):
        batches([1] * 4, 9, fits=0, error=error)


def test_another_error_is_not_taken_for_memory():
    with pytest.raises(RuntimeError, match="shapes"):
        batches([1] * 4, 9, fits=3, error=RuntimeError("shapes do not match"))


def _score(model, journal):
    long = [([7] * 58, [5, 6, 8]), ([7] * 58, [9, 4, 5]), ([5] * 30, [6] * 12), ([5] * 30, [7] * 9)]
    assert CONTEXT < 58 + 11, "batches of both contexts are divided"
    return score(model, [*multiple_choice(), *rolling(), *long], SWEEP, journal=journal)


def _complete(model, journal):
    return complete(model, half_remembered(model, 4), SUFFIX, SWEEP[:3], journal=journal)


def _look(model, journal):
    return tokenwise.look(model, half_remembered(model), SUFFIX, SWEEP, journal=journal)


@pytest.mark.parametrize("measure", [_score, _complete, _look])
def test_no_result_depends_on_the_call_that_runs_out_of_memory(measure, monkeypatch):
    """Each call of the engine within a batch fails once, in turn; the batch is then repeated."""
    model = tiny("gpt_neo")
    monkeypatch.setattr(near_ties, "_SAFETY", 2e4)  # so that choices are settled in most batches
    expected = Journal()
    undisturbed = measure(model, expected)
    calls, failing, inside = 0, -1, False

    def interrupted(function):
        def call(*arguments, **options):
            nonlocal calls
            calls += inside
            if inside and calls == failing:
                raise torch.OutOfMemoryError
            return function(*arguments, **options)

        return call

    def batched(*arguments):
        nonlocal inside
        inside = True
        try:
            return in_batches(*arguments)
        finally:
            inside = False

    for module in (completion, scoring, tokenwise, wavefront, near_ties, decoding):
        for name in ("run", "read", "decode", "choose", "_attention_changes"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, interrupted(getattr(module, name)))
        if hasattr(module, "in_batches"):
            monkeypatch.setattr(module, "in_batches", batched)
    measure(model, Journal())
    total = calls
    assert total >= 3
    for call in range(1, total + 1):
        journal, calls, failing = Journal(), 0, call
        disturbed = measure(model, journal)
        [(before, after)] = journal.halvings
        assert after == before // 2
        assert journal.near_ties == expected.near_ties
        for result, right in undisturbed.tensors().items():
            left = disturbed.tensors()[result]
            note = f"{result}, call {call} of {total}".format
            kwargs = {"equal_nan": True, "msg": lambda text, note=note: f"{note()}: {text}"}
            torch.testing.assert_close(left, right, rtol=0, atol=50 * rounding(model), **kwargs)


def budget(monkeypatch, free, known, **options):
    monkeypatch.setattr(memory, "available", lambda device: free)
    return token_budget(known, build_trie(SWEEP, BLOCKS), 20, **{"caching": True, **options})


@pytest.mark.parametrize("family", ["gpt_neox", "gpt_neo", "falcon", "mpt", "bloom", "opt"])
def test_less_memory_means_a_smaller_budget_and_never_none(family, monkeypatch):
    free = [1 << bits for bits in range(34, 0, -1)] + [0, -1 << 30]
    found = [budget(monkeypatch, each, anatomy(tiny(family))) for each in free]
    assert found == sorted(found, reverse=True)
    assert found[0] > 10_000
    assert found[-1] == 1


def test_a_cache_leaves_less_and_half_precision_twice_as_much(monkeypatch):
    little = 3 << 27  # bytes, few enough for the tiny model's budget to follow them
    known = anatomy(copy.deepcopy(tiny("gpt_neox")))
    full = budget(monkeypatch, little, known)
    assert full < budget(monkeypatch, little, known, caching=False)
    known.model.half()
    assert budget(monkeypatch, little, known) == pytest.approx(2 * full, abs=2)
    again = budget(monkeypatch, little, known, in_single=True)
    assert 0.9 * full < again < full, "float32, and one module's weights in it"


@pytest.mark.parametrize("in_single", [False, True])
def test_a_sweep_of_12_billion_parameters_fits_into_40_gb(in_single, monkeypatch):
    """Of a GPU with 39.4 GiB: Pythia-12b in float16, and a sample under all interventions."""
    config = transformers.GPTNeoXConfig(
        vocab_size=50_688, hidden_size=5120, intermediate_size=20_480, num_hidden_layers=36,
        num_attention_heads=40,
    )  # fmt: skip
    with torch.device("meta"):
        whole = transformers.GPTNeoXForCausalLM(config).half()
    weights = sum(weight.nbytes for weight in whole.parameters())
    assert 23e9 < weights < 24.5e9
    monkeypatch.setattr(memory, "available", lambda device: int(39.4 * 2**30) - weights)
    model = types.SimpleNamespace(
        device=torch.device("cuda"), config=config, dtype=torch.float16, parameters=whole.parameters
    )
    site = types.SimpleNamespace(values=Values(False, 40, 40, 128, None))
    trie, known = build_trie(sweep(36), 36), types.SimpleNamespace(model=model, sites=[site])
    found = token_budget(known, trie, 64, caching=True, in_single=in_single)
    assert found >= 63 * trie.branches


def peak(model, length, free, decode):
    """Batches, and the most memory (bytes) that a sweep adds, where `free` bytes are to be had."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    listed, calls = sweep(model.config.num_hidden_layers), []
    tokens = torch.randint(4, 1000, (24, length))
    with mock.patch.object(memory, "available", return_value=free):
        complete(model, tokens[:1, :4], 2, listed[:1])  # what libraries load at first use
        before = high_water()
        complete(model, tokens, 8, listed, decode=decode, progress=lambda *_: calls.append(1))
    return len(calls), (high_water() - before) * 2**20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("family", "length", "dtype", "decode"),
    [
        ("gpt_neox", 64, torch.float32, True),
        ("gpt_neox", 64, torch.bfloat16, True),
        ("gpt_neo", 200, torch.float32, False),
    ],
)
def test_a_sweep_stays_within_the_memory_that_there_is(family, length, dtype, decode):
    """Weights, keys and values of all branches, states, scores and logits, at a made-up limit."""
    shape = {"vocab_size": 8000, "hidden_size": 256, "max_position_embeddings": 256}
    neox = {"num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 1024}
    neo = {"num_layers": 6, "num_heads": 8, "attention_types": [[["global", "local"], 3]]}
    shape |= neox if family == "gpt_neox" else neo
    config = transformers.AutoConfig.for_model(family, **shape)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    free = 700 << 20
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        batches, most = pool.apply(peak, (model, length, free, decode))
    assert batches > 1, "all at once would be too much"
    assert 0.1 * free < most < free
