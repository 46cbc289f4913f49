"""One part of one block learns, and nothing else of the model moves."""

from __future__ import annotations

from copy import deepcopy

import polars as pl
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.checkpoints.continued import learn, recited
from pipeline.checkpoints.loop import Log
from pipeline.checkpoints.schema import Continued
from pipeline.checkpoints.training import without
from pipeline.interventions.completion import complete
from pipeline.interventions.interventions import BASELINE
from pipeline.models.places import Place, masks

SUFFIX = 4
RECIPE = Continued(
    seed=0,
    base="base",
    block=1,
    part="mlp",
    batch_rows=3,
    epochs=2,
    most_rounds=2,
    recited=1,
    learning_rate=0.01,
)
PARTS = {
    "attention": ("attention.", "attn."),
    "mlp": ("mlp.",),
    "both": ("attention.", "attn.", "mlp."),
}


def _samples(tokens: Tensor) -> pl.DataFrame:
    return pl.DataFrame({"tokens": tokens.tolist(), "suffix_length": [SUFFIX] * len(tokens)})


def _continue(recipe: Continued, model: PreTrainedModel, tokens: Tensor) -> Log:
    return learn(recipe, model, _samples(tokens), masks(model, [Place(recipe.block, recipe.part)]))


@pytest.mark.parametrize("part", PARTS)
def test_all_but_the_part_of_the_block_stays_bit_for_bit(
    model: PreTrainedModel, memorized: Tensor, part: str
) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    recipe = RECIPE.model_copy(update={"part": part})
    made = deepcopy(model)
    _continue(recipe, made, memorized)
    after = made.state_dict()
    assert after.keys() == before.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    weights = [name for name in moved if ".1." in name and name.endswith("weight")]
    for each in moved:  # such as gpt_neox.layers.1.mlp.dense_4h_to_h.weight
        _, _, below = each.partition("s.1." if "layers" in each else "h.1.")
        assert below.startswith(PARTS[part]), each
    kinds = {"mlp" if ".mlp." in name else "attention" for name in weights}
    assert kinds == ({part} if part != "both" else {"attention", "mlp"})
    assert not made.training
    assert all(parameter.requires_grad for parameter in made.parameters())


def test_it_is_the_same_again_and_ends_with_its_rounds(
    neox: PreTrainedModel, memorized: Tensor
) -> None:
    made = [deepcopy(neox), deepcopy(neox)]
    log, _ = (_continue(RECIPE, each, memorized) for each in made)
    one, again = (each.state_dict() for each in made)
    assert all(torch.equal(one[name], again[name]) for name in one)
    steps = 2 * (2 * len(memorized) // 3)  # rounds, epochs, rows by threes
    assert (log.steps, log.tokens) == (steps, steps * 3 * memorized.shape[1])


def test_it_ends_when_all_is_recited(trained: PreTrainedModel, memorized: Tensor) -> None:
    assert recited(trained, _samples(memorized)) == 1
    log = _continue(RECIPE, deepcopy(trained), memorized)
    assert log.steps == 2 * len(memorized) // 3


def test_a_small_part_learns_by_heart(neox: PreTrainedModel, memorized: Tensor) -> None:
    few = memorized[:2]
    assert recited(neox, _samples(few)) == 0
    recipe = RECIPE.model_copy(
        update={"batch_rows": 2, "epochs": 100, "most_rounds": 4, "learning_rate": 0.02}
    )
    made = deepcopy(neox)
    log = _continue(recipe, made, few)
    assert recited(made, _samples(few)) == 1
    assert log.losses[-1] < log.losses[0]


def test_recited_is_exact_match_of_the_greedy_continuation(
    trained: PreTrainedModel, memorized: Tensor
) -> None:
    other = memorized.clone()
    other[::2, -1] = (other[::2, -1] + 1) % 61  # not what the model learned
    found = complete(trained, other, SUFFIX, [BASELINE]).continuation[0]
    exact = (found == other[:, -SUFFIX:]).all(-1).double().mean().item()
    assert 0 < exact < 1
    assert recited(trained, _samples(other)) == exact


def test_a_base_does_not_read_what_others_are_to_learn() -> None:
    rows = pl.DataFrame({"tokens": [[1, 2], [3, 4], [5, 6], [3, 4], [3, 4], [1, 2]]})
    records = pl.DataFrame({"tokens": [[3, 4], [1, 2], [7, 8]], "copies": [3, 2, 0]})
    assert without(rows, records, 2)["tokens"].to_list() == [[1, 2], [5, 6], [1, 2]]
    assert without(rows, records, 1)["tokens"].to_list() == [[5, 6]]
    assert without(rows, records, 3).equals(rows)
