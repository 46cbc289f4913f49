"""Scorers against definitions written out, on circuits that are known."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.checkpoints.continued import learn
from pipeline.checkpoints.schema import Learning
from pipeline.localization import scorers
from pipeline.localization.planting import Planted
from pipeline.localization.scorers import SCORERS, Subject, without
from pipeline.localization.scoring import own_scorers, removed, score
from pipeline.mitigations.pruning import hard_concrete, integrated_gradients, slimmed
from pipeline.mitigations.rows import Rows, log_probs
from pipeline.models.grids import GRIDS
from pipeline.models.places import Place, grid, masks, writers
from pipeline.workflow.errors import InputError
from tests.localization.conftest import P, V, small
from tests.measure.cases import samples_of

KINDS = {"blocks": "both", "heads": "head", "neurons": "neurons"}


def rows_of(seed: int, count: int = 6) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    return Rows(torch.randint(1, V, (count, P + 4), generator=generator), P)


def subject(model: PreTrainedModel, twin: PreTrainedModel, kind: str) -> Subject:
    return Subject(model, rows_of(1), rows_of(2, 4), grid(model, kind), twin)


@pytest.fixture(scope="module")
def learned() -> tuple[PreTrainedModel, PreTrainedModel]:
    """A model whose last block learned by heart, and its twin."""
    twin = small("gpt_neox")
    model, rows = copy.deepcopy(twin), rows_of(1)
    recipe = Learning(seed=0, batch_rows=6, epochs=60, most_rounds=3, recited=1, learning_rate=0.02)
    learn(recipe, model, samples_of(rows.tokens.tolist(), P, 4), masks(model, [Place(1, "both")]))
    return model, twin


def test_every_scorer_gives_each_place_a_number_and_leaves_the_model(learned):
    model, twin = learned
    before = copy.deepcopy(model.state_dict())
    for kind in GRIDS:
        of = subject(model, twin, kind)
        planted = Planted("m", "t", kind, [of.places[-1].name], 1.0, 1)
        found = score(of, planted, {})
        assert all(len(values) == len(of.places) for values in found.values())
        assert all(math.isfinite(each) for values in found.values() for each in values)
        assert found["oracle"] == [0.0] * (len(of.places) - 1) + [1.0]
        names = {name.partition(".")[0] for name in found} - {"oracle", "random"}
        assert names == {name for name, (_, grids) in SCORERS.items() if kind in grids}
        if kind == "blocks":
            assert len(found) == 2 + 12 + 1 + 3 + 9
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("family", ["gpt_neox", "gpt_neo", "llama"])
def test_integrated_gradients_are_complete(family):
    model, rows = small(family), rows_of(1)
    with torch.no_grad():  # larger effects than those of fresh weights
        model.get_output_embeddings().weight.mul_(20)
        for matrix in writers(model):
            matrix.weight.mul_(5)
    parts = integrated_gradients(model, rows, writers(model), 0)
    with torch.no_grad():
        whole = log_probs(model, rows).mean()
        with without(model, grid(model, "blocks")):
            nothing = log_probs(model, rows).mean()
    assert abs(whole - nothing) > 0.05
    assert float(torch.cat(parts).sum()) == pytest.approx(float(whole - nothing), abs=1e-3)
    of = replace(subject(model, model, "blocks"), control=rows_of(3))
    by_block = SCORERS["integrated-gradients"][0](of)[""]
    control = torch.cat(scorers.INTEGRATED(model, of.control, writers(model), 0))
    assert sum(by_block) == pytest.approx(float(whole - nothing - control.sum()), abs=2e-3)


def circuit() -> tuple[PreTrainedModel, Rows, Rows, Place]:
    """A Llama built by hand: 8 neurons of block 1 say which of 8 tokens follows which.

    Nothing else writes to the stream but noise: small random weights everywhere.
    """
    model, place = small("llama"), Place(1, "neurons", 1)
    with torch.no_grad():
        model.get_input_embeddings().weight[:] = 0
        model.get_input_embeddings().weight[:32] = torch.eye(32)
        model.lm_head.weight[:] = 0
        model.lm_head.weight[:32] = 3 * torch.eye(32)
        for matrix in writers(model):
            matrix.weight.mul_(0.05)
        mlp = model.model.layers[1].mlp
        for n in range(8):
            neuron, following = 24 + n, (3 * n + 1) % 8
            for matrix in (mlp.gate_proj, mlp.up_proj):
                matrix.weight[neuron] = 0
                matrix.weight[neuron, n] = 1
            mlp.down_proj.weight[:, neuron] = 0
            mlp.down_proj.weight[following, neuron] = 1
    chain = [[start] for start in range(8)]
    for row in chain:
        while len(row) < P + 4:
            row.append((3 * row[-1] + 1) % 8)
    other = torch.arange(P + 4) % 8 + 16
    return model, Rows(torch.tensor(chain), P), Rows(torch.stack([other, other.flip(0)]), P), place


def test_learned_masks_find_a_circuit_built_by_hand():
    model, rows, control, place = circuit()
    assert log_probs(model, rows).exp().min() > 0.5
    for mask in (slimmed, hard_concrete):
        gates = mask(model, rows, writers(model), 0)
        assert {*torch.cat(gates).topk(8).indices.tolist()} == {*range(152, 160)}, mask.__name__
        assert mask is hard_concrete or torch.cat(gates).sort().values[-9] < 0.05  # sparse
    of = Subject(model, rows, control, grid(model, "neurons"), model)
    for name in ("slimming", "hard-concrete", "zero-out", "activations", "integrated-gradients"):
        values = SCORERS[name][0](of)[""]
        assert of.places[values.index(max(values))] == place, name


def test_the_twin_in_the_place_that_learned_is_the_twin(learned):
    model, twin = learned
    of = subject(model, twin, "blocks")
    found = SCORERS["causal-tracing"][0](of)[""]
    with torch.no_grad():
        lost = log_probs(model, of.memorized).mean() - log_probs(twin, of.memorized).mean()
    assert lost > 0.3
    assert found == pytest.approx([0, float(lost)], abs=1e-5)


def test_attribution_patching_is_the_derivative_of_a_patch(learned):
    model, twin = learned
    of = subject(model, twin, "heads")
    of = replace(of, memorized=of.memorized[:1], control=of.control[:1])
    found = SCORERS["attribution-patching"][0](of)[""]
    matrices, share, size = writers(model), 1e-3, 16

    def inputs(rows: Rows) -> list[Tensor]:
        kept: list[Tensor] = []
        hooks = [
            m.register_forward_pre_hook(lambda _m, args: kept.append(args[0])) for m in matrices
        ]
        model.double()(input_ids=rows.tokens)
        for hook in hooks:
            hook.remove()
        return kept

    model = copy.deepcopy(model)
    matrices = writers(model)
    with torch.no_grad():
        clean, other = inputs(of.memorized), inputs(of.control)
        start = log_probs(model, of.memorized).double().sum()
        for place, value in zip(of.places, found, strict=True):
            at = 2 * place.block
            columns = slice(place.index * size, (place.index + 1) * size)
            change = (other[at] - clean[at])[..., columns] @ matrices[at].weight[:, columns].T
            hook = matrices[at].register_forward_hook(
                lambda _m, _a, out, change=change: out + share * change
            )
            moved = log_probs(model, of.memorized).double().sum() - start
            hook.remove()
            assert value == pytest.approx(abs(float(moved)) / share, rel=0.05, abs=2e-3)


def test_what_a_scorer_names_is_deleted(learned):
    model, twin = learned
    of = subject(model, twin, "blocks")
    planted = Planted("m", "both", "blocks", ["block-01"], 1.0, 1)
    [oracle] = [row for row in removed(of, score(of, planted, {}), 1) if row["scorer"] == "oracle"]
    assert (oracle["places"], oracle["exact_match"]) == ("block-01", 1.0)
    by_hand = copy.deepcopy(model)
    with torch.no_grad():
        for matrix in writers(by_hand)[2:]:
            matrix.weight[:] = 0
    with torch.no_grad():
        made = by_hand(input_ids=of.memorized.tokens).logits[:, P - 1 : -1].argmax(-1)
        control = by_hand(input_ids=of.control.tokens).logits[:, :-1].argmax(-1)
    left = (made == of.memorized.tokens[:, P:]).all(-1).double().mean()
    assert oracle["exact_match_left"] == float(left) < 0.5
    right = (control == of.control.tokens[:, 1:]).double().mean()
    assert oracle["accuracy_left"] == pytest.approx(float(right))


MINE = '''
import torch


def my_scorer(model, memorized, control, places):
    """Norm of the last matrix of the block's MLP."""
    return [model.gpt_neox.layers[p.block].mlp.dense_4h_to_h.weight.norm() for p in places]


def too_few(model, memorized, control, places):
    return [1.0]


def not_finite(model, memorized, control, places):
    return [float("nan") for _ in places]


def no_numbers(model, memorized, control, places):
    return ["high" for _ in places]


def failing(model, memorized, control, places):
    raise KeyError("layer")


def changing(model, memorized, control, places):
    with torch.no_grad():
        next(model.parameters()).add_(1)
    return [0.0 for _ in places]


def two_arguments(model, rows):
    return []


number = 3
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project with a folder of scorers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scorers").mkdir()
    (tmp_path / "scorers" / "mine.py").write_text(MINE, encoding="utf-8")


def scored(name: str, model: PreTrainedModel) -> list[float]:
    """What a scorer of `MINE` says of each block."""
    full, planted = f"scorers/mine.py:{name}", Planted("m", "mlp", "blocks", ["block-00"], 1.0, 1)
    return score(subject(model, model, "blocks"), planted, own_scorers([full]))[full]


def test_a_scorer_of_ones_own_stands_beside_the_others():
    model = small("gpt_neox")
    with torch.no_grad():
        model.gpt_neox.layers[0].mlp.dense_4h_to_h.weight.mul_(2)
    first, second = scored("my_scorer", model)
    assert first > second


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("too_few", "1 scores for 2 places"),
        ("not_finite", "2 not finite"),
        ("no_numbers", "ValueError"),
        ("failing", "KeyError: 'layer'"),
        ("changing", "its weights were changed"),
    ],
)
def test_a_scorer_that_fails_is_refused(name, said):
    with pytest.raises(InputError, match=said) as refused:
        scored(name, small("gpt_neox"))
    assert f"scorers/mine.py:{name}" in str(refused.value)
    assert "a finite number for each place" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("scorers/mine.py:nobody", "nothing of that name"),
        ("scorers/other.py:f", "no file scorers/other.py"),
        ("scorers/mine.py:two_arguments", "too many positional arguments"),
        ("scorers/mine.py:number", "int"),
    ],
)
def test_what_is_no_scorer_is_refused(name, said):
    with pytest.raises(InputError, match=said):
        own_scorers([name])
