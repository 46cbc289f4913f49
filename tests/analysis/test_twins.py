"""Counterfactual memorization, against arithmetic by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from pipeline.analysis.aggregate import aggregate, write_summary
from pipeline.analysis.measured import ModelTables
from pipeline.analysis.memorized import COUNTERFACTUAL
from pipeline.report.figures import plots
from tests.analysis import synthetic


def paired(beyond: float) -> ModelTables:
    """A model whose twin recites the same, but for a share of its memorized samples."""
    [model] = synthetic.study(models={"m": ("pythia", 4)}, per_copies=16).models
    own = model.memorization
    drawn = np.random.default_rng(0).random(own.height) < beyond
    twin = own["exact_match"].to_numpy() & ~drawn
    return replace(model, memorization=own.with_columns(twin_exact_match=pl.Series(twin)))


@pytest.fixture(scope="module")
def model() -> ModelTables:
    return paired(0.6)


def test_it_is_the_difference_of_exact_match_at_each_number_of_copies(model: ModelTables) -> None:
    rows = aggregate([model]).filter(metric=COUNTERFACTUAL)
    known = model.samples.select("sample_id", "copies", "suffix_group")
    by_hand = model.memorization.join(known, on="sample_id").with_columns(
        beyond=pl.col("exact_match").cast(pl.Int8) - pl.col("twin_exact_match").cast(pl.Int8)
    )
    told = by_hand.group_by("intervention", "copies").agg(pl.mean("beyond"), pl.len())
    joined = rows.join(told, on=["intervention", "copies"], how="full", coalesce=True)
    assert joined.height == rows.height == told.height > 20
    np.testing.assert_allclose(joined["value"], joined["beyond"], atol=1e-12)
    assert joined["n"].to_list() == joined["len"].to_list()
    assert set(rows["copies"]) == set(known["copies"].drop_nulls())
    baseline = rows.filter(intervention="baseline")
    assert baseline["difference"].null_count() == baseline.height
    change = rows.join(baseline.select("copies", whole="value"), on="copies").filter(
        pl.col("intervention") != "baseline"
    )
    np.testing.assert_allclose(change["difference"], change["value"] - change["whole"], atol=1e-12)
    alone = replace(model, memorization=model.memorization.drop("twin_exact_match"))
    assert aggregate([alone]).filter(metric=COUNTERFACTUAL).height == 0


def test_equal_twins_leave_an_interval_around_nothing() -> None:
    model = paired(0.0)
    rows = aggregate([model]).filter(metric=COUNTERFACTUAL)
    assert (rows["value"] == 0).all()
    for row in rows.iter_rows(named=True):  # t²/n, as for a share that is 0 in all samples
        own = model.samples.filter(copies=row["copies"])
        sizes = own.group_by("suffix_group").len()["len"].to_numpy()
        n = sizes.sum() ** 2 / (sizes**2).sum()  # samples of a group count as one
        reach = stats.t.ppf(0.975, n - 1) ** 2 / n
        assert row["high"] == pytest.approx(min(reach, 1.0))
        assert row["low"] == pytest.approx(-row["high"])


def test_what_the_twin_lacks_is_left_out(model: ModelTables) -> None:
    """As of a patch from the twin itself, which the twin has not."""
    lacks = pl.when(pl.col("intervention") != "block-02").then("twin_exact_match")
    some = model.memorization.with_columns(twin_exact_match=lacks)
    rows = aggregate([replace(model, memorization=some)]).filter(metric=COUNTERFACTUAL)
    whole = aggregate([model]).filter(metric=COUNTERFACTUAL)
    assert rows.drop("p_holm").equals(
        whole.filter(pl.col("intervention") != "block-02").drop("p_holm")
    )


def test_a_twin_is_no_model_of_the_summary(tmp_path: Path) -> None:
    study = synthetic.study(models={"seen": ("pythia", 4), "twin": ("pythia", 4)}, per_copies=16)
    compared, _ = write_summary("s", study.write(tmp_path), tmp_path, twins={"seen": "twin"})
    assert set(compared["model"]) == {"seen"}
    assert compared.filter(metric=COUNTERFACTUAL).height
    for table in ("evidence", "verdicts"):
        judged = pl.read_parquet(tmp_path / f"{table}.parquet")
        assert set(judged["model"].drop_nulls()) == {"seen"}
    drawn = plots(compared, pl.read_parquet(tmp_path / "evidence.parquet"))
    assert drawn[0].name == "twins", "the page leads with it"
    assert all(set(plot.data["model"].drop_nulls()) == {"seen"} for plot in drawn)
