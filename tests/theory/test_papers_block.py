"""The theorems as printed, on the paper's own toy block: what holds, and what does not follow."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.theory import bounds


class Toy:
    """The paper's block: z_n = x_n + sum_i alpha_i x_i, v = z + F(z); one head, nothing else."""

    def __init__(self, weights, mlp=lambda z: 0 * z):
        self.weights = weights  # (n, n) rows, or a function of the states
        self.mlp = mlp

    def alpha(self, x):
        return self.weights(x) if callable(self.weights) else torch.tensor(self.weights).to(x)

    def __call__(self, x, bypassed=False):
        z = x + (x if bypassed else self.alpha(x) @ x)
        return z + self.mlp(z)


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def changes(first, second, x):
    """||D|| right after the first, and one block on; bypassed the first, then the second."""
    plain = first(x)
    early = first(x, bypassed=True)
    whole = second(plain)
    near, far, late = early - plain, second(early) - whole, second(plain, bypassed=True) - whole
    return tuple(each[-1].norm() for each in (near, far, late))


@given(
    seed=st.integers(0, 999),
    tokens=st.integers(1, 6),
    width=st.integers(1, 5),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
)
@settings(deadline=None)
def test_theorem_1_holds_for_the_papers_own_block(seed, tokens, width, scale):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, width, generator=generator, dtype=torch.float64) * scale
    alpha = torch.randn(tokens, tokens, generator=generator, dtype=torch.float64).softmax(-1)
    linear, bent = torch.randn(2, width, width, generator=generator, dtype=torch.float64)
    block = Toy(lambda _: alpha, lambda z: (z @ bent).relu())
    change = (block(x, bypassed=True) - block(x))[-1].norm()
    z = torch.stack([x[-1] + alpha[-1] @ x, 2 * x[-1]])
    epsilon = (block.mlp(z) - z @ linear.T).diff(dim=0).norm(dim=-1)
    bound = bounds.theorem_1_printed(
        bounds.spread(x[None]), alpha[-1:, -1], bounds.operator_norm(linear), epsilon
    )
    assert change <= bound * (1 + 1e-9) + 1e-12


def test_earlier_is_not_larger_though_both_bounds_hold_with_equality():
    """Two tokens, no MLP: only the last row can change, and the weights stay as they are."""
    x = column(0.0, 1.0)
    first, second = Toy([[1.0, 0.0], [0.5, 0.5]]), Toy([[1.0, 0.0], [0.75, 0.25]])
    near, far, late = changes(first, second, x)
    torch.testing.assert_close(far, bounds.theorem_2_printed(near, torch.tensor(0.25).double(), 0))
    spread = bounds.spread(first(x)[None])
    quarter = torch.tensor([0.25]).double()
    torch.testing.assert_close(
        late[None], bounds.theorem_1_printed(spread, quarter, 0, torch.zeros(1).double())
    )
    assert late > 1.5 * far


def test_a_change_need_not_grow_from_block_to_block():
    half = Toy([[1.0, 0.0], [0.5, 0.5]], lambda z: -0.9 * z)
    near, far, _ = changes(half, half, column(0.0, 1.0))
    assert far < 0.2 * near


@pytest.mark.parametrize("slope", [0.0, 2.0], ids=["tangent", "least-squares-of-both-halves"])
def test_theorem_2_needs_its_epsilon(slope):
    """An MLP 4 relu(z - 2) whose kink lies where the last token is: to the left of it, W = 0."""
    bent = Toy([[1.0, 0.0], [0.0, 1.0]], lambda z: 4 * (z - 2).relu())
    first, x = Toy([[1.0, 0.0], [0.5, 0.5]]), column(0.0, 2 / 3)
    near, far, _ = changes(first, bent, x)
    one = torch.ones(()).double()
    printed = bounds.theorem_2_printed(near, one, slope)
    z = 2 * torch.stack([first(x)[-1], first(x, bypassed=True)[-1]])
    epsilon = (bent.mlp(z) - slope * z).diff(dim=0).norm()
    assert far > printed * 1.2
    assert far <= printed + epsilon + 1e-12


def theorem_2_of(first, second, x):
    """The corrected bound, with M = I and no MLP."""
    plain, early = first(x), first(x, bypassed=True)
    weights = torch.stack([second.alpha(each)[-1] for each in (plain, early)])[:, None, None]
    eye = torch.ones(1, 1, 1).double()
    near = (early - plain)[-1].norm()[None]
    values = plain[None, :, None], early[None, :, None]
    fine = bounds.mixture_bound(weights, *values, eye)
    coarse = bounds.mixture_bound_coarse(weights, plain[None], early[None], eye[0, 0])
    nothing = torch.zeros(1).double()
    return [bounds.theorem_2(near, each, 1.0, nothing, False).item() for each in (fine, coarse)]


def test_theorem_2_as_printed_forgets_that_every_token_changes():
    """The last token attends to itself, so it stays; the one before it changes, and is read."""
    first = Toy([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    second = Toy([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    x = column(0.0, 1.0, 2.0)
    near, far, _ = changes(first, second, x)
    assert near == 0
    assert bounds.theorem_2_printed(near, torch.zeros(()).double(), 0) == 0
    assert far == 0.5
    assert all(each >= far for each in theorem_2_of(first, second, x))


def test_theorem_2_as_printed_forgets_that_attention_changes():
    """The last token looks at the other one if it is above 1.55, and at itself if it is below."""

    def looks(x):
        other = torch.sigmoid(1000 * (x[-1, 0] - 1.55))
        return torch.stack([column(1.0, 0.0)[:, 0], torch.stack([other, 1 - other])])

    first, x = Toy([[1.0, 0.0], [0.01, 0.99]]), column(-9.5, 0.8)
    second = Toy(looks)
    near, far, _ = changes(first, second, x)
    own = second.alpha(first(x))[-1, -1]
    assert far > 10 * bounds.theorem_2_printed(near, own, 0)
    assert all(each >= far for each in theorem_2_of(first, second, x))
