"""A whole study on the smallest models, from the corpus to the page, under both engines."""

import re

import polars as pl

from tests.faults.kills import ENGINES, STUDY, prepare


def test_a_study_runs_to_its_page_under_both_engines(tmp_path):
    project = prepare(tmp_path / "project")
    project.said(*ENGINES["snakemake"])
    page = (project.root / f"reports/{STUDY}/index.html").read_text(encoding="utf-8")
    summary = pl.read_parquet(project.data / "summary.parquet")
    assert {"p-0.1", "n-0.1"} <= set(summary["model"])
    assert all(name in page for name in ("p-0.1", "n-0.1"))
    assert "up to date" in project.said("dvc", "status")

    params = project.root / "params.yaml"
    params.write_text(re.sub(r"significance: [\d.]+", "significance: 0.06", params.read_text()))
    said = project.said(*ENGINES["dvc"])
    ran = set(re.findall(r"Running stage '(\w+)@", said))
    assert ran == {"check", "aggregate", "report"}
    assert "Nothing to be done" in project.said(*ENGINES["snakemake"])
