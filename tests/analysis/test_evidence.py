"""Losses with their errors, against plain loops."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from pipeline.analysis.evidence import EVIDENCE, evidence
from pipeline.analysis.measured import ModelTables
from pipeline.analysis.views import block_range
from pipeline.interventions.interventions import BASELINE, Group
from pipeline.workflow import tables
from tests.analysis import synthetic

NAME = "tiny-neo-8"


@pytest.fixture(scope="module")
def model(study: synthetic.Study) -> ModelTables:
    [found] = [model for model in study.models if model.name == NAME]
    return found


@pytest.fixture(scope="module")
def rows(evidence_of_paper: pl.DataFrame) -> pl.DataFrame:
    return evidence_of_paper.filter(model=NAME)


def one(rows: pl.DataFrame, **of: str | int) -> dict[str, float]:
    [row] = rows.filter(**of).iter_rows(named=True)
    return row


def exact(model: ModelTables, intervention: str) -> np.ndarray:
    rows = model.memorization.filter(intervention=intervention, split="memorized")
    return rows.sort("sample_id")["exact_match"].to_numpy()


def kept_of(model: ModelTables, values: pl.Expr) -> tuple[float, float]:
    """What block 5 leaves of the lead over control samples, and what it leaves at 0."""
    means = model.memorization.group_by("intervention", "split").agg(values.mean())
    mean = {(name, split): value for name, split, value in means.iter_rows()}
    floor = mean[BASELINE.name, "control"]
    lead = mean[BASELINE.name, "memorized"] - floor
    return (mean["block-05", "memorized"] - floor) / lead, -floor / lead


def test_the_table_fits_its_schema(evidence_of_paper: pl.DataFrame) -> None:
    assert evidence_of_paper.schema == tables.dtypes(EVIDENCE)
    key = ["model", "task", "metric", "k", "quantity", "edit", "over"]
    assert not evidence_of_paper.select(key).is_duplicated().any()
    assert evidence_of_paper["value"].is_finite().all()


def test_memory_is_kept_of_the_lead_over_control(rows: pl.DataFrame, model: ModelTables) -> None:
    kept = one(rows, metric="exact_match", quantity="kept", over="block-05")
    # every eighth sample shares its suffix with the one before
    assert kept["n"] == 128
    assert kept["n_effective"] == pytest.approx(128**2 / (6 * 16 + 4 * 16))
    for values, of in (
        (pl.col("correct_length") >= 4, {"metric": "exact_match_at_k", "k": 4}),
        (pl.col("teacher_forced_accuracy"), {"metric": "teacher_forced_accuracy"}),
        (pl.col("suffix_log_prob"), {"metric": "suffix_log_prob"}),
    ):
        expected, least = kept_of(model, values)
        row = one(rows, **of, over="block-05", quantity="kept")
        assert row["value"] == pytest.approx(expected)
        if of["metric"] == "suffix_log_prob":
            assert (row["least"], row["most"], row["scale"]) == (None, None, 0)  # without limits
        else:
            assert row["least"] == pytest.approx(least)
    assert sorted(rows["k"].drop_nulls().unique()) == [1, 2, 4, 8]


def test_every_edit_has_its_own_evidence() -> None:
    groups = [Group("each"), Group("each", "zero"), Group("each", "noise", draws=2)]
    groups += [Group("quartiles", "zero")]
    [model] = synthetic.study(models={"m": ("pythia", 8)}, groups=groups).models
    rows = evidence([model]).filter(metric="exact_match")
    assert set(rows["edit"]) == {"identity", "zero", "noise"}
    for edit in ("identity", "zero", "noise"):
        assert rows.filter(edit=edit, kind="block")["block"].to_list() == list(range(8)), edit
    assert rows.filter(edit="noise", block=3)["over"].item() == "block-03.noise-draw-1"
    assert rows.filter(over="quarters")["edit"].to_list() == ["zero"]
    late = rows.filter(edit="zero", over="late")["value"].item()
    single = rows.filter(pl.col("block").is_in([6, 7]), edit="zero")["value"]
    assert late == pytest.approx(single.mean())


@pytest.mark.parametrize("right", [1.0, 0.9])
def test_ability_is_corrected_for_chance(model: ModelTables, right: float) -> None:
    """Scores between wrong and right are as of a task of whose right answers some are chosen."""
    part = pl.col("value") * pl.when(task="tiny_piqa").then(right).otherwise(1.0)
    tables_of = {
        name: getattr(model, name).with_columns(part) for name in ("benchmarks", "documents")
    }
    rows = evidence([replace(model, **tables_of)]).filter(task="tiny_piqa", over="block-01")
    documents = model.documents.filter(task="tiny_piqa", metric="acc").sort("doc_id")
    whole, bypassed = (
        right * documents.filter(intervention=name)["value"].to_numpy()
        for name in (BASELINE.name, "block-01")
    )
    kept = one(rows, quantity="kept")
    assert kept["value"] == pytest.approx((bypassed.mean() - 0.5) / (whole.mean() - 0.5))
    difference, change = one(rows, quantity="difference"), bypassed - whole
    assert difference["value"] == pytest.approx(change.mean())
    assert difference["stderr"] == pytest.approx(change.std(ddof=1) / len(change) ** 0.5)


def test_averages_and_contrasts_are_by_sample(rows: pl.DataFrame, model: ModelTables) -> None:
    late, middle = (
        np.mean([exact(model, f"block-{b:02d}") for b in block_range(8, part)], axis=0)
        for part in ("late", "middle")
    )
    row = one(rows, metric="exact_match", quantity="kept", over="late minus middle")
    lead = exact(model, BASELINE.name).mean()
    assert row["value"] == pytest.approx((late - middle).mean() / lead)
    assert row["least"] == pytest.approx(-1 / lead)


def test_block_ranges() -> None:
    for n_blocks, *expected in (
        (1, [], [], []),
        (5, [1], [1, 2], [3, 4]),
        (8, [1], [2, 3, 4, 5], [6, 7]),
        (24, [*range(1, 6)], [*range(6, 18)], [*range(18, 24)]),
    ):
        found = [list(block_range(n_blocks, name)) for name in ("early", "middle", "late")]
        assert found == expected, n_blocks
        assert 0 not in block_range(n_blocks, "all")
    assert list(block_range(8, "second half")) == [4, 5, 6, 7]
