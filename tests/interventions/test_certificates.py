"""The certificate of an edit: what it proves, and the faults it refuses, each by name."""

from collections import Counter
from functools import partial

import pytest
import torch

from pipeline.interventions import Group, Intervention, bypassed, complete, hooks, sweep, wavefront
from pipeline.interventions import certificates as certifying
from pipeline.interventions.certificates import CHECKS, certificates
from pipeline.interventions.edits import edit, patch
from pipeline.interventions.hooks import BlockRows
from pipeline.workflow.errors import InputError
from tests.families import BLOCKS, FAMILIES, NOT_ADDITIVE, randomized, tiny
from tests.interventions.cases import SUFFIX, half_remembered
from tests.interventions.test_mutants import edits_in_the_next_samples, instead_of

FAMILY = "llama"


def build(family):
    """A model of a family that nothing has used yet."""
    return randomized(FAMILIES[family]())


KEPT, STATE = [], {"calls": 0, "model": None}


def state_between_calls(here):
    STATE["calls"] += 1
    return here.now * STATE["calls"]


def after(act):
    """An edit that does something else first."""

    def edited(here):
        act(here)
        return 0.5 * here.now

    return edited


def change_weights(_here):
    with torch.inference_mode(False), torch.no_grad():
        next(STATE["model"].parameters()).mul_(1.5)


def add_hook(_here):
    STATE["model"].lm_head.register_forward_hook(lambda *_: None)


WRONG = {
    "nothing": (lambda here: here.now, "effect"),
    "rows beside": (lambda here: here.now - here.now.mean(0), "batch"),
    "next row": (lambda here: here.now.roll(1, 0), "batch"),
    "later positions": (lambda here: here.now.flip(1), "steps"),
    "length of the text": (lambda here: here.now / here.now.shape[1], "steps"),
    "state between calls": (state_between_calls, "calls"),
    "randomness": (lambda here: here.now + torch.rand_like(here.now), "calls"),
    "keeps values": (after(lambda here: KEPT.append(here.now.clone())), "memory"),
    "gradient mode": (after(lambda _here: torch.set_grad_enabled(not STATE["on"])), "model"),
    "weights": (after(change_weights), "model"),
    "hooks of the model": (after(add_hook), "model"),
    "another shape": (lambda here: here.now[..., :1], "as here.now"),
    "not a tensor": (lambda here: 0.5, "as here.now"),
    "a need not declared": (lambda here: here.mean, r'one of now, project\n.*needs=\["mean"\]'),
}


@pytest.mark.parametrize(("function", "check"), WRONG.values(), ids=WRONG)
def test_a_wrong_edit_is_refused_with_what_failed(function, check):
    model = build(FAMILY)
    STATE.update(calls=0, model=model, on=torch.is_grad_enabled())
    kind = edit(site="attention", name="own")(function)
    listed = sweep(BLOCKS, [Group((1, 3), kind)])
    try:
        with pytest.raises(InputError, match=check) as caught:
            complete(model, half_remembered(tiny(FAMILY)), SUFFIX, listed)
    finally:
        torch.set_grad_enabled(True)
        KEPT.clear()
    assert check not in CHECKS or CHECKS[check] in str(caught.value)
    assert not certificates(model)


@instead_of(wavefront, "rows_of")
def no_op(original, *given):
    return [BlockRows(rows.appended) for rows in original(*given)]


@instead_of(wavefront, "_selection")
def leak_to_other_branch(original, *given):
    return slice(0, original(*given).stop)


@instead_of(hooks._Hooks, "_limited")
def positions_ignored(_original, _self, _edit, _where, _rows, _before, made):
    return made


def state_in_the_hooks(patch):
    kept = Counter()

    @instead_of(hooks._Hooks, "_edited")
    def counted(original, self, where, columns, passing):
        kept[where] += 1
        return original(self, where, columns, passing) * kept[where]

    counted(patch)


@pytest.mark.parametrize("name", ["zero", "own"])
@pytest.mark.parametrize(
    "mutant",
    [no_op, edits_in_the_next_samples, leak_to_other_branch, positions_ignored, state_in_the_hooks],
)
def test_a_fault_of_the_engine_is_refused(mutant, name, monkeypatch):
    model = build(FAMILY)
    certifying.certify(wavefront.Engine(certifying.anatomy(model), sweep(BLOCKS)[:1]))
    kind = edit(site="attention", name="own")(lambda here: 0.5 * here.now)
    listed = sweep(BLOCKS, [Group((2,), kind if name == "own" else name, positions="prefix")])
    mutant(monkeypatch.setattr)
    with pytest.raises(InputError, match="tried on random tokens"):
        certifying.certify(wavefront.Engine(certifying.anatomy(model), listed))


@pytest.mark.parametrize("family", ["gpt_neox", "gpt_neo", "opt", "gemma2"])
def test_every_edit_has_a_certificate_once(family, monkeypatch):
    model = build(family)
    halve = edit(site="attention", name="halve")(lambda here: 0.5 * here.now)
    names = ["identity", "skip", "heads"]
    names += [] if family in NOT_ADDITIVE else ["zero", "mean", "noise", "mlp-zero", "mlp-mean"]
    groups = [Group("heads", each) if each == "heads" else Group("each", each) for each in names]
    listed = [*sweep(BLOCKS, [*groups, Group("each", "skip", positions="suffix")], 4)]
    listed.append(Intervention("own", {1: halve, 3: patch("baseline", site="block")}))
    complete(model, half_remembered(tiny(family)), SUFFIX, listed)
    made = certificates(model)
    wanted = {(each, "heads" if each == "heads" else "") for each in names}
    wanted |= {("skip", "suffix"), ("halve", ""), ("patch", "")}
    assert {(each.edit, each.scope) for each in made} == wanted
    assert all(each.change > 0 and each.difference < 1e-4 for each in made)
    alone = sweep(BLOCKS, [Group("each", patch("baseline"))])
    with pytest.raises(InputError, match=r"the edit patch of[\s\S]*effect"):
        complete(model, half_remembered(tiny(family)), SUFFIX, alone)
    monkeypatch.setattr(certifying, "_tried", partial(pytest.fail, "tried again"))
    with bypassed(model, listed[1]):
        pass
