"""The certificate of an edit: what it proves, and the faults it refuses, each by name."""

from collections import Counter
from functools import partial

import pytest
import torch

from pipeline.interventions import (
    Group,
    Intervention,
    bypassed,
    complete,
    edit,
    hooks,
    patch,
    sweep,
    wavefront,
)
from pipeline.interventions import certificates as certifying
from pipeline.interventions.certificates import CHECKS, certificates
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


def nothing(here):
    return here.now


def rows_beside(here):
    return here.now - here.now.mean(0)


def next_row(here):
    return here.now.roll(1, 0)


def later_positions(here):
    return here.now.flip(1)


def length_of_the_text(here):
    return here.now / here.now.shape[1]


def state_between_calls(here):
    STATE["calls"] += 1
    return here.now * STATE["calls"]


def randomness(here):
    return here.now + torch.rand_like(here.now)


def keeps_values(here):
    KEPT.append(here.now.clone())
    return 0.5 * here.now


def gradient_mode(here):
    torch.set_grad_enabled(not STATE.get("on"))
    return 0.5 * here.now


def weights(here):
    with torch.inference_mode(False), torch.no_grad():
        next(STATE["model"].parameters()).mul_(1.5)
    return 0.5 * here.now


def hooks_of_the_model(here):
    STATE["model"].lm_head.register_forward_hook(lambda *_: None)
    return 0.5 * here.now


def another_shape(here):
    return here.now[..., :1]


def not_a_tensor(here):
    return 0.5


def a_need_not_declared(here):
    return here.mean


WRONG = {
    nothing: "effect",
    rows_beside: "batch",
    next_row: "batch",
    later_positions: "steps",
    length_of_the_text: "steps",
    state_between_calls: "calls",
    randomness: "calls",
    keeps_values: "memory",
    gradient_mode: "model",
    weights: "model",
    hooks_of_the_model: "model",
    another_shape: "as here.now",
    not_a_tensor: "as here.now",
    a_need_not_declared: r'one of now, project\n.*needs=\["mean"\]',
}


@pytest.mark.parametrize("function", WRONG, ids=lambda each: each.__name__)
def test_a_wrong_edit_is_refused_with_what_failed(function):
    model = build(FAMILY)
    STATE.update(calls=0, model=model, on=torch.is_grad_enabled())
    listed = sweep(BLOCKS, [Group((1, 3), edit(site="attention")(function))])
    try:
        with pytest.raises(InputError, match=WRONG[function]) as caught:
            complete(model, half_remembered(tiny(FAMILY)), SUFFIX, listed)
    finally:
        torch.set_grad_enabled(True)
        KEPT.clear()
    message = str(caught.value)
    assert WRONG[function] not in CHECKS or CHECKS[WRONG[function]] in message
    assert not certificates(model)


@instead_of(wavefront, "rows_of")
def no_op(original, *given):
    return [BlockRows(rows.appended) for rows in original(*given)]


@instead_of(wavefront, "_selection")
def leak_into_another_branch(original, *given):
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
    [
        no_op,
        edits_in_the_next_samples,
        leak_into_another_branch,
        positions_ignored,
        state_in_the_hooks,
    ],
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
