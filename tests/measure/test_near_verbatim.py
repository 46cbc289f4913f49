"""Bounds on near-verbatim mass: against enumeration, sampling, and what must hold of any bound."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from pipeline.interventions import Intervention, complete, patch
from pipeline.interventions.interventions import BASELINE
from pipeline.measure.near_verbatim import bounds
from pipeline.workflow.errors import InputError
from tests.families import FAMILIES
from tests.families import VOCABULARY as VOCABULARY_OF_FAMILIES
from tests.measure.sampling import agrees, distances, drawn
from tests.oracle import plain

VOCABULARY, PREFIX, SUFFIX, D = 12, 3, 6, 2
EDITS = (
    BASELINE,
    Intervention("block-01", {1: "identity"}),
    Intervention("both", {0: "zero", 1: "identity"}),
)
NONE = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}


@pytest.fixture(scope="module")
def small():
    """A model that is sure of some tokens, so that the bounds have something to find."""
    torch.manual_seed(3)
    config = GPTNeoXConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, **NONE,
    )  # fmt: skip
    model = GPTNeoXForCausalLM(config).eval()
    for weight in model.parameters():
        weight.data.mul_(6 if weight.ndim > 1 else 1)
    return model


@pytest.fixture(scope="module")
def tokens(small) -> Tensor:
    """Suffixes that the model is likely to write, and one that it isn't."""
    prefixes = torch.tensor([[1, 5, 3], [4, 4, 9], [7, 0, 11]])
    text = complete(small, torch.nn.functional.pad(prefixes, (0, SUFFIX)), SUFFIX, EDITS[:1])
    written = torch.cat([prefixes, text.continuation[0]], 1)
    written[1, PREFIX + 2] = (written[1, PREFIX + 2] + 1) % VOCABULARY
    written[2, PREFIX:] = torch.tensor([2, 2, 6, 2, 8, 1])
    return written


def their_mass(model, prefix: Tensor, length: int, drawn_from: tuple) -> list[np.ndarray]:
    """(12^length,) for each k: the probability of each suffix, from the plain model's logits."""
    masses = [np.ones(1) for _ in drawn_from]
    for t in range(length):
        starts = torch.tensor(list(product(range(VOCABULARY), repeat=t))).long()
        rows = torch.cat([prefix.expand(len(starts), -1), starts.view(len(starts), -1)], 1)
        logits = torch.cat([model(part).logits[:, -1].double() for part in rows.split(16384)])
        order = logits.sort(-1, descending=True).values
        for number, top_k in enumerate(drawn_from):
            cut = logits.masked_fill(logits < order[:, (top_k or 0) - 1, None], -torch.inf)
            masses[number] = (masses[number][:, None] * cut.softmax(-1).numpy()).ravel()
    return masses


@pytest.mark.parametrize("length", [4, pytest.param(SUFFIX, marks=pytest.mark.slow)])
def test_every_suffix_enumerated(small, tokens, length) -> None:
    suffixes = np.indices((VOCABULARY,) * length).reshape(length, -1).T
    rows, drawn_from, spread = tokens[1:, : PREFIX + length], (5, None), []
    found = {
        (distance, k, width): bounds(
            small, rows, length, D, width, distance=distance, top_k=k, interventions=EDITS
        )
        for distance in ("hamming", "levenshtein")
        for k in drawn_from
        for width in (1, 6, 40, 10**6)
    }
    for v, edit in enumerate(EDITS):
        for n, row in enumerate(rows):
            with torch.inference_mode(), plain.bypassed(small, edit):
                masses = their_mass(small, row[:PREFIX], length, drawn_from)
            z = row[PREFIX:].numpy()
            away = distances(suffixes, z)
            for (distance, k, width), (lower, upper) in found.items():
                mass = masses[drawn_from.index(k)]
                truth = np.array([mass[away[distance] <= d].sum() for d in range(D + 1)])
                assert (lower[v, n].numpy() <= truth + 1e-6).all()
                assert (truth <= upper[v, n].numpy() + 1e-6).all()
                assert truth[0] == pytest.approx(float(lower[v, n, 0]), rel=1e-4)
                assert float(lower[v, n, 0]) == float(upper[v, n, 0])
                if width == 10**6:  # nothing is pruned but what has left the ball
                    np.testing.assert_allclose(lower[v, n], truth, rtol=1e-4)
                    np.testing.assert_allclose(upper[v, n], truth, rtol=1e-4)
                spread.append(float(upper[v, n, D] - lower[v, n, D]))
    assert max(spread) > 0.01  # the narrow beams do prune
    narrow, wide = (found["hamming", 5, width] for width in (1, 40))
    assert (wide.upper - wide.lower).sum() < (narrow.upper - narrow.lower).sum()


@pytest.mark.parametrize("distance", ["hamming", "levenshtein"])
def test_the_bounds_are_monotone_and_in_range(small, tokens, distance) -> None:
    lower, upper = bounds(small, tokens, SUFFIX, 4, 3, distance=distance, interventions=EDITS)
    assert lower.shape == upper.shape == (3, 3, 5)
    assert lower.dtype == upper.dtype == torch.float64
    for each in (lower, upper):
        assert (each.diff(dim=-1) >= 0).all()
    assert ((lower >= 0) & (lower <= upper) & (upper <= 1 + 1e-12)).all()
    more = bounds(small, tokens, SUFFIX, SUFFIX, 3, distance=distance).upper
    torch.testing.assert_close(more[..., -1], torch.ones(1, 3, dtype=torch.float64))


def test_distance_zero_is_the_probability_that_memorization_reports(small, tokens) -> None:
    """Under edits of all positions and of some."""
    some = [
        Intervention(each, {0: "zero", 1: "identity"}, positions=each)
        for each in ("prefix", "suffix", "last")
    ]
    for edits in (EDITS, *([each] for each in some)):
        expected = complete(small, tokens, SUFFIX, edits, decode=False).suffix_log_prob
        for top_k in (None, 40):  # the vocabulary is smaller
            lower, upper = bounds(small, tokens, SUFFIX, 0, 4, top_k=top_k, interventions=edits)
            torch.testing.assert_close(lower[..., 0].log(), expected, atol=1e-4, rtol=0)
            assert torch.equal(lower, upper)


def test_a_patch_is_refused(small, tokens) -> None:
    patched = [Intervention("patched", {0: "zero", 1: patch("baseline")})]
    with pytest.raises(InputError, match=r"got: +a patch\n +expected: edits without"):
        bounds(small, tokens, SUFFIX, 1, 4, interventions=patched)


def test_top_40_of_a_larger_vocabulary_and_of_several_edits() -> None:
    torch.manual_seed(0)
    model = FAMILIES["llama"]().eval()
    rows = torch.randint(97, (5, 11), generator=torch.Generator().manual_seed(1))
    edits = [BASELINE, Intervention("two", {1: "identity", 3: "skip"})]
    completed = complete(model, rows, 4, edits, decode=False)
    expected = completed.log_prob_top_40.double().sum(-1).exp()
    for distance in ("hamming", "levenshtein"):
        found = bounds(model, rows, 4, 2, 7, distance=distance, interventions=edits)
        alone = bounds(model, rows, 4, 2, 7, distance=distance, interventions=edits, token_budget=1)
        torch.testing.assert_close(found.lower[..., 0], expected, rtol=1e-4, atol=0)
        torch.testing.assert_close(tuple(alone), tuple(found), rtol=1e-3, atol=1e-15)


def test_equal_logits_for_the_last_place_are_all_drawn_from() -> None:
    """All logits are equal, so top-k with any k draws from the whole vocabulary."""
    model = FAMILIES["gpt_neox"]().eval()
    model.get_output_embeddings().weight.data.zero_()
    rows, one = torch.arange(5)[None], VOCABULARY_OF_FAMILIES**-3
    ball = (1 + 3 * (VOCABULARY_OF_FAMILIES - 1)) * one
    for top_k in (2, None):
        lower, upper = bounds(model, rows, 3, 1, 1000, top_k=top_k)
        assert float(lower[0, 0, 0]) == pytest.approx(one)
        assert float(upper[0, 0, 1]) == pytest.approx(ball)
    assert float(lower[0, 0, 1]) == pytest.approx(ball)


def test_sampling_agrees(small, tokens) -> None:
    row = tokens[0]
    torch.manual_seed(0)
    for edit in EDITS:
        with plain.bypassed(small, edit):
            suffixes = drawn(small, row[:PREFIX], SUFFIX, 20_000, top_k=5)
        for distance, away in distances(suffixes, row[PREFIX:].numpy()).items():
            lower, upper = bounds(
                small, row[None], SUFFIX, D, 30, distance=distance, top_k=5, interventions=[edit]
            )
            for d in range(D + 1):
                assert agrees(away <= d, float(lower[0, 0, d]), float(upper[0, 0, d]))


@pytest.mark.parametrize(
    "wrong", [{"d": -1}, {"width": 0}, {"top_k": 0}, {"distance": "edit"}, {"suffix_length": 9}]
)
def test_what_is_out_of_range_is_refused(small, tokens, wrong) -> None:
    given = {"suffix_length": SUFFIX, "d": 1, "width": 2, **wrong}
    with pytest.raises(ValueError, match=r"expected|suffix of 9"):
        bounds(small, tokens, **given)


def test_no_samples_give_empty_tensors(small, tokens) -> None:
    assert bounds(small, tokens[:0], SUFFIX, 1, 2).lower.shape == (1, 0, 2)


def test_bounds_of_every_suffix_do_not_cross_by_rounding(small) -> None:
    """At a distance of the whole length the mass is 1, of which sums miss the last digit."""
    rows = torch.randint(VOCABULARY, (40, 4), generator=torch.Generator().manual_seed(0))
    lower, upper = bounds(small, rows, 2, 2, VOCABULARY**2, top_k=None)
    assert (lower <= upper).all()
    assert lower[..., 2] == pytest.approx(1)
