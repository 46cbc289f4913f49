"""The tables of a few samples token by token."""

import numpy as np
import polars as pl
import pytest

from pipeline.interventions.interventions import sweep
from pipeline.measure import memorization, schemas
from pipeline.measure.chosen import LEAST, MOST, chosen
from pipeline.measure.tokens import measure, shown
from pipeline.models.sites import anatomy
from pipeline.workflow import tables
from tests.measure.cases import FIRST_ID, random_samples

PREFIX, SUFFIX = 6, 5


def samples_of(splits):
    return random_samples(len(splits), PREFIX, SUFFIX, splits)


def test_the_tables_agree_with_the_table_of_memorization(model):
    samples = samples_of(["memorized", "control", "exposed"] * 4)
    swept = sweep(len(anatomy(model).sites))
    looked = measure(model, samples, swept)
    expected = schemas.TOKENS, schemas.DISPLACEMENT, schemas.ATTENTION_CHANGE
    for frame, schema in zip(looked, expected, strict=True):
        assert frame.schema == tables.dtypes(schema)
        full = [name for name, column in schema.items() if not column.nullable]
        assert not any(frame.select(full).null_count().row(0))
    assert looked.tokens.height == len(swept) * 8 * SUFFIX
    assert looked.displacement.height == len(swept) * 8
    assert set(looked.tokens["split"]) == {"memorized", "control"}
    suffixes = dict(samples.select("sample_id", pl.col("tokens").list.tail(SUFFIX)).rows())
    for (sample,), rows in looked.tokens.filter(intervention="baseline").group_by("sample_id"):
        assert rows.sort("position")["token"].to_list() == suffixes[sample]
    found = looked.tokens.group_by("intervention", "sample_id").agg(
        total=pl.col("log_prob").cast(pl.Float64).sum(),
        right=(pl.col("greedy") == pl.col("token")).mean(),
        worst=pl.col("rank").max(),
    )
    whole = memorization.measure(model, samples, swept)
    both = found.join(whole, on=["intervention", "sample_id"])
    assert both.height == len(swept) * 8
    assert both["total"].to_list() == pytest.approx(both["suffix_log_prob"].to_list(), abs=1e-4)
    assert both["right"].to_list() == both["teacher_forced_accuracy"].to_list()
    assert both["worst"].to_list() == both["worst_rank"].to_list()


def test_samples_are_spread_over_a_split_and_limited(model):
    looked = measure(model, samples_of(["memorized"] * 5 * LEAST), sweep(1, []))
    ids = looked.displacement["sample_id"].to_list()
    assert ids == [FIRST_ID + 5 * i for i in range(LEAST)]
    assert looked.displacement["block"].null_count() == LEAST
    many = samples_of(["memorized"] * 700 + ["control"] * 50)
    assert [*chosen(many)["split"]] == ["memorized"] * MOST + ["control"] * 50
    assert chosen(many.head(300)).height == 30


def test_without_such_samples_the_tables_are_empty(model):
    looked = measure(model, samples_of(["exposed", "famous"]), sweep(1))
    assert [frame.height for frame in looked] == [0, 0, 0]


def test_what_is_shown_is_chosen_for_a_reason():
    """Two interventions of four tokens; the first row is the baseline."""
    right = np.ones((3, 24, 4), bool)
    memorized = np.arange(24) < 20
    right[1:, 0] = False  # recited, and nothing survives
    right[1, 1:6, 0] = False  # a wrong token, then right ones
    right[0, 6:20, 3] = False  # not recited
    right[0, 20:22] = False  # control samples of which nothing is right
    why = shown(right, 0, memorized)
    assert why[0] == "fragile"
    assert [n for n in range(24) if why[n] == "survives"] == [1, 2, 3, 4]
    assert why[5] == "fragile"
    assert [n for n in range(24) if why[n] == "control"] == [20, 21, 22, 23]
    assert why.count("random") == 4
    assert all(memorized[n] for n in range(24) if why[n] == "random")
    assert "rejoins" not in why  # they are taken already
    right[1:, 10, :2] = False
    assert shown(right, 0, memorized)[10] == "rejoins"
    assert shown(right, 0, memorized) == shown(right, 0, memorized)
