"""What `dvc metrics` and `dvc plots` compare is what the summary says."""

import json
from pathlib import Path

import polars as pl
import pytest

from pipeline.analysis.evidence import gathered
from pipeline.analysis.headline import by_block, numbers, write_headline


def test_numbers_are_the_summarys(summary: pl.DataFrame, evidence_of_paper: pl.DataFrame) -> None:
    made = numbers(summary, evidence_of_paper)["tiny-neo-8"]
    where = {"model": "tiny-neo-8", "intervention": "baseline"}
    [whole] = summary.filter(**where, metric="exact_match", split="memorized")["value"]
    assert made["baseline"]["exact_match"] == pytest.approx(whole, abs=1e-6)
    tasks = summary.filter(**where, metric="acc")["value"]
    assert len(tasks) == 4
    assert made["baseline"]["accuracy"] == pytest.approx(tasks.mean(), abs=1e-6)
    exact = summary.filter(model="tiny-neo-8", metric="exact_match", split="memorized")
    blocks = exact.filter(pl.col("block").is_not_null())
    assert blocks.height == 8
    assert made["one_block"]["exact_match"] == pytest.approx(blocks["value"].mean(), abs=1e-6)
    quarters = exact.filter(pl.col("intervention").str.starts_with("quartile-"))
    assert made["one_quartile"]["exact_match"] == pytest.approx(quarters["value"].mean(), abs=1e-6)
    late = evidence_of_paper.filter(model="tiny-neo-8", over="late", quantity="kept")
    memory = late.filter(metric="exact_match")["value"][0]
    ability = late.filter(metric="acc")["value"].mean()
    gap = made["late_blocks"]["memory_minus_ability"]
    assert gap == pytest.approx(ability - memory, abs=1e-6)


def test_files_hold_each_model_and_a_row_a_block(
    summary: pl.DataFrame, evidence_of_paper: pl.DataFrame, tmp_path: Path
) -> None:
    write_headline(summary, evidence_of_paper, tmp_path / "metrics.json", tmp_path / "curves")
    models = set(summary["model"])
    assert set(json.loads((tmp_path / "metrics.json").read_text())) == models
    assert {path.stem for path in (tmp_path / "curves").iterdir()} == models
    curve = by_block(summary.filter(model="tiny-pythia-12"))
    assert curve["block"].to_list() == list(range(12))
    assert {"exact_match", "completion_entropy", "tiny_hellaswag"} <= set(curve.columns)
    at = summary.filter(model="tiny-pythia-12", block=3, metric="exact_match", split="memorized")
    assert curve["exact_match"][3] == at["value"][0]


def test_unmeasured_is_left_out(summary: pl.DataFrame, evidence_of_paper: pl.DataFrame) -> None:
    without_bypass = numbers(summary, evidence_of_paper.with_columns(edit=pl.lit("zero")))
    assert set(without_bypass) == set(summary["model"])
    assert not any("late_blocks" in cuts for cuts in without_bypass.values())
    without_benchmarks = numbers(summary.filter(task="memorization"), gathered([]))
    cuts = without_benchmarks["tiny-neo-8"].values()
    assert [list(cut) for cut in cuts] == [["exact_match"]] * 3
