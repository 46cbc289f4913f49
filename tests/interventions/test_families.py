"""Every family under every edit, token for token, against two oracles.

The plain loop carries out one intervention at a time, by names written down for each family. Where
a family uses transformers' AttentionInterface, a registered attention function is a second oracle
for identity attention.
"""

import pytest

from pipeline.interventions import complete, score
from pipeline.interventions.evaluation import Completions, Likelihoods
from tests.families import FAMILIES, NOT_ADDITIVE, OWN_ATTENTION, cases, tiny
from tests.interventions.cases import (
    IDENTITIES,
    MAX_LENGTH,
    SAMPLES,
    SUFFIX,
    assert_same_completions,
    assert_same_scores,
    baseline_of,
    half_remembered,
    interventions,
    multiple_choice,
    right_tokens,
    rolling,
    rounding,
    unchanged,
)
from tests.oracle import plain
from tests.oracle.attention import identity_weights


@pytest.mark.parametrize("family", cases(FAMILIES))
def test_completions_are_those_of_the_plain_loop_and_of_identity_weights(family):
    model, listed = tiny(family), interventions(family)
    tokens, tolerance = half_remembered(model), rounding(model)
    with unchanged(model):
        ours = complete(model, tokens, SUFFIX, listed)
    expected = plain.complete(model, tokens, SUFFIX, listed, SAMPLES)
    assert_same_completions(ours, expected, tolerance)
    base = baseline_of(listed)
    moved = (expected.continuation != expected.continuation[base]).any(-1).float().mean()
    assert moved > (0.3 if family in NOT_ADDITIVE else 0.7), "interventions matter in this model"
    right = right_tokens(expected, tokens)
    assert set(right[base].tolist()) == set(range(SUFFIX + 1)), "rows go wrong everywhere"
    if family not in OWN_ATTENTION:
        own = [listed.index(each) for each in IDENTITIES]
        options = {"batch_size": SAMPLES, "edited": identity_weights}
        explicit = plain.complete(model, tokens, SUFFIX, IDENTITIES, **options)
        ours = Completions(**{name: x[own] for name, x in ours.tensors().items()})
        assert_same_completions(ours, explicit, tolerance)


@pytest.mark.parametrize("family", cases(FAMILIES))
def test_scores_are_the_plain_loops(family):
    model, listed = tiny(family), interventions(family)
    requests = [*multiple_choice(), *rolling()]
    calibration = half_remembered(model)
    options = {"max_length": MAX_LENGTH, "calibration_tokens": calibration}
    ours = score(model, requests, listed, **options)
    expected = plain.score(model, requests, listed, len(requests), **options)
    assert_same_scores(ours, expected, rounding(model))
    base = baseline_of(listed)
    moved = (expected.log_prob - expected.log_prob[base]).abs() > 20 * rounding(model) * MAX_LENGTH
    assert moved.float().mean() > 0.5, "ten times what may differ"
    if family not in OWN_ATTENTION:
        own = [listed.index(each) for each in IDENTITIES]
        options = {"max_length": MAX_LENGTH, "edited": identity_weights}
        explicit = plain.score(model, requests, IDENTITIES, len(requests), **options)
        ours = Likelihoods(**{name: x[own] for name, x in ours.tensors().items()})
        assert_same_scores(ours, explicit, rounding(model))
