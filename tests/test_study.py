"""A whole study on the smallest model, from the corpus to the page, under both engines."""

import re

import polars as pl
import pytest

from pipeline.study.composition import read_yaml, write
from tests.faults.kills import ENGINES, STUDY, prepare

pytestmark = pytest.mark.slow


def test_a_study_runs_to_its_page_under_both_engines(tmp_path):
    project = prepare(tmp_path / "project", ["n-0.1"])
    params = project.root / "params.yaml"
    values = read_yaml(params)
    for section, key in (
        ("models", "kills-p"),
        ("families", "kills-pythia"),
        ("evaluation", "pythia"),
    ):
        del values[section][key]
    write(values, params)
    project.said(*ENGINES["snakemake"])
    page = (project.root / f"reports/{STUDY}/index.html").read_text(encoding="utf-8")
    summary = pl.read_parquet(project.data / "summary.parquet")
    assert set(summary["model"]) == {"n-0.1"}
    assert "n-0.1" in page
    assert "up to date" in project.said("dvc", "status")

    params.write_text(re.sub(r"significance: [\d.]+", "significance: 0.06", params.read_text()))
    said = project.said(*ENGINES["dvc"])
    ran = set(re.findall(r"Running stage '(\w+)@", said))
    assert ran == {"check", "aggregate", "report"}
    assert "Nothing to be done" in project.said(*ENGINES["snakemake"])
