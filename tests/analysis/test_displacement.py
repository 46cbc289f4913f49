"""Displacement in the summary, the evidence and the claims, against plain sums."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy import stats

from pipeline.analysis.aggregate import aggregate
from pipeline.analysis.estimates import measured_models
from pipeline.analysis.evidence import evidence
from pipeline.analysis.gaps import gaps
from pipeline.analysis.verdicts import MAIN, verdicts
from pipeline.interventions import Group
from pipeline.report import figures
from pipeline.report.markup import plain
from tests.analysis import synthetic

NAME = "tiny-neo-8"
FOLLOWS = "displacement"
EQUAL = "equal-displacement"
ONE_MODEL = {NAME: ("gpt-neo", 8)}
GROUPS = [Group("each"), Group("each", "zero"), Group("each", "noise", draws=2)]
GROUPS += [Group("random", k=2, draws=3)]


def with_displacement(model, of_block):
    """The model with another displacement of each block, and some spread between samples."""
    random = np.random.default_rng(0)
    moved = model.displacement
    spread = pl.Series(random.normal(0, 0.01, moved.height))
    others = of_block(pl.col("block").cast(pl.Float64)) + spread
    known = pl.when(pl.col("block").is_not_null()).then(others).otherwise(0.0)
    return replace(model, displacement=moved.with_columns(others=known))


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
    # that of attention stands with the block that is bypassed
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
    expected = expected.drop_nulls("block")
    assert moved["value"].to_list() == pytest.approx(expected["value"].to_list())


def judged(rows, claim):
    overall = verdicts(rows).filter(setup=MAIN, claim=claim, edit="identity")
    return overall.filter(pl.col("model").is_null())["verdict"].item()


def study_of(kept):
    """A model of 20 blocks whose single bypasses leave these shares."""
    story = synthetic.Story(kept, lambda depth: 0.9)
    return synthetic.study(story, {NAME: ("gpt-neo", 20)}, groups=[Group("each")]).models[0]


def test_harm_is_told_to_follow_displacement_or_depth():
    """The middle blocks move the stream most, so that depth and displacement are told apart."""
    falling, equal = study_of(lambda depth: abs(2 * depth - 1)), study_of(lambda depth: 0.5)
    deeper = study_of(lambda depth: max(0.0, 1 - 1.4 * depth))
    for model, moved, claim, verdict in (
        (falling, lambda block: 10 - (block - 10).abs(), FOLLOWS, "supported"),
        (falling, lambda block: (block - 10).abs(), FOLLOWS, "contradicted"),
        (equal, shuffled, FOLLOWS, "undecided"),
        (deeper, shuffled, EQUAL, "supported"),
        (deeper, lambda block: block, FOLLOWS, None),  # cannot be told apart
        (deeper, lambda block: block, EQUAL, None),
    ):
        assert judged(evidence([with_displacement(model, moved)]), claim) == verdict


def test_slopes_are_those_of_least_squares(model):
    rows = evidence([with_displacement(model, lambda block: (block * 3) % 8)])
    depth = np.arange(7) / 6
    rank = (stats.rankdata((np.arange(1, 8) * 3) % 8) - 1) / 6
    both = np.stack([np.ones(7), depth, rank], axis=1)
    for metric in ("exact_match", "suffix_log_prob", "acc"):
        own = rows.filter(metric=metric, edit="zero", quantity="kept")
        own = own.filter(task=own["task"][0])
        kept = own.filter(pl.col("block") > 0).sort("block")["value"].to_numpy()
        slopes = own.filter(kind="slope")
        _, by_depth, by_rank = np.linalg.lstsq(both, kept, rcond=None)[0]
        assert dict(slopes.select("over", "value").iter_rows()) == pytest.approx(
            {
                "depth": np.polyfit(depth, kept, 1)[0],
                "displacement": np.polyfit(rank, kept, 1)[0],
                "depth at equal displacement": by_depth,
                "displacement at equal depth": by_rank,
            }
        )
        assert (slopes["stderr"] > 0).all()
        assert slopes["most"].equals(-slopes["least"])  # null where there is no limit


def test_a_mean_over_blocks_has_an_interval_if_each_has(rows, summary):
    late = summary["block"].is_in([6, 7]) & (summary["metric"] == "survival_gap")
    [value] = summary.filter(late, edit="zero").select(-pl.mean("value")).to_series()
    unknown = pl.when(pl.col("intervention") != "block-07.zero").then(pl.col("low", "high"))
    for table, known in ((summary, True), (summary.with_columns(unknown), False)):
        found = gaps(rows, table).filter(measure="survival_gap", edit="zero").row(0, named=True)
        assert found["gap"] == pytest.approx(value)
        assert (found["low"] is not None and found["low"] < value < found["high"]) == known


def test_a_seed_without_a_slope_keeps_its_benchmarks(model):
    """Where displacement and depth rank alike there is no slope at equal displacement."""
    seeds = (model, with_displacement(model, shuffled))
    rows = evidence([replace(one, name=f"s{i}", recipe="r") for i, one in enumerate(seeds)])
    [both], [alone] = (measured_models(each) for each in (rows, evidence([model])))
    assert both.metrics == alone.metrics
    assert len(both.metrics) == 4


def test_without_displacement_both_are_not_measured(model):
    names = ("tokens", "displacement", "attention_change")
    bare = replace(model, **{name: getattr(model, name).clear() for name in names})
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
