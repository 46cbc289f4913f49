"""Some weights of a model learn texts by heart, until it recites them."""

from copy import deepcopy

import polars as pl
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.checkpoints.continued import learn, recited
from pipeline.checkpoints.schema import Continued
from pipeline.checkpoints.training import without
from pipeline.interventions.completion import complete
from pipeline.interventions.interventions import BASELINE
from pipeline.models.places import Place, masks
from tests.measure.cases import samples_of

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


def _samples(tokens: Tensor) -> pl.DataFrame:
    return samples_of(tokens.tolist(), tokens.shape[1] - SUFFIX, SUFFIX)


def test_it_ends_when_all_is_recited(trained: PreTrainedModel, memorized: Tensor) -> None:
    samples = _samples(memorized)
    assert recited(trained, samples) == 1
    log = learn(RECIPE, deepcopy(trained), samples, masks(trained, [Place(1, "mlp")]))
    assert log.steps == 2 * len(memorized) // 3
    assert log.tokens == log.steps * 3 * memorized.shape[1]


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
