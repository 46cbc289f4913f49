"""The metrics against hand-computed values, and the table against one sample at a time."""

import math
import shutil
import zlib
from types import SimpleNamespace

import polars as pl
import pytest
import torch
from statsmodels.stats.proportion import proportion_confint
from torch import Tensor

from pipeline.checkpoints.manifest import write_manifest
from pipeline.interventions import evaluation
from pipeline.interventions.interventions import BASELINE, bypass, sweep
from pipeline.interventions.memory import Journal
from pipeline.measure import memorization, metrics
from pipeline.measure.memorization import measure
from pipeline.measure.sharded import Running
from pipeline.samples.schemas import SAMPLES
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests.measure.cases import random_samples, samples_of
from tests.project import ROOT, refused

CONTINUOUS = (
    *("completion_entropy", "suffix_log_prob", "suffix_log_prob_top_40", "mean_log_prob"),
    *("min_k", "min_k_plus_plus", "min_margin"),
)
"""Columns whose last digits are a matter of rounding."""


def test_the_table_by_hand(neo, tmp_path, monkeypatch):
    """Every column from an engine that answers with numbers known beforehand."""

    def engine(model, tokens, suffix_length, interventions, **_):
        assert tokens.tolist() == [[5, 1, 2], [6, 3, 4]]
        entropy = torch.tensor([[[0.25, 0.25], [0.5, 0.5]], [[1.0, 1.0], [1.0, 3.0]]])
        rank = torch.tensor([[[1, 1], [1, 1]], [[1, 41], [2, 1]]], dtype=torch.int32)
        return evaluation.Completions(
            continuation=torch.tensor([[[1, 2], [3, 9]], [[9, 2], [9, 9]]]),
            min_margin=torch.tensor([[3.0, 2.0], [1.0, 0.5]]),
            teacher_forced=torch.tensor([[[1, 2], [3, 4]], [[1, 9], [9, 4]]]),
            entropy=entropy,
            log_prob=-entropy,
            log_prob_top_40=(-entropy / 2).masked_fill(rank > 40, -torch.inf),
            rank=rank,
            spread=torch.full(entropy.shape, 0.5),
        )

    monkeypatch.setattr(memorization, "complete", engine)
    tokenizer = SimpleNamespace(batch_decode=lambda rows: ["ab" * len(row) for row in rows])
    samples = samples_of([[5, 1, 2], [6, 3, 4]], 1, 2)
    frame = measure(neo, samples, [BASELINE, bypass("block-00", (0,))], tokenizer=tokenizer)
    tables.write(frame, tmp_path / "m.parquet", metrics.MEMORIZATION, {})  # checks the schema
    assert list(frame.columns) == list(metrics.MEMORIZATION)
    size = len(zlib.compress(b"abab"))
    expected = {
        "intervention": ["baseline", "baseline", "block-00", "block-00"],
        "sample_id": [10, 11, 10, 11],
        "split": ["memorized", "exposed", "memorized", "exposed"],
        "exact_match": [True, False, False, False],
        "token_accuracy": [1.0, 0.5, 0.5, 0.0],
        "completion_entropy": [0.5, 1.0, 2.0, 4.0],
        "correct_length": [2, 1, 0, 0],
        "teacher_forced_accuracy": [1.0, 1.0, 0.5, 0.5],
        "suffix_log_prob": [-0.5, -1.0, -2.0, -4.0],
        "suffix_log_prob_top_40": [-0.25, -0.5, -math.inf, -2.0],
        "min_k_plus_plus": [0.0] * 4,
        "worst_rank": [1, 1, 41, 2],
        "min_margin": [3.0, 2.0, 1.0, 0.5],
        "continuation": [[1, 2], [3, 9], [9, 2], [9, 9]],
        "decoded": [True] * 4,
    }
    assert frame.select(*expected).to_dict(as_series=False) == expected
    per_byte = [each / size for each in (0.25, 0.5, 1.0, 2.0)]
    assert frame["loss_per_zlib_byte"].to_list() == pytest.approx(per_byte)


def completions(made: Tensor, forced: Tensor) -> evaluation.Completions:
    """Continuations (V, N, S) of which all numbers are 0, all ranks 1."""
    zero = torch.zeros(made.shape)
    rank = torch.ones(made.shape, dtype=torch.int32)
    return evaluation.Completions(made, zero[..., 0], forced, zero, zero, zero, rank, zero)


def not_decoding(asked: list[list[bool]]):
    """An engine that decodes only where it is told to, and notes what it was told."""

    def engine(model, tokens, suffix_length, interventions, decode, **_):
        asked.append(decode)
        decode = torch.tensor(decode).expand(len(tokens))
        suffix = tokens[:, -suffix_length:]
        # the baseline recites; one bypass errs at the first token, the other at the last
        made = suffix.expand(len(interventions), *suffix.shape).clone()
        made[1, :, 0], made[2, :, -1] = 0, 0
        known = (
            torch.arange(suffix_length) <= (made == suffix).long().cumprod(-1).sum(-1)[..., None]
        )
        forced = made.clamp(min=1)
        made[~known & ~decode[:, None]] = -1
        return completions(made, forced)

    return engine


def test_what_was_not_decoded_is_null_unless_it_is_known_all_the_same(neo, monkeypatch):
    asked = []
    monkeypatch.setattr(memorization, "complete", not_decoding(asked))
    samples = random_samples(9, 4, 3)  # three of each split
    kinds = [BASELINE, bypass("block-00", (0,)), bypass("block-01", (1,))]
    whole = measure(neo, samples, kinds)
    assert asked.pop() == [True] * 9
    assert not whole["continuation"].null_count()

    none = measure(neo, samples, kinds, decode="none")
    assert asked.pop() == [False] * 9
    assert not none["decoded"].any()
    unknown = none["intervention"] == "block-00"
    assert (none["continuation"].is_null() == unknown).all()
    for name in ("token_accuracy", "edit_distance", "longest_common_substring", "rouge_l", "bleu"):
        assert (none[name].is_null() == unknown).all()
    exact = [each.name for each in metrics.METRICS if each.needs == "teacher-forced pass"]
    assert none.select(exact).equals(whole.select(exact))
    assert none.filter(~unknown).drop("decoded").equals(whole.filter(~unknown).drop("decoded"))

    two = measure(neo, samples, kinds, decode=2)
    chosen = [True, True, True, True, True, True, False, False, False]
    assert asked.pop() == chosen  # rows 0 and 1 of three, of each split
    assert two["decoded"].to_list() == chosen * 3
    assert two.filter("decoded").equals(whole.filter(two["decoded"]))
    assert two.filter(~pl.col("decoded"), unknown)["continuation"].null_count() == 3
    assert measure(neo, samples, kinds, decode=3).equals(whole)


def assert_same_but_for_rounding(one, other, tolerance):
    assert one.drop(CONTINUOUS).equals(other.drop(CONTINUOUS))
    for name in CONTINUOUS:
        left, right = one[name].to_list(), other[name].to_list()
        assert left == pytest.approx(right, rel=1e-5, abs=tolerance), name


def test_the_budget_changes_the_batches_and_nothing_else(neo):
    samples, interventions = random_samples(6, 7, 5), [BASELINE, bypass("block-00", (0,))]
    done, journal = [], Journal()
    options = {"progress": lambda now, _: done.append(now), "journal": journal}
    whole = measure(neo, samples, interventions, Running(10**9, **options))
    assert done == [6]
    parts = measure(neo, samples, interventions, Running(1, **options))
    assert done[1:] == [1, 2, 3, 4, 5, 6]
    assert journal.tolerance > 0
    assert_same_but_for_rounding(whole, parts, 1e-4)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_neither_the_order_of_samples_nor_threads_change_a_result(
    trained, memorized, threads, n_threads
):
    rows = memorized.tolist() + torch.randint(1, 61, (9, memorized.shape[1])).tolist()
    samples = samples_of(rows, 8, memorized.shape[1] - 8)
    interventions = sweep(trained.config.num_hidden_layers)
    whole = measure(trained, samples, interventions)
    assert 0 < whole["exact_match"].mean() < 1
    with threads(n_threads):
        shuffled = samples.sample(fraction=1, shuffle=True, seed=1)
        again = measure(trained, shuffled, interventions, Running(3000))
    again = whole.select("intervention", "sample_id").join(
        again, on=["intervention", "sample_id"], maintain_order="left"
    )
    assert_same_but_for_rounding(again, whole, 1e-5)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (samples_of([[1] * 41], 20, 21), r"41 tokens[\s\S]*at most 40, the model's context"),
        (samples_of([[1, 2, 61]], 1, 2), r"token id 61[\s\S]*below 61"),
        (samples_of([[1, 2, 3]], 1, 1), r"sample 10\n[\s\S]*3 tokens, 1 of prefix, 1 of suffix"),
        (samples_of([[1, 2]], 2, 0), "0 of suffix"),
        (samples_of([[1, 2]], 0, 2), "0 of prefix"),
        (samples_of([], 1, 1), "no samples"),
        (
            pl.concat([samples_of([[1, 99]], 1, 1), samples_of([[1] * 50], 20, 30)]),
            r"4 problems[\s\S]*1 \+ 1; 20 \+ 30",
        ),
    ],
)
def test_unfit_samples_are_refused(neo, samples, message):
    with pytest.raises(InputError, match=message):
        measure(neo, samples, [BASELINE], Running(400))


# ---------------------------------------------------------------------- before the sweep


def answering(monkeypatch, right: int) -> list[list[int]]:
    """An engine that completes the first `right` samples that it is given; it notes them all."""
    asked: list[list[int]] = []

    def engine(model, tokens, suffix_length, interventions, **_):
        assert [each.name for each in interventions] == ["baseline"]
        asked.extend(tokens.tolist())
        suffix = tokens[:, -suffix_length:]
        made = suffix.clone()
        made[right:, -1] += 1
        return completions(made[None], made[None])

    monkeypatch.setattr(memorization, "complete", engine)
    return asked


def memorized_samples(n: int, others: int = 0) -> pl.DataFrame:
    """So many memorized samples, and as many exposed and control ones as `others`, between."""
    splits = ["memorized"] * n + ["exposed", "control"] * others
    tokens = [[1 + i % 50, 2, 3] for i in range(n)] + [[60, 2, 3]] * (2 * others)
    made = samples_of(tokens, 1, 2).with_columns(pl.Series("split", splits))
    return made.sample(fraction=1, shuffle=True, seed=0) if others else made


@pytest.mark.parametrize(
    ("right", "n", "floor"),
    [
        (90, 100, 0.9),
        (85, 100, 0.9),
        (1, 2, 0.9),  # few samples say little
        (0, 100, 0.0),
    ],
)
def test_a_baseline_that_may_reach_the_floor_goes_on(neo, monkeypatch, capsys, right, n, floor):
    answering(monkeypatch, right)
    found = memorization.require_baseline(neo, memorized_samples(n), floor, stop=True)
    low, high = proportion_confint(right, n, method="wilson")
    expected = {"exact_match": right / n, "low": low, "high": high, "n": n}
    assert found == pytest.approx(expected, abs=1e-12)
    said = capsys.readouterr().out
    assert f"baseline on {n} samples: exact match {right / n:.3f}" in said
    assert "warning" not in said


def test_a_baseline_that_surely_does_not_stops_the_sweep(neo, monkeypatch):
    answering(monkeypatch, 70)
    problem = refused(memorization.require_baseline, neo, memorized_samples(100), 0.9, stop=True)
    assert problem.what == "the baseline on 100 of the memorized samples"
    assert problem.got == "exact match 0.700, 95% interval 0.604 to 0.781"
    assert problem.expected == "0.9 or more"
    assert "below_floor: warn" in problem.remedy


def test_or_it_goes_on_with_a_warning(neo, monkeypatch, capsys):
    answering(monkeypatch, 0)
    found = memorization.require_baseline(neo, memorized_samples(100), 0.9, stop=False)
    assert (found["exact_match"], found["n"]) == (0, 100)
    said = capsys.readouterr().out
    assert "warning: below the baseline_floor of 0.9" in said
    assert "below_floor: warn" not in said, "what is set is no remedy"
    assert "exact match 0.000, 95% interval 0.000 to 0.037" in said


def test_the_trial_is_spread_evenly_over_the_memorized_samples(neo, monkeypatch):
    monkeypatch.setattr(memorization, "TRIAL_SAMPLES", 10)
    asked = answering(monkeypatch, 10)
    memorization.require_baseline(neo, memorized_samples(45), 0.9, stop=True)
    assert [row[0] - 1 for row in asked] == [0, 4, 9, 13, 18, 22, 27, 31, 36, 40]


@pytest.mark.parametrize(("n", "others"), [(30, 20), (0, 3)])
def test_a_trial_takes_each_of_few_samples_once_and_no_other_split(neo, monkeypatch, n, others):
    asked = answering(monkeypatch, n)
    samples = memorized_samples(n, others=others)
    found = memorization.require_baseline(neo, samples, 0.9, stop=True)
    assert found.get("n", 0) == n
    assert bool(found) == bool(n), "without memorized samples there is no trial"
    assert asked == samples.filter(split="memorized")["tokens"].to_list()


def test_a_trained_model_passes_and_a_random_one_does_not(trained, neox, memorized):
    samples = samples_of(memorized.tolist(), 9, 8, ["memorized"] * len(memorized))
    found = memorization.require_baseline(trained, samples, 0.9, stop=True)
    assert found["exact_match"] == 1
    with pytest.raises(InputError, match=r"exact match 0\.000"):
        memorization.require_baseline(neox, samples, 0.9, stop=True)


def test_the_command_checks_samples_before_it_leases_or_loads(neox, tmp_path, monkeypatch):
    from pipeline.stages.registry import run
    from pipeline.study.composition import load

    study = tmp_path / "data/tiny"
    folder = study / "checkpoints/tiny-pythia-8"
    folder.mkdir(parents=True)
    facts = {"name": folder.name, "family": "pythia", "seed": 0, "origin": {}}
    # one token fewer than the embedding has rows, as where it is padded
    write_manifest(folder, neox, tokens=60, **facts)
    samples = samples_of([[1, 2, 60]], 1, 2)
    tables.write(samples, study / "samples/pythia.parquet", SAMPLES, {})
    for file in ("params.yaml", "loops.yaml"):
        shutil.copy(ROOT / file, tmp_path)
    monkeypatch.chdir(tmp_path)
    for forbidden in ("pipeline.workflow.running.lease", "pipeline.stages.memorization.load"):
        monkeypatch.setattr(forbidden, lambda *_: pytest.fail("this comes later"))
    with pytest.raises(InputError, match=r"token id 60[\s\S]*ids below 60"):
        run(load(), "memorization@tiny-pythia-8")
