"""What single blocks and sets of blocks keep of the baseline, read from the evidence."""

from dataclasses import replace

import polars as pl
import pytest

from pipeline.analysis import views
from pipeline.analysis.aggregate import aggregate
from pipeline.analysis.evidence import evidence
from pipeline.analysis.kept import kept, one_block
from pipeline.analysis.statistics import student
from pipeline.interventions import Group
from tests.analysis import synthetic

ONE_MODEL = {"tiny-neo-8": ("gpt-neo", 8)}
GROUPS = [Group("each"), Group("each", "zero"), Group("quartiles"), Group("random", k=2, draws=3)]


@pytest.fixture(scope="module")
def model() -> synthetic.ModelTables:
    [model] = synthetic.study(models=ONE_MODEL, groups=GROUPS).models
    return model


@pytest.fixture(scope="module")
def shares(model: synthetic.ModelTables) -> pl.DataFrame:
    return kept(evidence([model]))


def rate(model: synthetic.ModelTables, intervention: str, split: str) -> float:
    rows = model.memorization.filter(intervention=intervention, split=split)
    return float(rows["exact_match"].cast(pl.Float64).mean())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["block-05", "block-05.zero", "quartile-4"])
def test_kept_is_the_share_of_the_lead_over_control_samples(name, shares, model):
    floor = rate(model, "baseline", "control")
    lead = rate(model, "baseline", "memorized") - floor
    expected = (rate(model, name, "memorized") - floor) / lead
    row = shares.filter(intervention=name, measure="exact_match").row(0, named=True)
    assert row["kept"] == pytest.approx(expected)
    assert row["low"] <= expected <= row["high"]


def test_each_edit_of_a_block_is_a_row(shares):
    rows = shares.filter(group="block", block=5, measure="exact_match")
    found = dict(rows.select("edit", "intervention").iter_rows())
    assert found == {"identity": "block-05", "zero": "block-05.zero"}
    assert one_block(shares, "zero")["intervention"].str.ends_with(".zero").all()
    assert not one_block(shares)["intervention"].str.contains(".zero", literal=True).any()


def test_seeds_are_one_row_whose_interval_holds_that_between_seeds(model):
    [nothing] = synthetic.study(synthetic.NOTHING, models=ONE_MODEL, groups=GROUPS).models
    made = (model, nothing, model)
    seeds = [replace(one, name=f"a-s{i}", recipe="a") for i, one in enumerate(made)]
    rows = evidence(seeds)
    where = {"intervention": "block-05", "measure": "exact_match"}
    one_by_one = kept(rows, pooled=False).filter(**where)["kept"].to_numpy()
    together = kept(rows)
    assert together["model"].unique().to_list() == ["a-s0 (3 seeds)"]
    row = together.filter(**where).row(0, named=True)
    low, high = student(one_by_one)
    assert row["low"] <= low < row["kept"] < high <= row["high"]
    assert row["kept"] == pytest.approx(one_by_one.mean())
    # where one seed lacks a metric, the name still counts all
    partly = aggregate(seeds).remove(model="a-s2", metric="exact_match_by_copies")
    assert views.over_seeds(partly)["model"].unique().to_list() == ["a-s0 (3 seeds)"]
