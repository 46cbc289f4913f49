"""Interventions and groups as data: names, blocks, random draws, and what is refused."""

import math
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.interventions import Group, Intervention, sweep
from pipeline.interventions.interventions import BASELINE, Edit


def members(group, n_blocks=8):
    """Name -> blocks of a group's interventions."""
    return {each.name: each.blocks for each in sweep(n_blocks, [group])[1:]}


def test_the_papers_sweep():
    assert {each.name: each.blocks for each in sweep(6)} == {
        "baseline": (),
        **{f"block-{b:02d}": (b,) for b in range(6)},
        "quartile-1": (0,),
        "quartile-2": (1, 2),
        "quartile-3": (3,),
        "quartile-4": (4, 5),
    }
    assert all(each.edit == "identity" for each in sweep(6)[1:])
    assert sweep(6)[0] == BASELINE
    assert BASELINE.edit is None


def test_fewer_than_four_blocks_have_no_quartiles():
    assert [len(sweep(n_blocks)) for n_blocks in (1, 2, 3)] == [2, 3, 4]


@given(st.integers(4, 200))
def test_quartiles_part_the_blocks(n_blocks):
    quartiles = members(Group("quartiles"), n_blocks)
    assert list(quartiles) == [f"quartile-{number}" for number in (1, 2, 3, 4)]
    parts = quartiles.values()
    assert [block for part in parts for block in part] == list(range(n_blocks))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (Group("first", k=3), {"first-3": (0, 1, 2)}),
        (Group("last", "skip", k=2), {"last-2.skip": (6, 7)}),
        (Group("windows", k=7), {f"window-0{b}-to-0{b + 6}": (*range(b, b + 7),) for b in (0, 1)}),
        (Group("windows", k=8), {"window-00-to-07": tuple(range(8))}),
        (Group((5,), "zero"), {"block-05.zero": (5,)}),
        (Group((5, 0, 3)), {"blocks-00+03+05": (0, 3, 5)}),
        (Group((2,), "heads", heads=(0, 3)), {"block-02.head-00+03": (2,)}),
        (Group((2, 4), "noise"), {"blocks-02+04.noise": (2, 4)}),
        (Group((2,), "noise", draws=2), {f"block-02.noise-draw-{d}": (2,) for d in (1, 2)}),
        (Group((2,), "noise", seed=3), {"block-02.noise-seed-3": (2,)}),
        (Group("each", "mlp-mean"), {f"block-0{b}.mlp-mean": (b,) for b in range(8)}),
        (
            Group("quartiles", "skip"),
            {f"quartile-{q}.skip": (2 * q - 2, 2 * q - 1) for q in (1, 2, 3, 4)},
        ),
    ],
)
def test_names_and_blocks(group, expected):
    assert members(group) == expected


def test_each_head_of_each_block():
    found = sweep(2, [Group("heads", "heads")], n_heads=3)[1:]
    assert [each.name for each in found] == [
        f"block-0{block}.head-0{head}" for block in (0, 1) for head in (0, 1, 2)
    ]
    assert [each.heads for each in found] == [(0,), (1,), (2,)] * 2


def test_an_intervention_knows_its_group_and_draw():
    found = sweep(8, [Group("random", k=2, draws=3), Group((1,)), Group("windows", k=7)])[1:]
    assert [each.group for each in found] == ["random"] * 3 + ["blocks"] + ["windows"] * 2
    assert [each.draw for each in found] == [1, 2, 3, None, None, None]
    noise = sweep(8, [Group("each", "noise", draws=2)])[1:5]
    assert [each.draw for each in noise] == [1, 2, 1, 2]
    assert noise[0].seed == noise[2].seed != noise[1].seed


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 5), st.data())
def test_random_draws_are_distinct(n_blocks, k, seed, data):
    k = min(k, n_blocks)
    draws = data.draw(st.integers(1, min(comb(n_blocks, k), 30)))
    found = members(Group("random", k=k, draws=draws, seed=seed), n_blocks)
    assert len(found) == len(set(found.values())) == draws
    for blocks in found.values():
        assert len(blocks) == k
        assert set(blocks) <= set(range(n_blocks))
        assert list(blocks) == sorted(set(blocks))


@pytest.mark.parametrize("n_blocks", [8, 48])  # all sets listed, and drawn one by one
def test_random_draws_are_stable(n_blocks):
    some = members(Group("random", k=4, draws=3), n_blocks)
    assert some == members(Group("random", k=4, draws=3), n_blocks)
    more = members(Group("random", k=4, draws=10), n_blocks)
    assert list(more.items())[:3] == list(some.items())
    other = members(Group("random", k=4, draws=3, seed=1), n_blocks)
    assert set(other.values()) != set(some.values())
    assert not set(other) & set(some), "their names say the seed"


def test_all_sets_can_be_drawn():
    assert len(set(members(Group("random", k=2, draws=28)).values())) == 28


def test_equal_interventions_compare_equal_and_cannot_change():
    edits = {3: "zero", 1: "skip"}
    first, second = Intervention("a", edits), Intervention("a", {1: "skip", 3: "zero"})
    edits[5] = "zero"
    assert first == second
    assert hash(first) == hash(second)
    assert first.blocks == (1, 3)
    assert first.edit == "skip+zero"
    with pytest.raises(TypeError):
        first.edits[0] = "zero"


def test_what_is_done_to_a_block_holds_only_what_it_depends_on():
    mixed = Intervention("a", {0: "heads", 1: "noise", 2: "zero"}, heads=(1,), seed=5)
    assert [mixed.at(block) for block in range(4)] == [
        Edit("heads", (1,)),
        Edit("noise", None, 5),
        Edit("zero"),
        None,
    ]


@pytest.mark.parametrize("blocks", [torch.tensor([1, 2]), np.array([2, 1]), [np.uint8(1), 2]])
def test_integers_of_any_kind_are_blocks(blocks):
    ours = Intervention("pair", dict.fromkeys(blocks, "identity"))
    assert ours == Intervention("pair", {1: "identity", 2: "identity"})
    assert {type(block) for block in ours.blocks} == {int}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Intervention("odd", {-1: "zero"}), "block -1"),
        (lambda: Intervention("odd", {1.5: "zero"}), r"blocks \[1\.5\]"),
        (lambda: Intervention("odd", {math.nan: "zero"}), r"blocks \[nan\]"),
        (lambda: Intervention("odd", {torch.tensor(1.5): "zero"}), "expected integers"),
        (lambda: Intervention("odd", {"1": "zero"}), "expected integers"),
        (lambda: Intervention("odd", {0: "scramble"}), "scramble"),
        (lambda: Intervention("odd", {0: abs}), "marked @edit"),
        (lambda: Intervention("odd", {0: "heads"}), "heads None"),
        (lambda: Intervention("odd", {0: "skip"}, (1,)), r"heads \(1,\) with skip"),
        (lambda: Intervention("odd", {0: "identity"}, (1,)), "the edit `heads`"),
        (lambda: Intervention("odd", {0: "heads"}, (-1,)), "head -1"),
        (lambda: Intervention("odd", {0: "zero"}, ()), "one or more, from 0"),
        (lambda: Intervention("odd", {0: "mlp-zero"}, neurons=()), "one or more, from 0"),
        (lambda: Intervention("odd", {0: "mlp-zero"}, neurons=(-1,)), "one or more, from 0"),
        (lambda: Group(()), "one or more"),
        (lambda: Group((1, 1)), "each once"),
        (lambda: Group("middle"), "middle"),
        (lambda: Group("each", edit="scramble"), "scramble"),
        (lambda: Group("each", edit=abs), "marked @edit"),
        (lambda: Group("first"), "k None"),
        (lambda: Group("each", k=2), "k 2"),
        (lambda: Group((1,), k=2), "k 2"),
        (lambda: Group("last", k=0), "1 or more"),
        (lambda: Group("each", draws=2), "draws 2"),
        (lambda: Group("random", k=2, draws=0), "draws 0"),
        (lambda: Group("each", edit="heads"), "`heads`"),
        (lambda: Group("heads"), "`heads`"),
        (lambda: Group((1,), heads=(0,)), "`heads`"),
        (lambda: Group("heads", edit="heads", heads=(0,)), "other blocks"),
        (lambda: Group("each", edit="skip", neurons=(1,)), "neurons with skip"),
        (lambda: Group("each", edit="zero", positions="middle"), "positions 'middle'"),
        (lambda: Group("each", edit="../mine.py:halve"), "edits/FILE.py:FUNCTION"),
        (lambda: Group("each", edit="zero", source="twin"), "one's own"),
        (lambda: sweep(8, [Group((8,))]), "block 8; expected 0 to 7"),
        (lambda: sweep(8, [Group("first", k=9)]), "9 blocks; the model has 8"),
        (lambda: sweep(8, [Group("each"), Group((3,))]), "block-03 twice"),
        (lambda: sweep(8, [Group("random", k=2, draws=29)]), "at most 28"),
        (lambda: sweep(2, [Group("heads", "heads")]), "number of heads"),
        (lambda: sweep(0), "at least one"),
    ],
)
def test_what_means_nothing_or_does_not_fit_the_model_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
