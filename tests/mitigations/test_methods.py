"""Every method against its definition, on models of two blocks."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from pipeline.mitigations import curvature, descent, pruning, schema
from pipeline.mitigations.matrices import last_matrices, mean_inputs, mlp_matrices
from pipeline.mitigations.methods import HALVINGS, METHODS, chosen_dose, edited, lowered
from pipeline.mitigations.rows import BATCH, Rows, log_probs, margins, recited
from pipeline.models.places import weight_of
from tests.mitigations.conftest import P, T, World, nll, two_blocks


def test_recited_is_what_greedy_decoding_gives(world: World) -> None:
    model = world.edited("wanda", 0.05)
    rows = Rows(torch.cat([world.forget.tokens, world.keep.tokens]), P)
    written = model.generate(
        rows.tokens[:, :P], max_new_tokens=T - P, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    expected = (written == rows.tokens).all(-1)
    assert recited(model, rows).equal(expected)
    assert 0 < expected.float().mean() < 1


def test_scores_of_rows(world: World) -> None:
    with torch.no_grad():
        found, margin = log_probs(world.model, world.forget), margins(world.model, world.forget)
        logits = world.model(input_ids=world.forget.tokens).logits
    assert float(-found.mean()) == pytest.approx(nll(world.model, world.forget), abs=1e-5)
    for row, token in ((0, P), (5, T - 1)):
        right = int(world.forget.tokens[row, token])
        others = [float(x) for v, x in enumerate(logits[row, token - 1]) if v != right]
        expected = float(logits[row, token - 1, right]) - max(others)
        assert float(margin[row, token - P]) == pytest.approx(expected, abs=1e-4)


def test_the_names_of_the_schema_are_the_methods() -> None:
    assert sorted(schema.NAMES) == sorted([*METHODS, "twin", "oracle"])
    assert all(len(m.doses) >= 5 for name, m in METHODS.items() if name != "none")
    assert all(list(m.doses) == sorted(set(m.doses)) for m in METHODS.values())


@pytest.mark.parametrize("name", METHODS)
def test_a_method_leaves_its_model_and_a_dose_of_zero_leaves_all(name: str, world: World) -> None:
    method = METHODS[name]
    before = copy.deepcopy(world.model.state_dict())
    write = method.prepare(world.model, world.forget, world.keep, 0)
    strong = 2 if method.whole else method.doses[-1]
    doses = (0, strong, strong)
    untouched, first, again = (edited(world.model, write, dose) for dose in doses)
    models = (world.model, untouched, first, again)
    with torch.no_grad():
        expected, same, one, other = (m(input_ids=world.forget.tokens).logits for m in models)
    assert same.equal(expected)
    assert one.equal(other)
    assert one.equal(expected) == (name == "none")
    assert all(value.equal(before[key]) for key, value in world.model.state_dict().items())
    assert type(first) is type(world.model)


NEURONS = ("neurons-activation", "neurons-gradients", "neurons-mask")
WEIGHTS = ("wanda", "obd", "balanced-subnet")


@pytest.mark.parametrize("name", [*NEURONS, *WEIGHTS])
def test_zeroed_as_many_as_the_dose_says(name: str, world: World) -> None:
    changed = world.edited(name, 0.25)
    if name in NEURONS:
        columns = torch.cat([m.weight.abs().sum(0) for m in last_matrices(changed)])
        assert int((columns == 0).sum()) == 32  # of 2 times 64
    else:
        for matrix in mlp_matrices(changed):
            assert int((matrix.weight == 0).sum()) == matrix.weight.numel() // 4


SELECTIVE = dict.fromkeys((*NEURONS, "coherent"), 0.1) | dict.fromkeys(WEIGHTS, 0.03)
SELECTIVE |= {"gradient-difference": 10, "npo": 10}


@pytest.mark.parametrize("name", SELECTIVE)
def test_shuffled_rows_make_a_method_useless(name: str, world: World) -> None:
    """Exchanged, the rows to keep suffer; mixed, neither suffers more than with the right rows."""

    def harm(forget: Rows, keep: Rows) -> float:
        write = METHODS[name].prepare(world.model, forget, keep, 0)
        changed = edited(world.model, write, SELECTIVE[name])
        return nll(changed, world.forget) - nll(changed, world.keep)

    mixed = Rows(torch.cat([world.forget.tokens[::2], world.keep.tokens[::2]]), P)
    other = Rows(torch.cat([world.forget.tokens[1::2], world.keep.tokens[1::2]]), P)
    right, shuffled = harm(world.forget, world.keep), harm(mixed, other)
    assert right > 0.1
    assert abs(shuffled) < right
    assert harm(world.keep, world.forget) < -0.1


@contextmanager
def one_weight_a_position(module: nn.Module, tokens: Tensor) -> Iterator[Tensor]:
    """The module with a weight of its own for each position of the tokens: (B, T, O, I)."""
    own = module.weight.detach().repeat(*tokens.shape, 1, 1).requires_grad_()
    forward, module.forward = module.forward, lambda x: torch.einsum("btoi,bti->bto", own, x)
    yield own
    module.forward = forward


def test_coupled_factors_are_the_partial_traces_of_the_fisher() -> None:
    """The Fisher is the sum of vec(G) vec(G)ᵀ, each G the gradient by the weight of a position."""
    model = two_blocks().double()
    tokens = torch.randint(0, 48, (2, 6), generator=torch.Generator().manual_seed(1))
    labels = torch.randint(0, 48, (2, 5), generator=torch.Generator().manual_seed(2))
    matrices = mlp_matrices(model)
    found = curvature.factors(model, matrices, tokens, labels)
    for at in (0, 2, 5):
        with one_weight_a_position(matrices[at], tokens) as own:
            logits = model(input_ids=tokens).logits[:, :-1]
        loss = -logits.log_softmax(-1).gather(-1, labels[..., None]).sum()
        [gradients] = torch.autograd.grad(loss, own)
        fisher = torch.einsum("btoi,btpj->oipj", gradients, gradients)
        traces = torch.einsum("oioj->ij", fisher), torch.einsum("oipi->op", fisher)
        for made, expected in zip(found[at], traces, strict=True):
            assert float((made - expected).norm() / expected.norm()) < 1e-4


def test_the_flat_block_is_deleted_and_nothing_else() -> None:
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 4, generator=random, dtype=torch.float64)
    basis = curvature.Basis(
        torch.linalg.qr(torch.randn(4, 4, generator=random, dtype=torch.float64)).Q,
        torch.linalg.qr(torch.randn(6, 6, generator=random, dtype=torch.float64)).Q,
    )
    left = weight - basis.whole(basis.block(weight, 0.5))
    before, after = (basis.outputs.T @ w @ basis.inputs for w in (weight, left))
    assert after[:3, :2].abs().max() < 1e-12
    after[:3, :2] = before[:3, :2]
    assert torch.allclose(before, after, atol=1e-12)


def test_flat_directions_are_those_of_least_curvature(world: World) -> None:
    of = world.model, mlp_matrices(world.model), world.keep, 3
    factors = curvature.eigenbases(*of, directions=lambda factor, _random: factor)
    for basis, (a, g) in zip(curvature.eigenbases(*of), factors, strict=True):
        for side, directions in ((a, basis.inputs), (g, basis.outputs)):
            along = (directions * (side @ directions)).sum(0)
            assert (along.diff() > -1e-4 * along.abs().max()).all()


def test_every_row_counts_once_in_the_factors(world: World) -> None:
    keep = Rows(world.keep.tokens.repeat(1 + 2 * BATCH // len(world.keep), 1), 1)
    matrices, random = mlp_matrices(world.model), torch.Generator().manual_seed(3)
    sums = [(0, 0)] * len(matrices)
    for tokens in keep.tokens.split(BATCH):
        with torch.no_grad():
            likely = world.model(input_ids=tokens).logits[:, :-1].softmax(-1)
        labels = torch.multinomial(likely.flatten(0, 1), 1, generator=random)
        made = curvature.factors(world.model, matrices, tokens, labels.view(likely.shape[:2]))
        sums = [(a + c, g + d) for (a, g), (c, d) in zip(sums, made, strict=True)]
    found = curvature.eigenbases(world.model, matrices, keep, 3, lambda factor, _random: factor)
    for basis, (a, g) in zip(found, sums, strict=True):
        torch.testing.assert_close(basis.inputs, a)
        torch.testing.assert_close(basis.outputs, g)


@pytest.mark.parametrize("name", ["noise", "random"])
def test_noise_has_the_norm_and_the_number_of_the_deletion(name: str, world: World) -> None:
    parts = {each: _changes(world.edited(each, 0.5), world.model) for each in (name, "kfac")}
    for made, deleted in zip(parts[name], parts["kfac"], strict=True):
        assert float(made.norm()) == pytest.approx(float(deleted.norm()), rel=1e-4)
        assert float((made - deleted).norm()) > float(deleted.norm()) / 2
        if name == "random":
            sides = [round(0.5 * size) for size in made.shape]
            assert int((made != 0).sum()) == math.prod(sides)


def _changes(changed: PreTrainedModel, model: PreTrainedModel) -> list[Tensor]:
    pairs = zip(mlp_matrices(changed), mlp_matrices(model), strict=True)
    return [(a.weight - b.weight).detach() for a, b in pairs]


def test_the_coherent_step_lowers_the_margins_within_the_flat_block(world: World) -> None:
    write = curvature.coherent(world.model, world.forget, world.keep, 0)
    matrices = mlp_matrices(world.model)
    steps = _changes(edited(world.model, write, 1e-4), world.model)
    whole = math.sqrt(sum(float(m.weight.detach().square().sum()) for m in matrices))
    assert math.sqrt(sum(float(s.square().sum()) for s in steps)) == pytest.approx(
        1e-4 * whole, rel=1e-2
    )
    bases = curvature.eigenbases(world.model, matrices, world.keep, 0)
    for step, basis in zip(steps, bases, strict=True):
        inside = basis.whole(basis.block(step, curvature.COHERENT_SHARE))
        assert float((step - inside).norm()) < 1e-2 * float(step.norm())
    with torch.no_grad():
        after = margins(edited(world.model, write, 1e-3), world.forget).mean()
        assert after < margins(world.model, world.forget).mean()


def test_wanda_and_obd_by_loops(world: World) -> None:
    matrices = mlp_matrices(world.model)
    rows = world.forget[:3]
    squares = mean_inputs(world.model, rows, matrices, torch.square)
    fisher = pruning.fisher_diagonal(world.model, rows, matrices)
    seen: list[Tensor] = []
    hook = matrices[2].register_forward_hook(lambda _m, args, _r: seen.append(args[0]))
    world.model(input_ids=rows.tokens)
    hook.remove()
    scored = seen[0][:, P - 1 : -1].flatten(0, 1)
    assert torch.allclose(squares[2], scored.square().mean(0), rtol=1e-4)
    with one_weight_a_position(matrices[2], rows.tokens) as own:
        loss = -log_probs(world.model, rows).sum()
    total = torch.autograd.grad(loss, own)[0].square().sum((0, 1)) / (3 * (T - P))
    assert torch.allclose(fisher[2], total, rtol=1e-3, atol=1e-9)


def test_blocks_are_chosen_by_their_effect() -> None:
    """A block without attention cannot be chosen first: its edit does nothing."""
    model = two_blocks(2)
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        attention.o_proj.weight.zero_()
    rows = Rows(torch.randint(0, 48, (8, 12), generator=torch.Generator().manual_seed(0)), 4)
    lost = lowered(model, rows, "zero").tolist()
    assert lost[0] == pytest.approx(0, abs=1e-6)
    before = nll(model, rows)
    changed = copy.deepcopy(model)
    changed.model.layers[1].self_attn.o_proj.weight.data.zero_()
    assert lost[1] == pytest.approx(nll(changed, rows) - before, abs=1e-4)


def test_npo_by_its_formula() -> None:
    now, before = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-0.5, -0.5]])
    expected = 2 / 0.1 * math.log(1 + (math.exp(-3) / math.exp(-1)) ** 0.1)
    assert float(descent.npo_loss(now, before)) == pytest.approx(expected, rel=1e-5)


def test_matrices_of_gpt2_are_oriented_alike() -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=48, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    model = GPT2LMHeadModel(config).eval()
    assert [tuple(weight_of(m).shape) for m in mlp_matrices(model)] == [(64, 16), (16, 64)] * 2
    rows = Rows(torch.randint(0, 48, (4, 12), generator=torch.Generator().manual_seed(0)), 4)
    for name in ("kfac", "coherent", "balanced-subnet", "wanda"):
        write = METHODS[name].prepare(model, rows, rows, 0)
        assert nll(edited(model, write, 0.3), rows) != nll(model, rows)


def falling(threshold: float) -> Callable[[float], float]:
    return lambda dose: 0.0 if dose >= threshold else 1.0


def test_the_chosen_dose_is_the_smallest_that_removes() -> None:
    kfac, steps = METHODS["kfac"], METHODS["npo"]
    for threshold in (0.21, 0.44, 0.69):
        dose = chosen_dose(kfac, falling(threshold))
        steps_of = list(itertools.pairwise((0, *kfac.doses)))
        gap = next(b - a for a, b in steps_of if a < threshold <= b)
        assert threshold <= dose <= threshold + gap / 2**HALVINGS + 1e-6
    assert chosen_dose(steps, falling(4)) == 4
    assert chosen_dose(kfac, falling(2)) == kfac.doses[-1]
