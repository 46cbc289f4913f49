"""Gradient times activation, against what happens when an output is scaled."""

from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.measure import attribution, schemas
from pipeline.measure.attribution import BATCH, measure, products
from pipeline.models.sites import anatomy
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests.measure.cases import FIRST_ID, samples_of

SUFFIX = 4


def _loss(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """(B,) nats: of the suffix given the prefix."""
    log_probs = model(input_ids=tokens).logits.log_softmax(-1)[:, -SUFFIX - 1 : -1]
    losses: Tensor = -log_probs.gather(-1, tokens[:, -SUFFIX:, None]).sum((1, 2))
    return losses


@torch.no_grad()
def _scaled(
    model: PreTrainedModel, tokens: Tensor, module: nn.Module, at: int, by: float
) -> Tensor:
    def scale(_module: nn.Module, _args: Any, returned: Tensor) -> Tensor:
        returned = returned.clone().view(*tokens.shape, -1)
        returned[:, at] *= by
        return returned

    with module.register_forward_hook(scale):
        return _loss(model, tokens)


def test_a_product_is_the_slope_of_the_loss_as_the_output_grows(
    model: PreTrainedModel, memorized: Tensor
) -> None:
    double = deepcopy(model).double()
    tokens = memorized[:2]
    found = products(double, tokens, SUFFIX)
    sites = anatomy(double).sites
    assert found.shape == (2, len(sites), 2, tokens.shape[1])
    step, seen = 1e-3, 0.0  # GPT-Neo's attention computes in float32, whatever its weights are
    for block in (0, len(sites) - 1):
        for part, module in enumerate((sites[block].attention, sites[block].mlp)):
            assert module is not None
            for at in (0, 9, tokens.shape[1] - 2, tokens.shape[1] - 1):
                up, down = (_scaled(double, tokens, module, at, 1 + x) for x in (step, -step))
                slope = (up - down) / (2 * step)
                torch.testing.assert_close(found[:, block, part, at], slope, rtol=1e-3, atol=1e-3)
                seen = max(seen, float(slope.abs().max()))
    assert seen > 0.03  # there was something to compare
    assert (found[..., -1] == 0).all()  # what is written at the last token is read by nobody


def test_the_table_has_every_sample_block_and_part(neo: PreTrainedModel, memorized: Tensor) -> None:
    tokens = memorized.repeat(2, 1)[: BATCH + 3]
    samples = samples_of(tokens.tolist(), tokens.shape[1] - SUFFIX, SUFFIX)
    before = {name: value.clone() for name, value in neo.state_dict().items()}
    told: list[tuple[int, int]] = []
    made = measure(neo, samples, lambda *done: told.append(done))
    assert made.schema == tables.dtypes(schemas.ATTRIBUTION)
    keys = product(samples["sample_id"], range(len(anatomy(neo).sites)), ("attention", "mlp"))
    assert made.select("sample_id", "block", "part").rows() == list(keys)
    expected = products(neo, tokens, SUFFIX).abs().mean(-1).flatten()
    torch.testing.assert_close(torch.tensor(made["value"].to_list()).float(), expected)
    assert told == [(BATCH, len(tokens)), (len(tokens), len(tokens))]
    assert all(torch.equal(before[name], value) for name, value in neo.state_dict().items())
    assert all(parameter.grad is None for parameter in neo.parameters())


def test_gradients_that_are_not_finite_name_the_sample(
    neox: PreTrainedModel, memorized: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(model: PreTrainedModel, tokens: Tensor, suffix_length: int) -> Tensor:
        made = products(model, tokens, suffix_length)
        made[1, 2, 0, 3] = float("nan")
        return made

    monkeypatch.setattr(attribution, "products", broken)
    samples = samples_of(memorized[:3].tolist(), memorized.shape[1] - SUFFIX, SUFFIX)
    with pytest.raises(InputError, match=f"sample {FIRST_ID + 1}"):
        measure(neox, samples)
