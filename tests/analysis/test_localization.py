"""Grades of scorers on tables whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipeline.analysis.localization import LOCALIZATION, falls, grades, place_of, places, scores
from pipeline.interventions.interventions import Group
from pipeline.measure import schemas
from pipeline.report.columns import MEANINGS
from pipeline.report.localization import localized
from pipeline.report.markup import plain
from pipeline.report.plots.localization import found_first
from pipeline.theory import columns
from pipeline.workflow import tables
from tests.analysis import synthetic

N_BLOCKS = 6


def _table(
    by_model: dict[str, tuple[str, int, list[float]]],
    scorer: str = "identity",
    of: str = "exact_match",
) -> pl.DataFrame:
    """Scores of one scorer: model -> part, the block that learned, a score a block."""
    rows = [
        (model, part, planted, 1.0, scorer, of, block, score)
        for model, (part, planted, given) in by_model.items()
        for block, score in enumerate(given)
    ]
    schema = tables.dtypes(LOCALIZATION)
    return pl.DataFrame(rows, schema=schema, orient="row")


def test_ranks_and_ties_count_as_drawn_by_lot() -> None:
    found = _table(
        {
            "first": ("mlp", 2, [0.1, 0.2, 0.9, 0.0]),
            "second": ("mlp", 1, [0.9, 0.5, 0.1, 0.0]),
            "last": ("mlp", 3, [0.9, 0.5, 0.1, 0.0]),
            "two first": ("mlp", 0, [1.0, 1.0, 0.0, 0.0]),
            "all alike": ("mlp", 3, [0.5, 0.5, 0.5, 0.5]),
        }
    )
    made = places(found)
    assert made["first"].to_list() == [1, 0, 0, 0.5, 0.25]
    expected = [1, 1 / 2, 1 / 4, (1 + 1 / 2) / 2, (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4]
    assert made["reciprocal"].to_list() == pytest.approx(expected)
    [row] = grades(found).iter_rows(named=True)
    assert row["n"] == 5
    assert row["recall"] == pytest.approx(1.75 / 5)
    assert row["reciprocal"] == pytest.approx(sum(expected) / 5)
    assert row["recall_chance"] == 1 / 4
    assert row["reciprocal_chance"] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


def test_a_scorer_that_knows_is_right_and_one_that_does_not_is_at_chance() -> None:
    def knowing(block: int) -> list[float]:
        return [float(each == block) for each in range(N_BLOCKS)]

    def stubborn(_block: int) -> list[float]:
        return [1.0, *[0.0] * (N_BLOCKS - 1)]

    for scorer, recall, reciprocal in ((knowing, 1, 1), (stubborn, 1 / 6, None)):
        models = {f"m-{block}": ("both", block, scorer(block)) for block in range(N_BLOCKS)}
        [row] = grades(_table(models)).iter_rows(named=True)
        assert row["recall"] == pytest.approx(recall)
        if reciprocal:
            assert row["reciprocal"] == reciprocal
        assert row["recall_low"] <= row["recall"] <= row["recall_high"]
        assert (row["recall_low"] > row["recall_chance"]) == (recall == 1)


def test_intervals_cover_a_scorer_that_guesses() -> None:
    random = np.random.default_rng(0)
    covered = {"recall": 0, "reciprocal": 0}
    for _ in range(200):
        models = {
            f"m-{i}": ("mlp", i % N_BLOCKS, random.random(N_BLOCKS).tolist()) for i in range(18)
        }
        [row] = grades(_table(models)).iter_rows(named=True)
        for name in covered:
            inside = row[f"{name}_low"] <= row[f"{name}_chance"] <= row[f"{name}_high"]
            covered[name] += inside
    assert min(covered.values()) >= 180


def test_parts_and_scorers_are_graded_apart() -> None:
    right, wrong = [0.0, 1.0], [1.0, 0.0]
    found = pl.concat(
        [
            _table({"a": ("attention", 1, right), "b": ("mlp", 1, wrong)}),
            _table({"a": ("attention", 1, wrong), "b": ("mlp", 1, right)}, "mlp-zero"),
        ]
    )
    graded = {(row["part"], row["scorer"]): row["recall"] for row in grades(found).to_dicts()}
    assert graded == {
        ("attention", "identity"): 1,
        ("mlp", "identity"): 0,
        ("attention", "mlp-zero"): 0,
        ("mlp", "mlp-zero"): 1,
    }


def test_falls_are_counted_here_and_elsewhere() -> None:
    found = _table({"a": ("mlp", 0, [0.1, 0.5, 0.9, 0.0]), "b": ("mlp", 2, [0.49, 0.5, 1.0, 0.1])})
    by_block = falls(found, "block").filter(~pl.col("here"))
    shares = dict(by_block.select("block", "share").iter_rows())
    assert shares == {0: 0, 1: 1, 2: 1, 3: 0}
    made = {row["here"]: row for row in falls(found, "part").to_dicts()}
    assert (made[True]["n"], made[True]["share"]) == (2, 0.5)
    assert (made[False]["n"], made[False]["share"]) == (6, 0.5)


def test_places_come_from_the_manifest() -> None:
    assert place_of({"origin": {"recipe": {"part": "mlp", "block": 3}}}) == ("mlp", 3)
    assert place_of({"origin": {"recipe": {"seed": 3}}}) is None
    assert place_of({"origin": {"folder": "/x"}}) is None
    assert place_of({}) is None


def test_scores_are_what_the_tables_say(tmp_path: Path) -> None:
    groups = [Group("each", edit) for edit in ("identity", "mlp-zero")]
    made = synthetic.study(
        models={"base": ("pythia", 8), "learned": ("pythia", 8)},
        accuracies={"tiny_piqa": (0.5, 0.9)},
        per_copies=4,
        groups=groups,
    )
    models = made.write(tmp_path)
    path = tmp_path / "checkpoints/learned/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["origin"] = {"recipe": {"part": "attention", "block": 3}}
    path.write_text(json.dumps(manifest))
    keys = {"sample_id": [1, 1, 2, 2], "split": ["memorized", "memorized", "control", "control"]}
    gradient = pl.DataFrame(
        {**keys, "block": [0, 0, 0, 0], "part": ["attention", "mlp"] * 2, "value": [1.0, 2, 8, 9]}
    )
    moved = pl.DataFrame(
        {**keys, "block": [0, 0, 0, 0], "after": [0, 8, 0, 8], "kl": [None, 0.5, None, 7.0]}
    ).with_columns(change=pl.lit(1.0), relative=pl.lit(1.0))
    for frame, schema, name in (
        (gradient, schemas.ATTRIBUTION, "attribution"),
        (moved, columns.DIVERGENCE_TRIANGLE, "divergence"),
    ):
        typed = frame.select(pl.col(each).cast(column.dtype) for each, column in schema.items())
        tables.write(typed, tmp_path / name / "learned.parquet", schema, {})
    found = scores(models, tmp_path, divergence=True, attribution=True)
    assert set(found["model"]) == {"learned"}
    assert set(found["planted"]) == {3}
    edits = found.filter(pl.col("scorer").is_in(["identity", "mlp-zero"]))
    assert edits.height == 2 * 3 * 8
    others = found.filter(~pl.col("scorer").is_in(["identity", "mlp-zero"]))
    assert dict(others.select("quantity", "score").iter_rows()) == {
        "kl": 0.5,
        "attention": 1.0,
        "mlp": 2.0,
        "sum": 3.0,
    }
    memory = made.models[1].memorization.join(
        made.models[1].samples.select("sample_id", "suffix_length"), on="sample_id"
    )

    def mean(intervention: str, split: str, value: pl.Expr) -> float:
        rows = memory.filter(intervention=intervention, split=split).select(value.mean())
        return float(rows.item())

    each = pl.col("suffix_log_prob") / pl.col("suffix_length")
    lost = {
        split: mean("baseline", split, each) - mean("block-02.mlp-zero", split, each)
        for split in ("memorized", "control")
    }
    got = {
        row["quantity"]: row["score"]
        for row in found.filter(scorer="mlp-zero", block=2).iter_rows(named=True)
    }
    recitals = pl.col("exact_match").cast(pl.Float64)
    fell = mean("baseline", "memorized", recitals) - mean(
        "block-02.mlp-zero", "memorized", recitals
    )
    assert got["exact_match"] == pytest.approx(fell)
    assert got["log_prob"] == pytest.approx(lost["memorized"])
    assert got["log_prob_minus_control"] == pytest.approx(lost["memorized"] - lost["control"])


def test_the_page_tells_what_the_table_holds() -> None:
    right = {f"a-{b}": ("attention", b, [float(b == i) for i in range(4)]) for b in range(4)}
    wrong = {f"m-{b}": ("mlp", b, [float(b != i) for i in range(4)]) for b in range(4)}
    found = _table({**right, **wrong})
    told = localized(found)
    assert "8 models" in plain(told.sentences[0])
    assert "100.0% [" in plain(told.sentences[1])
    assert "names the block in 0.0% [" in plain(told.sentences[2])
    assert [len(row) for row in told.rows] == [len(told.heading)] * 2
    chance, recall, *_ = told.rows[-1]
    assert (chance, recall.value) == ("chance", 0.25)
    [plot] = found_first(found)
    assert plot.data.height == 2
    assert plot.draw(plot.data).axes
    assert set(plot.data.columns) <= set(MEANINGS)


def test_a_model_that_recites_nothing_falls_nowhere() -> None:
    scores = _table({"a-0": ("attention", 0, [0.0, 0.0])}).with_columns(
        exact_match=pl.lit(0.0), quantity=pl.lit("exact_match")
    )
    assert falls(scores)["share"].to_list() == [0.0, 0.0]
