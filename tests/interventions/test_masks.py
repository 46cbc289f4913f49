"""Masks are for as many rows as a block has, whatever is edited and however tokens are read."""

import pytest
import torch

from pipeline.interventions import complete, score, sweep
from tests.performance.common import Shape, build, samples

REQUESTS = [([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 5], [5])]  # of two lengths: rows are padded


@pytest.mark.parametrize("family", ["GPT-NeoX", "GPT-Neo", "Llama"])
def test_few_interventions_as_among_all(family):
    shape = Shape(family, 48, 4, heads=4, samples=3, vocabulary=640, prefix=8, suffix=8)
    model, tokens, interventions = build(shape), samples(shape), sweep(shape.blocks)
    few = interventions[:3]  # the baseline, blocks 0 and 1: nothing is done to blocks 2 and 3
    every = complete(model, tokens, shape.suffix, interventions).continuation
    assert torch.equal(complete(model, tokens, shape.suffix, few).continuation, every[:3])
    every = score(model, REQUESTS, interventions).log_prob
    torch.testing.assert_close(score(model, REQUESTS, few).log_prob, every[:3], atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["GPT-NeoX", "GPT-Neo", "Llama"])
def test_choices_after_contexts_of_one_length(family):
    shape = Shape(family, 48, 4, heads=4, samples=3, vocabulary=640)
    model, interventions = build(shape), sweep(shape.blocks)
    contexts = samples(shape)[:, :20].tolist()  # not padded, and read once for all choices
    requests = [(each, [*range(k, k + 3)]) for each in contexts for k in range(4)]
    together = score(model, requests, interventions).log_prob
    alone = [score(model, [each], interventions).log_prob for each in requests]
    torch.testing.assert_close(together, torch.cat(alone, 1), atol=1e-4, rtol=0)
