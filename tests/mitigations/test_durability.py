"""The probes of durability, and what is measured of an edited model."""

import copy
import math

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from pipeline.measure.durability import (
    FORMATS,
    GROUP,
    TRIES,
    changed_prefixes,
    probes,
    quantized,
    relearned,
    rounded,
    undone,
)
from pipeline.measure.mitigated import detectors, outcomes, price, sampled
from pipeline.mitigations.matrices import last_matrices, mlp_matrices
from pipeline.mitigations.rows import Rows, log_probs, recited
from pipeline.mitigations.schema import Relearning
from pipeline.mitigations.subject import HELD_OUT, SEEN, Part, Parts, halved, study_parts
from pipeline.samples.frame import samples_frame
from pipeline.workflow.errors import InputError
from tests.mitigations.conftest import P, T, World, nll

RELEARNING = Relearning(learning_rate=1e-3, steps=3)


def parts_of(world: World) -> Parts:
    def part(rows: Rows, first: int) -> Part:
        numbers = range(first, first + len(rows))
        return Part(rows, numbers, numbers)

    splits = {
        SEEN: part(world.forget[:6], 0),
        HELD_OUT: part(world.forget[6:], 6),
        "keep_seen": part(world.keep[:6], 20),
        "keep_held_out": part(world.keep[6:], 26),
        "control": part(Rows(world.forget.tokens.flip(1), P), 40),
        "text": part(world.plain, 0),
    }
    return Parts(splits, world.plain.tokens)


@pytest.mark.parametrize("bits", FORMATS)
def test_rounding_is_to_the_nearest_of_few_steps_in_groups_of_a_row(bits: int) -> None:
    values = torch.randn(40, 96, generator=torch.Generator().manual_seed(0)) * 0.03
    values[3, :GROUP] = 0  # a group without a scale
    values[5, 7], values[6, 9] = -4.0, 4.0
    made = rounded(values, bits)
    for group, found in zip(values.view(-1, GROUP), made.view(-1, GROUP), strict=True):
        largest = group[group.abs().argmax()]
        step = float(largest.abs() / 127 if bits == 8 else largest.abs() / 8)
        numbers = (found / (step or 1)).double()
        assert (numbers - numbers.round()).abs().max() < 0.1  # scales are float16
        assert numbers.abs().max() < 2 ** (bits - 1) + 0.1
        other_end = group * -largest.sign() > 7.5 * step  # 4 bits: from -8 to 7
        most = torch.where(other_end, step, step / 2) if bits == 4 else step / 2
        assert ((found - group).abs() <= most + 1e-3 * largest.abs()).all()


def test_a_rounded_model_keeps_embeddings_and_norms(world: World) -> None:
    before = {name: value.clone() for name, value in world.model.named_parameters()}
    made = quantized(world.model, 4)
    for name, value in made.named_parameters():
        matrix = value.ndim == 2 and "embed" not in name
        assert value.equal(before[name]) != matrix, name
    assert all(v.equal(before[name]) for name, v in world.model.named_parameters())


def test_a_matrix_whose_rows_groups_do_not_divide_stays() -> None:
    model = nn.Sequential(nn.Linear(GROUP + 8, 4), nn.Linear(2 * GROUP, 4))
    stays, rounds = zip(model, quantized(model, 4), strict=True)
    assert torch.equal(stays[0].weight, stays[1].weight)
    assert not torch.equal(rounds[0].weight, rounds[1].weight)


def test_relearning_is_plain_fine_tuning(world: World) -> None:
    """The same as AdamW on transformers' own loss, with the rows in the same order."""
    rows, seen = world.forget[:6], dict[int, float]()
    start = world.edited("wanda", 0.1)
    before = copy.deepcopy(start.state_dict())
    for step, model in relearned(start, rows, 3, RELEARNING):
        seen[step] = float(model.model.layers[0].mlp.up_proj.weight.detach().sum())
    assert all(value.equal(before[name]) for name, value in start.state_dict().items())
    made, order = copy.deepcopy(start), torch.Generator().manual_seed(3)
    optimizer = torch.optim.AdamW(made.parameters(), lr=RELEARNING.learning_rate, weight_decay=0)
    expected = {}
    for step in range(4):
        expected[step] = float(made.model.layers[0].mlp.up_proj.weight.detach().sum())
        batch = rows.tokens[torch.randint(6, (6,), generator=order)]
        optimizer.zero_grad()
        made(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    assert seen == pytest.approx({step: expected[step] for step in (0, 1, 2, 3)}, abs=1e-4)


def test_every_probe_of_an_edit_and_of_its_undoing(world: World) -> None:
    parts = parts_of(world)
    changed = world.edited("wanda", 0.1)
    found = probes(changed, parts, 0, RELEARNING, world.model, reference=True)
    held_out = parts.splits[HELD_OUT]
    assert found["split"].unique().to_list() == [HELD_OUT]
    assert set(found["item"]) == set(held_out.items)
    of_probe = {
        (probe, x, variant): frame.sort("item")["value"].to_list()
        for (probe, x, variant), frame in found.group_by(["probe", "x", "variant"])
    }
    # by arithmetic: the chance of a suffix to appear within n tries
    with torch.no_grad():
        chances = log_probs(changed, held_out.rows).double().sum(1).exp().tolist()
    for tries in TRIES:
        out = [float(1 - (1 - chance) ** tries >= 0.5) for chance in chances]
        assert of_probe["sampling", float(tries), ""] == out
    for bits in FORMATS:
        expected = recited(quantized(changed, bits), held_out.rows).double().tolist()
        assert of_probe[f"int{bits}", float(bits), ""] == expected
    assert of_probe["undone", 0.0, ""] == [1.0] * len(held_out.rows)
    at_once = recited(changed, held_out.rows).double().tolist()
    assert of_probe["relearning", 0.0, ""] == at_once
    assert of_probe["relearning", 0.0, "reference"] == at_once
    steps = {x for probe, x, variant in of_probe if probe == "relearning" and not variant}
    assert steps == set(map(float, (0, 1, 2, 3)))
    variants = {variant for probe, _, variant in of_probe if probe == "prefix"}
    assert variants == {"longer", "shorter", "shifted", "one token changed"}
    assert sum(at_once) < len(at_once)


def test_an_identity_edit_is_undone_with_its_added_biases(world: World) -> None:
    changed = world.edited("block-identity", 2)
    assert len(list(changed.parameters())) > len(list(world.model.parameters()))
    tokens = world.forget.tokens
    with torch.no_grad():
        expected = world.model(input_ids=tokens).logits
        assert not torch.allclose(changed(input_ids=tokens).logits, expected, atol=1e-3)
        restored = undone(changed, world.model)(input_ids=tokens).logits
    assert torch.allclose(restored, expected, atol=1e-5)


def test_changed_prefixes_by_hand() -> None:
    rows = Rows(torch.arange(24).view(2, 12) + 100, 8)  # 8 + 4: changed by 1
    changed = {name: (by, made) for name, by, made in changed_prefixes(rows, 0)}
    longer, shorter = changed["longer"], changed["shorter"]
    assert (longer[0], longer[1].first, longer[1].tokens.shape[1]) == (1.0, 9, 12)
    assert (shorter[0], shorter[1].first) == (-1.0, 7)
    assert shorter[1].tokens[:, 7:].equal(rows.tokens[:, 8:])  # the same suffix
    shifted = changed["shifted"][1]
    assert shifted.first == 8
    assert shifted.tokens[:, 0].equal(rows.tokens[:, 1])
    one = changed["one token changed"][1].tokens
    assert (one != rows.tokens).sum(1).tolist() == [1, 1]
    assert one[:, 8:].equal(rows.tokens[:, 8:])
    assert set(one.flatten().tolist()) <= set(rows.tokens.flatten().tolist())


def test_one_token_changes_in_every_row_of_texts_that_repeat_a_few_tokens() -> None:
    rows = Rows(torch.arange(1, 241).view(20, 12) // 2 % 3, 8)
    [one] = [made.tokens for name, _, made in changed_prefixes(rows, 0) if name.startswith("one")]
    assert (one != rows.tokens).sum(1).tolist() == [1] * 20


def test_outcomes_by_row(world: World) -> None:
    found = outcomes(world.model, parts_of(world))
    assert "recited" not in set(found.filter(pl.col("split") == "text")["metric"])
    losses = found.filter((pl.col("split") == "keep_seen") & (pl.col("metric") == "loss"))
    expected = [nll(world.model, world.keep[i : i + 1]) for i in range(6)]
    assert losses["value"].to_list() == pytest.approx(expected, abs=1e-5)
    assert losses["item"].to_list() == list(range(20, 26))


def test_the_price_of_a_small_step_is_what_is_measured(world: World) -> None:
    """By formula at a step so small that two orders suffice, with the labels' expectation exact."""
    rows = Rows(world.plain.tokens, 1)
    changed = world.edited("random", 0.35)
    labels = [sampled(world.model, rows, seed) for seed in range(20)]
    drawn = torch.stack([price(world.model, changed, rows, each) for each in labels]).mean()
    weights = dict(world.model.named_parameters())
    sides = []
    for sign in (1, -1):
        probe = copy.deepcopy(world.model).double()
        with torch.no_grad():
            for (name, value), after in zip(
                probe.named_parameters(), changed.parameters(), strict=True
            ):
                value.add_(sign * 1e-3 * (after.double() - weights[name].double()))
            sides.append(probe(input_ids=rows.tokens).logits[:, :-1].log_softmax(-1))
    shift = (sides[1] - sides[0]) / 2e-3
    with torch.no_grad():
        likely = world.model(input_ids=rows.tokens).logits[:, :-1].double().softmax(-1)
    first = shift.gather(-1, rows.tokens[:, 1:, None]).mean()
    expected = float(first + (likely * shift.square()).sum(-1).mean() / 2)
    assert float(drawn) == pytest.approx(expected, rel=0.1)


def test_detectors_by_hand(world: World) -> None:
    parts = parts_of(world)
    found = detectors(world.model, parts, 0)
    row = world.forget.tokens[:1]
    with torch.no_grad():
        log_p = world.model(input_ids=row).logits.log_softmax(-1)[0]
    tokens = sorted(float(log_p[t - 1, row[0, t]]) for t in range(P, T))
    first = dict(found.filter(split=SEEN, item=0).select("metric", "value").iter_rows())
    assert first["likelihood"] == pytest.approx(math.fsum(tokens) / len(tokens), abs=1e-5)
    assert first["min_k"] == pytest.approx(tokens[0], abs=1e-5)  # a fifth of eight, rounded down
    assert 0 < first["flat_share"] < 1
    assert len(mlp_matrices(world.model)) == 3 * len(last_matrices(world.model))


def samples(count: int = 40) -> pl.DataFrame:
    random = np.random.default_rng(0)
    tokens = random.integers(0, 1000, (count, 12))
    tokens[1, 6:] = tokens[0, 6:]  # a common suffix
    splits = ["memorized"] * (count - 8) + ["control"] * 8
    kinds = ["key", "log"] * (count // 2)
    kinds[1] = "key"
    frame = samples_frame(tokens, 6, splits, [9] * (count - 8) + [0] * 8)
    return frame.with_columns(pl.Series("kind", kinds))


def test_halves_of_kinds_do_not_overlap_and_keep_groups_together() -> None:
    text = torch.zeros(3, 12, dtype=torch.int64)
    parts = study_parts(samples(), ["key"], text, text, 0)
    kind = dict(samples().select("sample_id", "kind").iter_rows())
    seen, held_out = (set(parts.splits[s].items) for s in (SEEN, HELD_OUT))
    assert not seen & held_out
    assert len(seen | held_out) == 17
    assert {kind[item] for item in seen | held_out} == {"key"}
    assert ({0, 1} <= seen) or ({0, 1} <= held_out)
    kept = [*parts.splits["keep_seen"].items, *parts.splits["keep_held_out"].items]
    assert {kind[item] for item in kept} == {"log"}
    assert len(parts.keep) == 3 + len(parts.splits["keep_seen"].items)
    assert len(halved(samples(), 0).splits[SEEN].items) in (19, 20, 21)


def test_one_suffix_cannot_be_halved() -> None:
    with pytest.raises(InputError, match="1 with 1 suffixes"):
        halved(samples().head(1), 0)


@pytest.mark.parametrize(("prefix", "suffix", "by"), [(3, 32, 2), (2, 8, 1), (2, 2, 1), (1, 9, 0)])
def test_a_short_prefix_is_changed_by_less(prefix: int, suffix: int, by: int) -> None:
    rows = Rows(torch.arange(2 * (prefix + suffix)).view(2, -1), prefix)
    changed = {name: made for name, _, made in changed_prefixes(rows, 0)}
    for name, first, scored in (("longer", by, -by), ("shorter", -by, 0), ("shifted", 0, -by)):
        assert changed[name].first == prefix + first
        assert changed[name].scored == 2 * (suffix + scored)
