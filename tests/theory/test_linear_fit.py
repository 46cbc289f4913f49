"""The affine fit of each block's MLP is that of least squares, and says how good it is."""

import copy

import pytest
import torch

from pipeline.models.sites import anatomy
from pipeline.theory import linear_fit
from pipeline.theory.parts import Described
from pipeline.workflow.errors import InputError


@torch.inference_mode()
def test_the_fit_is_that_of_least_squares(model):
    described = Described(copy.deepcopy(model).double())
    tokens = torch.randint(1, 61, (40, 20), generator=torch.Generator().manual_seed(7))
    both = linear_fit.fit(described, tokens, range(40))[0]
    states, block = described.embed(tokens), described.block(0)
    read = states if block.parallel else states + block.mixed(block.attend(states, 20))
    held_out = torch.arange(40) % 5 == 4
    for fit, u in ((both.stream, read), (both.normalized, block.mlp_norm(read))):
        ones = torch.ones(40, 20, 1).double()
        design, made = torch.cat([u, ones], -1), block.feed_forward(read)
        solution = torch.linalg.lstsq(
            design[~held_out].flatten(0, 1), made[~held_out].flatten(0, 1)
        )
        if u is read:  # after the norm, the dimensions sum to nearly nothing: W is not unique
            torch.testing.assert_close(fit.weight, solution.solution[:-1].T, rtol=1e-3, atol=1e-4)
        errors = (made - design @ solution.solution)[held_out].square().sum()
        whole = made[held_out].flatten(0, 1)
        r_squared = 1 - errors / (whole - whole.mean(0)).square().sum()
        assert fit.r_squared == pytest.approx(r_squared.item(), abs=1e-3)
        assert fit.norm == pytest.approx(torch.linalg.matrix_norm(fit.weight, 2).item())


@torch.inference_mode()
def test_single_precision_fits_what_double_precision_fits(model):
    """After the norm one direction has no variance, and rounding must not become one."""
    tokens = torch.randint(1, 61, (100, 20), generator=torch.Generator().manual_seed(7))
    single, double = (
        linear_fit.fit(Described(each), tokens, range(100))
        for each in (model, copy.deepcopy(model).double())
    )
    for ours, exact in zip(single, double, strict=True):
        assert ours.normalized.norm == pytest.approx(exact.normalized.norm, rel=0.01)
        assert ours.stream.norm == pytest.approx(exact.stream.norm, rel=0.01)


@torch.inference_mode()
def test_no_more_tokens_are_fitted_than_needed(neox, monkeypatch):
    monkeypatch.setattr(linear_fit, "MOST_TOKENS", 1)
    solve, fitted = linear_fit._solve, []
    monkeypatch.setattr(
        linear_fit, "_solve", lambda sums, other: fitted.append(sums.count) or solve(sums, other)
    )
    linear_fit.fit(Described(neox), torch.ones(30, 14, dtype=torch.int64), range(30))
    assert all(32 <= count < 60 for count in fitted)


@torch.inference_mode()
def test_tokens_that_are_all_alike_give_a_map_of_zero(neox):
    fit = linear_fit.fit(Described(neox), torch.ones(3, 1, dtype=torch.int64), range(3))[0].stream
    assert fit.norm < 1e-3
    assert fit.identity_plus == pytest.approx(1, abs=1e-3)
    assert fit.r_squared is None


@torch.inference_mode()
def test_the_sample_that_is_not_finite_is_named(neox):
    model = copy.deepcopy(neox)
    anatomy(model)  # found before the weights break, and kept
    model.gpt_neox.embed_in.weight.data[7] = torch.inf
    tokens = torch.ones(9, 4, dtype=torch.int64)
    tokens[6, 2] = 7
    with pytest.raises(InputError, match="sample 106"):
        linear_fit.fit(Described(model), tokens, range(100, 109))
