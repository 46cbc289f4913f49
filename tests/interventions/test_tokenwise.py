"""States and tokens of all interventions, against plain hooks on the stock model."""

from contextlib import ExitStack

import pytest
import torch

from pipeline.interventions import Group, sweep
from pipeline.interventions.interventions import BASELINE, SWEEP, bypass
from pipeline.interventions.tokenwise import look
from pipeline.interventions.wavefront import Engine, run
from pipeline.models.sites import anatomy
from tests.families import BLOCKS, FAMILIES, NOT_ADDITIVE, cases, tiny
from tests.interventions.cases import (
    IDENTITIES,
    SUFFIX,
    half_remembered,
    random_tokens,
    rounding,
    unchanged,
)
from tests.oracle import plain


def states(model, tokens, intervention):
    return plain.states_of(model, tokens, intervention)[0].double()


def interventions(family):
    groups = [*SWEEP, Group((1,), "heads", heads=(0, 2)), Group((2,), "skip")]
    if family not in NOT_ADDITIVE:
        groups += [Group((0, 3), "zero"), Group("each", "noise")]
    return sweep(BLOCKS, groups)


@pytest.mark.parametrize("family", cases(FAMILIES))
@torch.inference_mode()
def test_an_observer_sees_the_states_of_every_branch_after_every_block(family):
    model = tiny(family)
    tokens = random_tokens(3, 8)
    engine, seen = Engine(anatomy(model), IDENTITIES), []
    run(engine, tokens, observer=lambda block, x: seen.append((block, x.clone())))
    assert [block for block, _ in seen] == list(range(BLOCKS))
    for v, intervention in enumerate(IDENTITIES):
        for (block, found), exact in zip(seen, states(model, tokens, intervention), strict=True):
            ours = found[engine.trie.carrier[block + 1][v]].double()
            atol = max(rounding(model), 1e-5 * float(exact.abs().max()))
            torch.testing.assert_close(ours, exact, rtol=0, atol=atol)


def first_and_others(values):
    """Of (N, T) values what is measured, (N, 2): the first position's, and the others' mean."""
    return torch.stack([values[:, 0], values[:, 1:].mean(1)], -1)


@pytest.mark.parametrize("family", cases(FAMILIES))
@torch.inference_mode()
def test_displacement_and_attention_change_are_those_of_the_stock_model(family):
    model = tiny(family)
    tokens = half_remembered(model)
    listed = interventions(family)
    with unchanged(model):
        found = look(model, tokens, SUFFIX, listed, token_budget=200)
    unedited = states(model, tokens[:, :-1], BASELINE)
    grain = max(rounding(model), 1e-4)
    for v, each in enumerate(listed):
        if not each.blocks:
            assert not found.moved[v].any()
            continue
        last = max(each.blocks)
        change = (states(model, tokens[:, :-1], each)[last] - unedited[last]).norm(dim=-1)
        expected = first_and_others(change / unedited[last].norm(dim=-1))
        torch.testing.assert_close(found.moved[v], expected, rtol=1e-3, atol=grain)

    if family in NOT_ADDITIVE:
        assert found.attention_change.isnan().all()
        return
    for block, part in enumerate(plain.parts(model)):
        passed = {}

        def see(_module, args, kwargs, returned, passed=passed):
            passed["x"] = (args[0] if args else kwargs["hidden_states"]).double()
            passed["y"] = (returned[0] if isinstance(returned, tuple) else returned).double()

        def project(_module, _args, returned, passed=passed):
            passed["projected"] = returned.double()

        with ExitStack() as stack:  # without its MLP a block adds what attention adds
            for handle in (
                part.mlp.register_forward_hook(lambda _m, _a, y: torch.zeros_like(y)),
                part.output.register_forward_hook(project),
                part.block.register_forward_hook(see, with_kwargs=True),
            ):
                stack.callback(handle.remove)
            model(tokens[:, :-1], use_cache=False)
        x, y = passed["x"], passed["y"]
        if not torch.allclose(y - x, passed["projected"].view_as(x), atol=1e-5):
            told = "the family normalizes or scales what attention returns"
            assert found.attention_change.isnan().all(), told
            continue
        change = 1 - (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))
        expected = first_and_others(change)
        torch.testing.assert_close(found.attention_change[block], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("family", ["gpt_neox", "gpt_neo", "llama"])
def test_tokens_are_those_of_the_plain_loop(family):
    model = tiny(family)
    tokens = half_remembered(model)
    listed = interventions(family)
    found = look(model, tokens, SUFFIX, listed)
    expected = plain.complete(model, tokens, SUFFIX, listed, len(tokens))
    assert torch.equal(found.greedy, expected.teacher_forced)
    assert torch.equal(found.rank, expected.rank)
    for name in ("log_prob", "entropy"):
        torch.testing.assert_close(
            getattr(found, name), getattr(expected, name), rtol=0, atol=rounding(model)
        )
    assert (found.margin > 0).all()
    assert ((found.greedy == tokens[:, -SUFFIX:]) == (found.rank == 1)).all()


def test_displacement_needs_a_baseline():
    model = tiny("gpt_neox")
    with pytest.raises(ValueError, match="no intervention without edits"):
        look(model, half_remembered(model), SUFFIX, [bypass("one", (1,))])
