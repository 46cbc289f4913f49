"""Models of every odd shape with any interventions, against the plain loop."""

import random

import pytest
import torch
import transformers
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from pipeline.interventions import complete, score
from pipeline.interventions.interventions import bypass
from tests.oracle import plain

NEAR_TIE = 1e-4  # where float32 cannot be trusted to choose
WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)


@pytest.fixture(autouse=True)
def _quiet():
    """No warning about each odd configuration."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def drawn(data, odd_cases):
    """A model and interventions, one on every block; no window of one, which is an identity."""
    model, interventions = data.draw(odd_cases)
    assume(getattr(model.config, "window_size", 2) > 1)
    return model, [*interventions, bypass("every", range(model.config.num_hidden_layers))]


@given(
    data=st.data(),
    n=st.integers(1, 4),
    prefix=st.integers(1, 9),
    suffix=st.integers(1, 7),
    batch_size=st.sampled_from([None, 1, 2]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=40, phases=WITHOUT_SHRINKING)
def test_completions(odd_cases, data, n, prefix, suffix, batch_size, seed):
    model, interventions = drawn(data, odd_cases)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.config.vocab_size, (n, prefix + suffix), generator=generator)
    own = plain.complete(model, tokens, suffix, interventions[:1], n).continuation[0]
    wrong = torch.rand(own.shape, generator=generator) < 0.2
    tokens[:, prefix:] = tokens[:, prefix:].where(wrong, own)
    tokens = torch.cat([tokens, tokens[:1]])
    ours = complete(model, tokens, suffix, interventions, batch_size)
    expected = plain.complete(model, tokens, suffix, interventions, n + 1)
    sure = expected.min_margin > NEAR_TIE
    assert torch.equal(ours.continuation[sure], expected.continuation[sure])
    for name in ("completion_entropy", "suffix_log_prob"):
        torch.testing.assert_close(getattr(ours, name), getattr(expected, name), rtol=0, atol=1e-4)


@given(
    data=st.data(),
    questions=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4),
    max_length=st.sampled_from([None, 6]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=25, phases=WITHOUT_SHRINKING)
def test_scores(odd_cases, data, questions, max_length, seed):
    """`questions` are the lengths of the choices of each."""
    model, interventions = drawn(data, odd_cases)
    source = random.Random(seed)
    contexts = [source.choices(range(23), k=source.randint(1, 11)) for _ in questions]
    requests = [
        (context, source.choices(range(23), k=length))
        for context, lengths in zip(contexts, questions, strict=True)
        for length in lengths
    ]
    # a context of another length, so that there is padding
    requests += [([1] * 12, [2, 3]), ([1] * 12, [4, 5]), ([1, 2], [2, 3])]
    ours = score(model, requests, interventions, max_length=max_length)
    expected = plain.score(model, requests, interventions, 2, max_length=max_length)
    torch.testing.assert_close(ours.log_prob, expected.log_prob, rtol=0, atol=1e-4)
