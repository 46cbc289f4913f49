"""Tries until a suffix is seen: against high precision, and against sampling itself."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from transformers import PreTrainedModel, TopKLogitsWarper

from pipeline.interventions import complete
from pipeline.interventions.interventions import BASELINE
from pipeline.measure.extraction import log_tries, out_within
from pipeline.measure.metrics import Completed, computed

LOG_PROBS = (-1e-300, -1e-12, -0.01, -0.5, -math.log(2), -1.0, -20.0, -36.9, -37.1, -100.0, -2000.0)


def exactly(log_prob: float, probability: float) -> float:
    """The logarithm of the number of tries, with a thousand digits."""
    with localcontext() as context:
        context.prec = 1000
        p = Decimal(log_prob).exp()
        tries = (1 - Decimal(probability)).ln() / (1 - p).ln()
        return max(0.0, float(tries.ln()))


@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("log_prob", LOG_PROBS)
def test_tries_are_right_to_the_last_digits(log_prob: float, probability: float) -> None:
    found = log_tries(np.array([log_prob]), probability)
    np.testing.assert_allclose(found, [exactly(log_prob, probability)], rtol=1e-13, atol=1e-13)


def test_nothing_underflows() -> None:
    """A float64 holds neither e⁻²⁰⁰⁰ nor 1 less that; what is twice as rare takes twice as long."""
    rare = log_tries(np.array([-2000.0, -2000.0 - math.log(2), -math.inf]))
    assert rare[0] == pytest.approx(2000 + math.log(math.log(2)), rel=1e-15)
    assert rare[1] - rare[0] == pytest.approx(math.log(2))
    assert rare[2] == math.inf
    assert np.all(np.diff(log_tries(-np.geomspace(1e-3, 5000, 2000))) >= 0)


def test_a_sure_suffix_takes_one_try() -> None:
    sure = np.array([0.0, 1e-9, math.log(0.5), math.log(0.49)])
    assert log_tries(sure)[:3].tolist() == [0, 0, 0]
    assert out_within(sure, 1).tolist() == [True, True, True, False]
    assert out_within(np.array([-math.inf, -2000.0, -14.0]), 10**6).tolist() == [False, False, True]


PREFIX, SUFFIX, DRAWS, PREFIXES, EACH = 5, 3, 20_000, 12, 5


@torch.inference_mode()
def sampled(
    model: PreTrainedModel, prefixes: Tensor, top_k: int | None, draws: int, seed: int
) -> Tensor:
    """(N, draws, S) continuations of prefixes (N, P), drawn token by token by a plain loop."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for prefix in prefixes:
        row = prefix.expand(draws, -1)
        for _ in range(SUFFIX):
            known, of = row.unique(dim=0, return_inverse=True)  # each is read once
            logits = torch.cat([model(x).logits[:, -1] for x in known.split(4096)]).double()
            if top_k is not None:
                logits = TopKLogitsWarper(top_k)(known, logits)
            chosen = torch.multinomial(logits.softmax(-1)[of], 1, generator=generator)
            row = torch.cat([row, chosen], 1)
        found.append(row[:, PREFIX:])
    return torch.stack(found)


@pytest.mark.parametrize(
    ("top_k", "metric"), [(None, "suffix_log_prob"), (40, "suffix_log_prob_top_40")]
)
def test_suffixes_come_out_as_often_as_computed(
    trained: PreTrainedModel, memorized: Tensor, top_k: int | None, metric: str
) -> None:
    """The computed p of up to 60 suffixes lies in the binomial intervals of what is observed.

    The intervals are exact (Clopper and Pearson) and hold all together with 99%. Suffixes are
    chosen from a sample of their own, so that what is observed is not what they were chosen by.
    """
    generator = torch.Generator().manual_seed(0)
    prefixes = memorized[torch.arange(PREFIXES) % len(memorized), :PREFIX]
    noise = torch.randint(1, 61, prefixes.shape, generator=generator)
    prefixes = torch.where(torch.rand(prefixes.shape, generator=generator) < 0.3, noise, prefixes)
    numbers, suffixes = [], []
    for n, drawn in enumerate(sampled(trained, prefixes, top_k, 400, seed=1)):
        kinds, counts = drawn.unique(dim=0, return_counts=True)
        order = counts.argsort(descending=True)  # from frequent to rare, spread evenly
        some = order[torch.linspace(0, len(order) - 1, EACH).long().unique()]
        numbers += [n] * len(some)
        suffixes += list(kinds[some])
    tokens = torch.cat([prefixes[numbers], torch.stack(suffixes)], 1)
    made = complete(trained, tokens, SUFFIX, [BASELINE])
    said = {name: each.numpy() for name, each in made.tensors().items() if name != "min_margin"}
    p = np.exp(computed(Completed(tokens[:, PREFIX:].numpy(), **said))[metric][0])
    judged = np.nonzero((p > 1e-4) & (p < 1))[0]
    assert len(judged) >= 30
    assert p[judged].max() > 0.1
    assert p[judged].min() < 0.01

    seen = sampled(trained, prefixes, top_k, DRAWS, seed=2)
    for i in judged:
        count = int((seen[numbers[i]] == suffixes[i]).all(-1).sum())
        ends = stats.binomtest(count, DRAWS).proportion_ci(1 - 0.01 / len(judged))
        assert ends.low <= p[i] <= ends.high, (i, count / DRAWS, p[i])
