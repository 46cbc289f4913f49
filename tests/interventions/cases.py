"""Inputs for the engine and its oracles, and the comparison of what they return.

Shapes: V interventions, N samples, P prefix and S suffix tokens, R requests.
"""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pipeline.interventions import Group, Intervention, sweep
from pipeline.interventions.evaluation import Completions, Likelihoods, Request
from tests.families import BLOCKS, NOT_ADDITIVE, VOCABULARY
from tests.oracle import plain

PREFIX, SUFFIX, SAMPLES = 9, 6, 8
MAX_LENGTH = 30

IDENTITIES = (
    *sweep(BLOCKS, [Group("each"), Group("quartiles"), Group((1, 3)), Group((0, 1, 2, 3, 4))]),
    *sweep(BLOCKS, [Group((1, 3), "heads", heads=(0, 2)), Group((4,), "heads", heads=(3,))])[1:],
)
"""Interventions whose edits are identity attention alone, in whole blocks or in some heads."""

_SKIPS = (
    *sweep(BLOCKS, [Group((0,), "skip"), Group("last", "skip", k=2)])[1:],
    Intervention("skip-then-identity", {1: "skip", 3: "identity"}),
)
_PLACES = {"zero": (2,), "mean": (1,), "mlp-zero": (3,), "mlp-mean": (2,), "noise": (0, 4)}
_ADDITIONS = (
    *sweep(BLOCKS, [Group(blocks, edit) for edit, blocks in _PLACES.items()])[1:],
    Intervention("mixed", {0: "mean", 1: "heads", 2: "zero", 3: "skip", 4: "noise"}, (1,), 7),
    Intervention("mlps", {1: "mlp-mean", 2: "identity", 4: "mlp-zero"}),
)


def interventions(family: str) -> list[Intervention]:
    """All kinds of edits that a family has a place for; the baseline is not the first."""
    found = [*IDENTITIES, *_SKIPS, *(() if family in NOT_ADDITIVE else _ADDITIONS)]
    return [*found[3:], *found[:3]]


def baseline_of(listed: list[Intervention]) -> int:
    """Where the baseline stands."""
    return next(v for v, each in enumerate(listed) if not each.edits)


def random_tokens(
    n: int, length: int = PREFIX + SUFFIX, seed: int = 0, low: int = 4, high: int = VOCABULARY
) -> Tensor:
    """Rows (n, length) of tokens from `low` to `high` - 1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (n, length), generator=generator)


@contextmanager
def unchanged(model: Any) -> Iterator[None]:
    """Asserts that afterwards every weight is bit for bit as before, and that no hook is left."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    yield
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def half_remembered(model: Any, n: int = SAMPLES) -> Tensor:
    """Samples (n, P+S) whose suffix is the model's own, with an error at another place in each.

    So rows of the baseline go wrong at every place, at the last token, and nowhere.
    """
    tokens = random_tokens(n)
    baseline = [Intervention("baseline", {})]
    tokens[:, PREFIX:] = plain.complete(model, tokens, SUFFIX, baseline, n).continuation[0]
    for i in range(n):
        if (place := i % (SUFFIX + 1)) < SUFFIX:
            tokens[i, PREFIX + place] = 4 + (tokens[i, PREFIX + place] + 1) % (VOCABULARY - 4)
    return tokens


def right_tokens(found: Completions, tokens: Tensor) -> Tensor:
    """How many tokens of each continuation (V, N) are right before the first wrong one."""
    return (found.continuation == tokens[:, -SUFFIX:]).long().cumprod(-1).sum(-1)


def multiple_choice() -> list[Request]:
    """Questions of different lengths with four choices each, of one token and of several."""
    source = random.Random(0)
    requests: list[Request] = []
    for length in (3, 12, 7, 12):
        context = _text(source, length)
        requests += [(context, _text(source, choice)) for choice in (1, 2, 5, 1)]
    shared = _text(source, 3)  # choices that begin alike
    requests += [(_text(source, 5), [*shared, source.randrange(VOCABULARY)]) for _ in range(3)]
    return [*requests, requests[0]]


def rolling() -> list[Request]:
    """Long windows, two of which lose tokens on the left at `MAX_LENGTH`."""
    source = random.Random(1)
    windows = [([0], _text(source, MAX_LENGTH)), ([0], _text(source, 17))]
    return [*windows, (_text(source, 40), _text(source, 8)), (_text(source, 24), _text(source, 9))]


def _text(source: random.Random, length: int) -> list[int]:
    return [source.randrange(VOCABULARY) for _ in range(length)]


@torch.inference_mode()
def rounding(model: Any) -> float:
    """What rounding may do to a logit: 64 units in the last place of the largest.

    A logit goes through some ten roundings in each of five blocks, which add up like a random walk.
    """
    tokens = torch.arange(VOCABULARY)[None, : PREFIX + SUFFIX]
    largest = float(model(tokens, use_cache=False).logits.float().abs().max())
    return 64 * torch.finfo(model.dtype).eps * largest


def assert_same_completions(ours: Completions, expected: Completions, tolerance: float) -> None:
    """Every clear choice of a token equal, the numbers close; a logit may differ by `tolerance`."""
    sure = expected.min_margin > 2 * tolerance
    assert sure.float().mean() > 0.9, "nearly all choices should be clear"
    assert torch.equal(ours.continuation[sure], expected.continuation[sure])
    assert torch.equal(ours.teacher_forced, expected.teacher_forced)
    for name, atol in {
        "min_margin": 2 * tolerance,
        "suffix_log_prob": 2 * tolerance * SUFFIX,
        # the entropy's slope in a logit is at most p (|log p| + entropy)
        "completion_entropy": 2 * tolerance * SUFFIX * math.log(VOCABULARY),
    }.items():
        left, right = getattr(ours, name)[sure], getattr(expected, name)[sure]
        torch.testing.assert_close(left, right, rtol=0, atol=atol)
    wide = 4 * tolerance * math.log(VOCABULARY)
    off = (ours.spread[sure].double() - expected.spread[sure].double()).abs()
    assert off.max() <= wide
    # a rank is a matter of rounding where two logits of the tail nearly tie
    assert (ours.rank == expected.rank).float().mean() > 0.98
    kept = ours.log_prob_top_40.isfinite() & expected.log_prob_top_40.isfinite()
    assert (kept == ours.log_prob_top_40.isfinite()).float().mean() > 0.98
    left, right = ours.log_prob_top_40[kept], expected.log_prob_top_40[kept]
    assert ((left - right).abs() <= 2 * tolerance).float().mean() > 0.98


def assert_same_scores(ours: Likelihoods, expected: Likelihoods, tolerance: float) -> None:
    """Log-likelihoods close, where a logit may differ by `tolerance`; the same ones greedy."""
    assert torch.equal(ours.is_greedy, expected.is_greedy)
    torch.testing.assert_close(
        ours.log_prob, expected.log_prob, rtol=0, atol=2 * tolerance * MAX_LENGTH
    )
