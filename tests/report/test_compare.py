"""Two summaries compared: the same is the same, and what changed is found with its interval."""

import json
import re
from dataclasses import replace

import polars as pl
import pytest
from statsmodels.stats.proportion import proportion_confint

from pipeline.analysis import views
from pipeline.analysis.aggregate import aggregate
from pipeline.report.compare import Side, _row, changes, read_side, read_sides, write_comparison
from pipeline.workflow.errors import InputError
from tests.analysis import synthetic

SMALL = {"models": {"tiny-neo-8": ("gpt-neo", 8)}, "accuracies": {"tiny_piqa": (0.5, 0.9)}}


@pytest.fixture(scope="module")
def before() -> pl.DataFrame:
    return aggregate(synthetic.study(**SMALL).models)


@pytest.fixture(scope="module")
def after() -> pl.DataFrame:
    """The same models, whose memorization no bypass harms."""
    return aggregate(synthetic.study(synthetic.NOTHING, **SMALL).models)


def test_a_study_does_not_differ_from_itself(before):
    made = changes(before, before)
    assert made.height == before.height
    assert made["change"].drop_nulls().abs().max() == 0
    assert not made["beyond_chance"].any()
    assert (made.filter(pl.col("change_low").is_not_null())["change_low"] <= 0).all()


def test_the_categories_of_a_benchmark_are_matched_each_with_itself(before):
    [model] = synthetic.study(**SMALL).models
    named = model.documents.with_columns(category=pl.format("c{}", pl.col("doc_id") % 3))
    rows = aggregate([replace(model, documents=named)])
    by_category = rows.filter(metric="acc_by_category")
    assert by_category["category"].to_list() == ["c0", "c1", "c2"]
    made = changes(rows, rows)
    assert made.height == rows.height
    assert made["change"].drop_nulls().abs().max() == 0
    shown = {_row(0, row)[3] for row in made.filter(metric="acc_by_category").rows(named=True)}
    assert shown == {f"acc_by_category, c{i}" for i in range(3)}
    seeds = pl.concat([rows, rows.with_columns(model=pl.lit("other"))])
    pooled = views.over_seeds(seeds)
    assert pooled.height == rows.height
    kept = pooled.filter(metric="acc_by_category").select("category", "value")
    assert kept.equals(by_category.select("category", "value"))


def test_a_change_is_after_minus_before_within_its_interval(before, after):
    made = changes(before, after)
    row = made.filter(intervention="block-05", metric="exact_match", split="memorized").row(
        0, named=True
    )
    assert row["change"] == pytest.approx(row["after"] - row["before"])
    assert row["change"] > 0.3
    assert row["change_low"] < row["change"] < row["change_high"]
    assert row["beyond_chance"]
    assert made["beyond_chance"].to_list() == sorted(made["beyond_chance"], reverse=True)
    rows = made.filter(pl.col("k").is_not_null()).rows(named=True)
    units = {row["metric"]: _row(0, row)[3] for row in rows}
    assert units["extractable_top_40"].endswith(" tries")
    assert units["exact_match_at_k"].endswith(" tokens")
    assert _row(0, rows[0] | {"k": 1, "copies": 1})[3].endswith(
        (" at 1 token, 1 copy", "1 try, 1 copy")
    )


def test_newcombes_example():
    """Newcombe (1998), Table II (a): 56/70 against 48/80, method 10: 0.0524 to 0.3339."""
    key = {"model": "m", "intervention": "baseline", "split": "memorized", "task": "t"}
    kinds = {"k": pl.UInt16, "copies": pl.UInt32, "block": pl.UInt16, "category": pl.String}
    kinds |= {"higher_is_better": pl.Boolean, "edit": pl.String, "group": pl.String}
    sides = []
    for right, n in ((48, 80), (56, 70)):
        low, high = proportion_confint(right, n, method="wilson")
        values = {"metric": "exact_match", "value": right / n, "low": low, "high": high}
        sides.append(pl.DataFrame([key | values | dict.fromkeys(kinds)], schema_overrides=kinds))
    row = changes(*sides).row(0, named=True)
    assert row["change"] == pytest.approx(0.2)
    assert row["change_low"] == pytest.approx(0.0524, abs=5e-5)
    assert row["change_high"] == pytest.approx(0.3339, abs=5e-5)


def test_the_page_says_what_changed(before, after, tmp_path):
    folder = tmp_path / "compared"
    hostile = '<script>alert("x")</script>'
    one = Side("one", before, {"seed": 0, "same": 1})
    write_comparison(one, Side(hostile, after, {"seed": 1, "same": 1}), folder)
    page = (folder / "index.html").read_text(encoding="utf-8")
    files = ["changes.csv", "index.html", "numbers.json"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert "block-05" in page
    assert "<svg" in page
    exact = changes(before, after).filter(metric="exact_match", split="memorized", group="each")
    text = re.sub("<.?data[^>]*>", "", page)
    assert f"at most {100 * max(map(abs, exact['change'])):.0f} percentage points." in text
    assert "<td>0</td><td>1</td>" in page  # the setting that differs
    assert "same" not in page.split("What was set differently")[-1].split("<h2")[0]
    assert hostile not in page
    assert "&lt;script&gt;" in page
    found = pl.read_csv(folder / "changes.csv", infer_schema_length=None)
    numbers = {row["name"]: row for row in json.loads((folder / "numbers.json").read_text())}
    assert numbers["estimates"]["value"] == found.height
    assert numbers["clear"]["value"] == found["beyond_chance"].sum()
    for i, row in enumerate(found.head(numbers["shown"]["value"]).iter_rows(named=True)):
        change = numbers[f"changes/{i}/change"]
        drawn = [change["value"], change["low"], change["high"]]
        assert drawn == [row["change"], row["change_low"], row["change_high"]]
        assert numbers[f"changes/{i}/before"]["value"] == row["before"]
    assert found.height == changes(before, after).height
    assert set(found["metric"]) == set(before["metric"])


def test_sides_that_cannot_be_compared_are_refused(before, tmp_path):
    other = before.with_columns(model=pl.lit("another"))
    with pytest.raises(InputError, match="no estimate in common"):
        write_comparison(Side("a", before, {}), Side("b", other, {}), tmp_path / "compared")
    assert not (tmp_path / "compared").exists()
    for one, other in (("tiny", "tiny"), ("tiny@main", "tiny@main"), ("tiny", "tiny@")):
        with pytest.raises(InputError, match=r"twice[\s\S]*another: STUDY, or STUDY@REVISION"):
            read_sides(one, other)
    for name in ("../kills", "", "a/b", "..", "@main", "-x", "a b", "a\n", "ä"):
        with pytest.raises(InputError, match=r"the study [\s\S]*letters, digits") as caught:
            read_side(name)
        assert "make run" not in str(caught.value)
    with pytest.raises(InputError, match="make run STUDY=never-run"):
        read_sides("never-run", "tiny")
