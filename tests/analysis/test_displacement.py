"""Displacement in the summary, the evidence and the claims, against plain sums."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy import stats

from pipeline.analysis.aggregate import aggregate
from pipeline.analysis.evidence import evidence
from pipeline.analysis.verdicts import MAIN, verdicts
from pipeline.interventions import Group
from pipeline.report import figures
from pipeline.report.markup import plain
from tests.analysis import synthetic

NAME = "tiny-neo-8"
FOLLOWS = "displacement"
EQUAL = "equal-displacement"
ONE_MODEL = {NAME: ("gpt-neo", 8)}
GROUPS = [
    Group("each"),
    Group("each", "zero"),
    Group("each", "noise", draws=2),
    Group("random", k=2, draws=3),
]


def with_displacement(model, of_block):
    """The model with another displacement of each block, and some spread between samples."""
    random = np.random.default_rng(0)
    moved = model.displacement
    spread = pl.Series(random.normal(0, 0.01, moved.height))
    others = of_block(pl.col("block").cast(pl.Float64)) + spread
    known = pl.col("block").is_not_null()
    return replace(
        model,
        displacement=moved.with_columns(others=pl.when(known).then(others).otherwise(0.0)),
    )


def shuffled(block):
    order = np.random.default_rng(1).permutation(20).tolist()
    return block.replace_strict(range(20), order, default=0, return_dtype=pl.Float64)


@pytest.fixture(scope="module")
def model():
    [made] = synthetic.study(models=ONE_MODEL, groups=GROUPS).models
    return with_displacement(made, lambda block: 1 / (1 + block))


@pytest.fixture(scope="module")
def summary(model):
    return aggregate([model])


@pytest.fixture(scope="module")
def rows(model):
    return evidence([model])


def test_displacement_is_the_mean_over_the_samples(model, summary):
    for split in ("memorized", "control"):
        for name in ("block-03", "block-03.zero", "random-2-draw-1"):
            own = model.displacement.filter(intervention=name, split=split)
            found = summary.filter(metric="displacement", intervention=name, split=split)
            assert found["value"].item() == pytest.approx(own["others"].mean())
            assert found["low"].item() < found["value"].item() < found["high"].item()
            assert found["n"].item() == own.height
            assert found["difference"].item() is None
    assert not summary.filter(metric="displacement", intervention="baseline").height


def test_attention_change_stands_with_the_block_that_is_bypassed(model, summary):
    found = summary.filter(metric="attention_change", split="control")
    assert found["intervention"].to_list() == [f"block-{b:02d}" for b in range(8)]
    assert found["value"].to_list() == pytest.approx([0.1 / (1 + b) for b in range(8)], rel=0.02)


def test_survival_is_of_the_tokens_that_the_baseline_chooses(model, summary):
    """All of the synthetic tokens have one log p, so that every one is matched."""
    tokens = model.tokens.with_columns(right=pl.col("greedy") == pl.col("token"))
    key = ["sample_id", "position"]
    chosen = tokens.filter(pl.col("right"), intervention="baseline").select(key)
    shares = {}
    for split in ("memorized", "control"):
        own = tokens.filter(split=split, intervention="block-05").join(chosen, on=key)
        shares[split] = own["right"].mean()
        found = summary.filter(metric="survival", split=split, intervention="block-05")
        assert found["value"].item() == pytest.approx(shares[split])
    found = summary.filter(metric="survival_gap", intervention="block-05")
    gap = shares["memorized"] - shares["control"]
    assert found["value"].item() == pytest.approx(gap)
    assert found["low"].item() < gap < found["high"].item()
    baseline = summary.filter(metric="survival_gap", intervention="baseline")
    assert baseline.select("value", "low", "high").row(0) == (0.0, None, None)
    assert summary.filter(metric="survival_matched")["value"].to_list() == [1.0]


def test_the_evidence_has_the_displacement_of_each_block(model, summary, rows):
    moved = rows.filter(metric="displacement", kind="block", edit="identity")
    assert moved["block"].to_list() == list(range(8))
    assert set(rows.filter(metric="displacement")["edit"]) == {"identity", "zero", "noise"}
    expected = summary.filter(metric="displacement", split="memorized", edit="identity")
    expected = expected.filter(pl.col("block").is_not_null())
    assert moved["value"].to_list() == pytest.approx(expected["value"].to_list())


def judged(rows, claim):
    overall = verdicts(rows).filter(
        pl.col("model").is_null(), setup=MAIN, claim=claim, edit="identity"
    )
    return overall["verdict"].item()


def test_harm_that_follows_displacement_is_shown_and_no_other():
    """The middle blocks move the stream most, so that depth and displacement are told apart."""

    def made(kept):
        story = synthetic.Story(kept, lambda depth: 0.9)
        models = {NAME: ("gpt-neo", 20)}
        return synthetic.study(story, models, groups=[Group("each")]).models[0]

    falling = made(lambda depth: abs(2 * depth - 1))
    middle = evidence([with_displacement(falling, lambda block: 10 - (block - 10).abs())])
    ends = evidence([with_displacement(falling, lambda block: (block - 10).abs())])
    equal = made(lambda depth: 0.5)
    unrelated = evidence([with_displacement(equal, shuffled)])
    assert judged(middle, FOLLOWS) == "supported"
    assert judged(ends, FOLLOWS) == "contradicted"
    assert judged(unrelated, FOLLOWS) == "undecided"
    by_depth = evidence([with_displacement(made(lambda depth: 1 - depth), lambda block: block)])
    assert judged(by_depth, FOLLOWS) is None, "depth and displacement cannot be told apart"


def test_the_thesis_is_judged_at_equal_displacement():
    """Memory loss rises with depth; whether that is all displacement cannot be told apart."""
    story = synthetic.Story(lambda depth: max(0.0, 1 - 1.4 * depth), lambda depth: 0.9)
    [made] = synthetic.study(story, {NAME: ("gpt-neo", 20)}, groups=[Group("each")]).models
    unrelated = evidence([with_displacement(made, shuffled)])
    explained = evidence([with_displacement(made, lambda block: block)])
    assert judged(unrelated, EQUAL) == "supported"
    assert judged(explained, EQUAL) is None


@pytest.mark.parametrize("metric", ["exact_match", "suffix_log_prob", "acc"])
def test_a_slope_over_depth_is_that_of_least_squares(rows, metric):
    own = rows.filter(metric=metric, edit="identity", quantity="kept")
    own = own.filter(task=own["task"][0])
    kept = own.filter(pl.col("block") > 0).sort("block")["value"].to_numpy()
    expected = np.polyfit(np.arange(7) / 6, kept, 1)[0]
    assert own.filter(over="depth")["value"].item() == pytest.approx(expected)


def test_slopes_on_displacement_are_those_of_least_squares(model):
    own = with_displacement(model, lambda block: (block * 3) % 8)
    rows = evidence([own]).filter(metric="exact_match", edit="zero", quantity="kept")
    kept = rows.filter(pl.col("block") > 0).sort("block")["value"].to_numpy()
    depth = np.arange(7) / 6
    rank = (stats.rankdata((np.arange(1, 8) * 3) % 8) - 1) / 6
    slopes = {row["over"]: row for row in rows.filter(kind="slope").rows(named=True)}
    assert slopes["displacement"]["value"] == pytest.approx(np.polyfit(rank, kept, 1)[0])
    both = np.stack([np.ones(7), depth, rank], axis=1)
    _, expected, moved = np.linalg.lstsq(both, kept, rcond=None)[0]
    assert slopes["depth at equal displacement"]["value"] == pytest.approx(expected)
    assert slopes["displacement at equal depth"]["value"] == pytest.approx(moved)
    assert all(row["stderr"] > 0 and row["most"] == -row["least"] for row in slopes.values())


def test_without_displacement_both_are_not_measured(model):
    bare = replace(
        model,
        tokens=model.tokens.clear(),
        displacement=model.displacement.clear(),
        attention_change=model.attention_change.clear(),
    )
    rows = evidence([bare])
    assert judged(rows, FOLLOWS) is None
    assert judged(rows, EQUAL) is None
    metrics = set(aggregate([bare])["metric"])
    assert not metrics & {"displacement", "attention_change", "survival", "survival_gap"}


def test_the_lead_figure_has_a_panel_for_each_edit(summary, rows):
    lead = figures.plots(summary, rows)[0]
    assert lead.name == "kept"
    assert set(lead.data["edit"]) == {"identity", "zero", "noise"}
    titles = [axes.get_title(loc="left") for axes in figures.figure(lead).axes]
    assert [title.split(", ")[1] for title in titles] == ["identity", "zero", "noise"]
    assert "zero: with attention’s output set to zero" in plain(lead.words()["caption"])
    bare = figures.plots(summary, rows.filter(edit="identity"))[0]
    assert "zero" not in plain(bare.words()["caption"])
    assert set(bare.data["kind"]) == {"memorization", "benchmark", "mean"}
