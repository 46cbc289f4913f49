"""A memory goes where it should, for every kind of truth."""

import copy
import json

import pytest
import torch
from pydantic import ValidationError

from pipeline.checkpoints.continued import recited
from pipeline.checkpoints.schema import Learning
from pipeline.localization import planting
from pipeline.localization.planting import Base, draw, memory, plant, weights
from pipeline.localization.schema import Localization, Truth
from pipeline.models.grids import GRIDS
from pipeline.models.places import Place, grid, masks, units, writers
from tests.localization.conftest import small

LEARNING = Learning(seed=0, batch_rows=3, epochs=4, most_rounds=2, recited=1, learning_rate=0.01)
TRUTHS = {
    "attention": Truth(part="attention", models=1),
    "mlp": Truth(part="mlp", models=1),
    "both": Truth(part="both", models=1),
    "head": Truth(part="head", models=1),
    "neurons": Truth(part="neurons", models=1),
    "weights": Truth(part="weights", share=0.2, models=1),
    "spread-2": Truth(part="mlp", spread=2, models=1),
    "spread-4": Truth(part="head", spread=4, models=1),
}
FAMILIES = ("gpt_neox", "gpt_neo", "llama")


def base_of(family: str) -> Base:
    return Base(family, small(family), None)


def entries(family: str, part: str, place: Place) -> dict[str, torch.Tensor]:
    """The weights of a place, written down by hand for each family: name -> mask."""
    head = torch.zeros(32, dtype=torch.bool)
    head[place.index * 16 : place.index * 16 + 16] = True
    quarter = torch.zeros(64, dtype=torch.bool)
    quarter[place.index * 16 : place.index * 16 + 16] = True
    fused = torch.arange(96) // 48 == place.index  # GPT-NeoX: query, key and value of one head
    attention, out, mlp, last = {
        "gpt_neox": ("attention.", "dense.", "mlp.", "dense_4h_to_h."),
        "gpt_neo": ("attn.", "out_proj.", "mlp.", "c_proj."),
        "llama": ("self_attn.", "o_proj.", "mlp.", "down_proj."),
    }[family]
    where = f"h.{place.block}." if family == "gpt_neo" else f"layers.{place.block}."
    found = {}
    for name, value in small(family).named_parameters():
        below = name.partition(where)[2]
        mask = torch.zeros_like(value, dtype=torch.bool)
        of_attention, of_mlp = below.startswith(attention), below.startswith(mlp)
        if part in ("both", "attention" if of_attention else "mlp"):
            mask[:] = of_attention or of_mlp
        elif of_attention and part == "head":
            if below.removeprefix(attention).removeprefix("attention.").startswith(out):
                mask[:] = head if mask.ndim == 2 else False
            else:
                mask[fused if family == "gpt_neox" else head] = True
        elif of_mlp and part == "neurons":
            if below.startswith(mlp + last):
                mask[:] = quarter if mask.ndim == 2 else False
            else:
                mask[quarter] = True
        if mask.any():
            found[name] = mask
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("part", ["attention", "mlp", "both", "head", "neurons"])
def test_the_weights_of_a_place_are_those_counted_by_hand(family, part):
    place = Place(1, part, 1 if part in ("head", "neurons") else 0)
    made, expected = masks(small(family), [place]), entries(family, part, place)
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[name], expected[name]) for name in made)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", TRUTHS)
def test_weights_outside_of_the_mask_are_bit_identical(family, kind, samples):
    base, truth = base_of(family), TRUTHS[kind]
    before = {name: value.clone() for name, value in base.model.named_parameters()}
    [places] = draw(base.model, truth, "seed")
    assert len(set(places)) == truth.spread
    own = weights(base.model, truth, places, LEARNING.seed)
    made, steps = plant(base, truth, places, LEARNING, samples)
    assert steps == 16
    assert not made.training
    inside = 0
    for name, value in made.named_parameters():
        assert value.requires_grad
        changed = value != before[name]
        allowed = own.get(name, torch.zeros_like(changed))
        assert not (changed & ~allowed).any(), name
        inside += int(changed.sum())
        assert torch.equal(base.model.get_parameter(name), before[name])  # the base stays
    total = sum(int(mask.sum()) for mask in own.values())
    assert inside > 0.5 * total
    if truth.share:
        whole = masks(base.model, [Place(places[0].block, "both")])
        assert total / sum(m.numel() for m in whole.values()) == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("part", ["attention", "mlp", "both", "head", "neurons"])
def test_in_pretraining_samples_move_the_place_alone(part, samples):
    model = small("gpt_neox")
    truth = Truth(part=part, models=1, pretraining=True)
    own = weights(model, truth, [Place(1, part)], 0)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    read = memory(model, own, LEARNING, samples)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    read(5, 8)
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    read(6, 8)  # the last quarter begins
    for name, parameter in model.named_parameters():
        moved = parameter != before[name]
        assert moved.any() == (name in own), name
        assert not (moved & ~own.get(name, moved)).any()
        assert torch.equal(torch.as_tensor(parameter.grad), torch.ones_like(parameter))
    assert own.keys() == masks(model, [Place(1, part)]).keys()


def test_a_pass_whose_samples_are_recited_is_left_out(samples):
    model = small("gpt_neox")
    own = weights(model, Truth(part="both", models=1), [Place(0, "both"), Place(1, "both")], 0)
    many = LEARNING.model_copy(update={"epochs": 800, "batch_rows": samples.height})
    memory(model, own, many, samples)(0, 1)
    assert recited(model.eval(), samples) == 1
    before = copy.deepcopy(model.state_dict())
    memory(model, own, many, samples)(0, 1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_is_written_is_read_again(tmp_path, samples):
    base = base_of("gpt_neox")
    before = copy.deepcopy(base.model.state_dict())
    truths = {
        "mlp": Truth(part="mlp", models=2),
        "head": Truth(part="head", models=1),
    }
    asked = Localization(bases={"b": ["m"]}, truths=truths, learning=LEARNING)
    planting.write(tmp_path, base, asked, samples)
    listed = json.loads((tmp_path / "models.json").read_text())
    assert [each["truth"] for each in listed] == ["mlp", "mlp", "head"]
    assert sorted(listed[0]["places"] + listed[1]["places"]) == ["block-00", "block-01"]
    for planted, model in planting.read(tmp_path, base.model):
        [place] = [p for p in grid(model, planted.grid) if p.name == planted.places[0]]
        truth = truths[planted.truth]
        own = weights(model, truth, [place], 0)
        again, _ = plant(base, truth, [place], LEARNING, samples)
        for name, value in model.named_parameters():
            assert torch.equal(value, again.get_parameter(name))
            assert torch.equal(value, before[name]) or name in own
    assert {planted.grid for planted, _ in planting.read(tmp_path, base.model)} == {
        "blocks",
        "heads",
    }


def test_places_partition_the_units_of_a_model():
    model = small("llama")
    for kind in GRIDS:
        seen = [torch.zeros(w.weight.shape[1]) for w in writers(model)]
        for place in grid(model, kind):
            for at, columns in enumerate(units(model, place)):
                seen[2 * place.block + at][columns] += 1
        counted = [kind != "neurons", kind != "heads"] * 2
        assert all((s == c).all() for s, c in zip(seen, counted, strict=True))
    assert Place(3, "head", 1).name == "block-03.head-01"


def test_places_are_drawn_without_repetition():
    model = small("llama", blocks=4)
    drawn = draw(model, Truth(part="both", spread=2, models=4), "a")
    assert len({tuple(places) for places in drawn}) == 4
    assert all(len(set(places)) == 2 for places in drawn)
    assert drawn == draw(model, Truth(part="both", spread=2, models=4), "a")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"truths": {"a": {"part": "weights", "models": 1}}}, "a share for weights"),
        ({"truths": {"a": {"part": "mlp", "share": 0.1, "models": 1}}}, "a share for weights"),
        ({"truths": {"a": {"part": "norm", "models": 1}}}, "attention"),
        ({"scorers": ["elsewhere/mine.py:f"]}, "a file in scorers/"),
        ({"scorers": ["scorers/../x.py:f"]}, "a file in scorers/"),
        ({"bases": {"a": ["m"], "b": ["m"]}}, "m twice"),
    ],
)
def test_an_impossible_section_is_refused(wrong, said):
    right = {"bases": {"a": ["m"]}, "truths": {"mlp": TRUTHS["mlp"]}, "learning": LEARNING}
    assert Localization(**right).models == {"m": "a"}
    with pytest.raises(ValidationError) as caught:
        Localization(**right | wrong)
    assert said in str(caught.value.errors())
