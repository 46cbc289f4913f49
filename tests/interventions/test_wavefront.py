"""The teacher-forced pass: its plan, its states, and the work that it does not do."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.interventions import wavefront
from pipeline.interventions.interventions import BASELINE, bypass, sweep
from pipeline.interventions.plan import plan
from pipeline.interventions.reference import bypassed
from pipeline.interventions.wavefront import Sheet, run
from pipeline.errors import InputError
from pipeline.models.decoder import Interleaved, Separate
from pipeline.models.families import adapt

BLOCKS = 5


@st.composite
def some_interventions(draw, n_blocks=BLOCKS):
    sets = st.sets(st.integers(0, n_blocks - 1))
    chosen = draw(st.lists(sets, min_size=1, max_size=6))
    return [bypass(f"{i}", tuple(sorted(blocks))) for i, blocks in enumerate(chosen)]


@given(some_interventions())
@settings(deadline=None, max_examples=50)
def test_every_intervention_walks_its_own_path(interventions):
    trie = plan(interventions, BLOCKS)
    for v, each in enumerate(interventions):
        stops = trie.path(trie.carrier[-1][v])
        assert {b: stop.operation for b, stop in enumerate(stops) if stop.operation} == dict(
            each.edits
        )
        assert [stop.branch for stop in stops] == [step[v] for step in trie.carrier[:-1]]


@pytest.mark.parametrize("n_blocks", [8, 16, 32])
def test_a_sweep_costs_half_the_square_of_the_blocks(n_blocks):
    singles = sweep(n_blocks)[: 1 + n_blocks]
    assert plan(singles, n_blocks).block_evaluations == n_blocks * (n_blocks + 1) // 2


def test_equal_interventions_share_everything():
    twins = [bypass("a", (2,)), bypass("b", (2,))]
    trie = plan(twins, BLOCKS)
    assert trie.branches == 1
    assert trie.carrier[-1] == (0, 0)


def test_no_interventions_and_missing_blocks_are_refused():
    with pytest.raises(InputError, match="none"):
        plan([], BLOCKS)
    with pytest.raises(InputError, match="blocks 0 to 4"):
        plan([bypass("far", (5,))], BLOCKS)


@torch.inference_mode()
def test_an_observer_sees_the_states_of_every_branch(model):
    tokens = torch.randint(1, 61, (3, 12), generator=torch.Generator().manual_seed(1))
    interventions = sweep(BLOCKS)
    trie = plan(interventions, BLOCKS)
    seen = []
    run(adapt(model), Sheet.plain(tokens, 12), trie, observer=lambda b, x: seen.append(x.clone()))
    body = model.gpt_neox if hasattr(model, "gpt_neox") else model.transformer
    layers = body.layers if hasattr(model, "gpt_neox") else body.h
    for v, intervention in enumerate(interventions):
        expected = []
        hooks = [
            layer.register_forward_hook(
                lambda _m, _i, out, expected=expected: expected.append(
                    out[0] if isinstance(out, tuple) else out
                )
            )
            for layer in layers
        ]
        with bypassed(model, intervention):
            model(tokens, use_cache=False)
        for hook in hooks:
            hook.remove()
        for block in range(BLOCKS):
            ours = seen[block][trie.carrier[block + 1][v]]
            torch.testing.assert_close(ours, expected[block], rtol=0, atol=5e-5)


@torch.inference_mode()
def test_a_bypassed_block_computes_no_queries_and_keys(model, monkeypatch):
    calls = []
    for kind in (Interleaved, Separate):
        original = kind.all
        monkeypatch.setattr(
            kind, "all", lambda self, x, original=original: calls.append(x) or original(self, x)
        )
    tokens = torch.ones(2, 7, dtype=torch.int64)
    run(adapt(model), Sheet.plain(tokens, 3), plan([bypass("most", (0, 1, 2, 3))], BLOCKS))
    assert len(calls) == 1
    calls.clear()
    run(adapt(model), Sheet.plain(tokens, 3), plan([BASELINE, bypass("all", range(5))], BLOCKS))
    assert len(calls) == BLOCKS


@torch.inference_mode()
def test_what_is_bypassed_keeps_no_keys_and_values(model):
    tokens = torch.ones(2, 7, dtype=torch.int64)
    trie = plan(sweep(BLOCKS), BLOCKS)
    cache = run(adapt(model), Sheet.plain(tokens, 3), trie, keep_cache=True).cache
    for kept, step in zip(cache, trie.steps, strict=True):
        attending = step.operations.count(None)
        assert attending < trie.branches
        assert len(kept.slot) == len(kept.keys) == len(kept.values) == attending


@pytest.mark.parametrize("tokens_at_once", [1, 50, 10_000])
@torch.inference_mode()
def test_chunks_do_not_matter(model, monkeypatch, tokens_at_once):
    tokens = torch.randint(1, 61, (3, 20), generator=torch.Generator().manual_seed(2))
    trie = plan(sweep(BLOCKS), BLOCKS)
    whole = run(adapt(model), Sheet.plain(tokens, 5), trie).states
    monkeypatch.setattr(wavefront, "CHUNK_TOKENS", {"cpu": tokens_at_once})
    torch.testing.assert_close(
        run(adapt(model), Sheet.plain(tokens, 5), trie).states, whole, rtol=0, atol=5e-5
    )
