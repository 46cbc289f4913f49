"""The trie: every intervention walks its own path, and shares all that it can."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.interventions import Intervention, sweep
from pipeline.interventions.interventions import bypass
from pipeline.interventions.trie import build_trie
from pipeline.workflow.errors import InputError

BLOCKS = 5
EDITED = st.dictionaries(
    st.integers(0, BLOCKS - 1), st.sampled_from(["identity", "zero", "skip", "heads", "noise"])
)


@st.composite
def some_interventions(draw):
    made = []
    for number, edits in enumerate(draw(st.lists(EDITED, min_size=1, max_size=7))):
        heads = draw(st.sampled_from([(0,), (1, 2)])) if "heads" in edits.values() else None
        made.append(Intervention(f"{number}", edits, heads, draw(st.integers(0, 1))))
    return made


@given(some_interventions())
@settings(max_examples=200)
def test_every_intervention_walks_its_own_path_and_shares_what_it_has_in_common(interventions):
    trie = build_trie(interventions, BLOCKS)
    for v, each in enumerate(interventions):
        path = trie.path(trie.carrier[-1][v])
        edits = [step.edits[branch] for step, branch in zip(trie.steps, path, strict=True)]
        assert edits == [each.at(block) for block in range(BLOCKS)]
        assert list(path) == [after[v] for after in trie.carrier[1:]]
    branches = 1
    for step, (before, after) in zip(trie.steps, pairwise(trie.carrier), strict=True):
        assert len(step.edits) == branches + len(step.parents)
        for was, now in zip(before, after, strict=True):
            assert was == (now if now < branches else step.parents[now - branches])
        branches = len(step.edits)
        assert set(after) == set(range(branches)), "no branch is computed for nothing"
    assert branches == trie.branches
    for upto, carrier in enumerate(trie.carrier):
        for (v, left), (w, right) in product(enumerate(interventions), repeat=2):
            agree = all(left.at(block) == right.at(block) for block in range(upto))
            assert (carrier[v] == carrier[w]) == agree


@pytest.mark.parametrize("n_blocks", [8, 16, 32])
def test_a_sweep_costs_half_the_square_of_the_blocks(n_blocks):
    singles = sweep(n_blocks)[: 1 + n_blocks]
    cost = build_trie(singles, n_blocks).block_evaluations
    assert cost == n_blocks + n_blocks * (n_blocks + 1) // 2


def test_blocks_beyond_the_last_are_refused_together():
    with pytest.raises(InputError, match=r"2 problems[\s\S]*block 5[\s\S]*block 7") as refused:
        build_trie([bypass("far", (0, 5)), bypass("farther", (7,))], BLOCKS)
    assert len(refused.value.problems) == 2
