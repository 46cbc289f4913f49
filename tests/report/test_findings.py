"""Every verdict flips when the data flip."""

from dataclasses import asdict, replace

import polars as pl
import pytest
import synthetic

from pipeline.params import Thresholds as Configured
from pipeline.report.aggregate import aggregate
from pipeline.report.findings import (
    OURS,
    Finding,
    Thresholds,
    block_range,
    findings,
    in_short,
)
from pipeline.report.text import percent_interval
from pipeline.report.views import drops, kept
from pipeline.study import CONF, compose

CLAIMS = ("late", "early", "size", "reasoning", "quartiles", "length")
EVERYWHERE = "shown in 4 of 4 models"
NOWHERE = "not shown in any of 4 models"
NO_FAMILY = "not shown in any of 2 families"


def named(judged: list[Finding]) -> dict[str, Finding]:
    return dict(zip(CLAIMS, judged, strict=True))


def verdicts(summary: pl.DataFrame) -> dict[str, str]:
    return {claim: finding.verdict for claim, finding in named(findings(summary)).items()}


def told(story: synthetic.Story) -> dict[str, str]:
    return verdicts(aggregate(synthetic.study(story).models))


def test_the_papers_story_is_shown(summary: pl.DataFrame) -> None:
    assert verdicts(summary) == {
        "late": EVERYWHERE,
        "early": EVERYWHERE,
        "size": NO_FAMILY,
        "reasoning": NOWHERE,
        "quartiles": EVERYWHERE,
        "length": EVERYWHERE,
    }


@pytest.mark.parametrize("story", [synthetic.NOTHING, synthetic.OPPOSITE])
def test_nothing_happens_to_memorization(story: synthetic.Story) -> None:
    assert told(story) == {
        "late": NOWHERE,
        "early": NOWHERE,
        "size": NO_FAMILY,
        "reasoning": NOWHERE,
        "quartiles": NOWHERE,
        "length": "not measured",
    }


def test_late_blocks_that_cost_the_benchmarks_too() -> None:
    both = told(synthetic.Story(lambda depth: 0.3, lambda depth: 0.3))
    assert (both["late"], both["early"]) == (NOWHERE, EVERYWHERE)


def test_larger_models_that_resist() -> None:
    assert told(replace(synthetic.PAPER, small=0.3))["size"] == "shown in 2 of 2 families"


def test_larger_models_that_resist_less() -> None:
    """The names say nothing: what counts is the number of parameters."""
    models = synthetic.study(replace(synthetic.PAPER, small=0.3)).models
    turned = {8: 2_000_000, 12: 1_000_000}
    summary = aggregate([replace(m, parameters=turned[m.n_blocks]) for m in models])
    assert verdicts(summary)["size"] == NO_FAMILY


def test_size_takes_two_sizes(study: synthetic.Study) -> None:
    first, *_ = study.models
    again = replace(first, name="another-seed")
    assert verdicts(aggregate([first, again]))["size"] == "not measured"
    unknown = [replace(model, parameters=None) for model in study.models]
    assert verdicts(aggregate(unknown))["size"] == "not measured"
    only = named(findings(aggregate(study.models[:2])))["size"]
    assert only.verdict == "not shown in any of 1 family"
    assert only.measured == ["pythia"]


def test_reasoning_that_resists() -> None:
    assert told(replace(synthetic.PAPER, language=0.5))["reasoning"] == EVERYWHERE


def test_reasoning_is_judged_by_the_lead_over_chance(summary: pl.DataFrame) -> None:
    """All lose the same share of their lead; of the scores, those with chance lose less."""
    lost = (
        drops(summary).filter(pl.col("block") > 0).group_by("scale", "ability").agg(pl.mean("drop"))
    )
    mean = {(row["scale"], row["ability"]): row["drop"] for row in lost.iter_rows(named=True)}
    assert mean["raw", "language"] > mean["raw", "reasoning"] + 0.02
    assert mean["corrected", "language"] == pytest.approx(mean["corrected", "reasoning"], abs=0.03)


def test_reasoning_takes_tasks_of_both_kinds() -> None:
    story = synthetic.study(accuracies={"tiny_piqa": (0.5, 0.9), "other": (0.25, 0.8)})
    assert verdicts(aggregate(story.models))["reasoning"] == "not measured"


def test_quartiles_that_leave_something() -> None:
    left = told(replace(synthetic.PAPER, quartiles=1.0))
    assert left["quartiles"] == NOWHERE


def test_no_quartiles_are_not_measured() -> None:
    small = aggregate(synthetic.study(models={"three": ("f", 3)}).models)
    assert verdicts(small)["quartiles"] == "not measured"


def test_tokens_that_fall_with_exact_match(summary: pl.DataFrame) -> None:
    """With teacher-forced accuracy as low as exact match, length explains nothing."""
    tokens = pl.col("metric") == "teacher_forced_accuracy"
    exact = summary.filter(metric="exact_match").with_columns(
        pl.lit("teacher_forced_accuracy").alias("metric")
    )
    flipped = pl.concat([summary.filter(~tokens), exact])
    assert verdicts(flipped)["length"] == NOWHERE


def test_one_model_may_differ(study: synthetic.Study) -> None:
    unlike = synthetic.study(synthetic.NOTHING).models[0]
    mixed = aggregate([unlike, *study.models[1:]])
    assert verdicts(mixed)["late"] == "shown in 3 of 4 models"


def test_a_fall_by_chance_does_not_count(summary: pl.DataFrame) -> None:
    unsure = summary.with_columns((pl.col("p_holm") * 0 + 0.06).alias("p_holm"))
    assert verdicts(unsure)["late"] == NOWHERE
    lenient = findings(unsure, Thresholds(significance=0.1))
    assert lenient[0].verdict == EVERYWHERE


def test_the_sentence_holds_the_summarys_numbers(summary: pl.DataFrame) -> None:
    exact = summary.filter(metric="exact_match", split="memorized")
    sentence = findings(summary)[0].detail
    block = int(sentence.split("block ")[1].split(":")[0])
    model = sentence.split("affected is ")[1].split(",")[0]
    row = exact.filter(model=model, block=block).row(0, named=True)
    whole = exact.filter(model=model, intervention="baseline").row(0, named=True)
    for each in (row, whole):
        assert percent_interval(each["value"], each["low"], each["high"]) in sentence


def test_the_statistic_holds_the_summarys_numbers(summary: pl.DataFrame) -> None:
    judged = named(findings(summary))
    exact = summary.filter(metric="exact_match", split="memorized", model="tiny-neo-12")
    statistic = judged["late"].statistic.split("tiny-neo-12, block ")[1]
    row = exact.filter(block=int(statistic.split(":")[0])).row(0, named=True)
    low, high = (100 * row[f"difference_{end}"] for end in ("low", "high"))
    assert f"{100 * row['difference']:+.1f} points [{low:+.1f}, {high:+.1f}]" in statistic
    assert f"p = {row['p_holm']:.2g} after Holm" in statistic
    mean = kept(summary).filter(model="tiny-neo-12", measure="exact_match")["kept"].mean()
    assert f"tiny-neo-12 {100 * mean:.1f}%" in judged["size"].statistic
    most = (
        exact.filter(pl.col("intervention").str.starts_with("quartile"))
        .sort("high")
        .row(-1, named=True)
    )
    highest = percent_interval(most["value"], most["low"], most["high"])
    assert f"tiny-neo-12: at most {highest}" in judged["quartiles"].statistic
    lost = drops(summary).filter(model="tiny-neo-12", scale="corrected", ability="reasoning")
    told_of = judged["reasoning"].statistic.split("tiny-neo-12: ")[1]
    assert f"reasoning {100 * lost['drop'].mean():.1f}%" in told_of


def test_every_finding_says_where_it_is_from_and_when_it_is_shown(summary: pl.DataFrame) -> None:
    limits = Thresholds(reduced=0.12, collapsed=0.34, resists=0.07, near_zero=0.03, by_length=0.45)
    judged = findings(summary, limits)
    assert [finding.source == OURS for finding in judged] == [False] * 5 + [True]
    rules = [finding.rule for finding in judged]
    expected = ("12%", "34%", "7 percentage points", "7 percentage points", "3%", "45%")
    for rule, threshold in zip(rules, expected, strict=True):
        assert threshold in rule
    for finding in judged:
        assert all(name in finding.statistic for name in finding.measured)
        assert set(finding.shown) <= set(finding.measured)


def test_thresholds_decide(summary: pl.DataFrame) -> None:
    strict = Thresholds(reduced=0.99, collapsed=0.999, near_zero=0.0001, resists=1.0)
    assert [f.shown for f in findings(summary, strict)] == [[]] * 6
    lax = named(findings(summary, Thresholds(resists=-1.0)))
    assert lax["size"].shown == []  # the interval has to lie above 0 as well


def test_the_thresholds_of_the_params_are_those_of_the_findings(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Written thrice: in the schema, in pipeline/conf/, and here for a caller without a study."""
    assert asdict(Thresholds()) == Configured().model_dump()
    path = tmp_path_factory.mktemp("params") / "params.yaml"
    study = compose({"study": "tiny"}, CONF, path)
    assert study.statistics.thresholds.model_dump() == asdict(Thresholds())
    assert "near_zero: 0.05" in path.read_text(encoding="utf-8")


def test_a_study_without_benchmarks_or_blocks_says_so(study: synthetic.Study) -> None:
    first = study.models[0]
    summary = aggregate([first]).filter(task="memorization")
    without = verdicts(summary)
    assert [without[claim] for claim in ("late", "early", "reasoning")] == ["not measured"] * 3
    only_baseline = summary.filter(intervention="baseline")
    judged = findings(only_baseline)
    assert [f.verdict for f in judged] == ["not measured"] * 6
    assert all("can tell: it takes" in f.sentence and not f.statistic for f in judged)


@pytest.mark.parametrize(
    ("n_blocks", "early", "late"),
    [(1, [], []), (5, [1], [3, 4]), (8, [1], [4, 5, 6, 7]), (24, range(1, 6), range(12, 24))],
)
def test_block_ranges(n_blocks: int, early: list[int], late: list[int]) -> None:
    assert list(block_range(n_blocks, late=False)) == list(early)
    assert list(block_range(n_blocks, late=True)) == list(late)


def test_a_benchmark_at_chance_has_nothing_to_lose() -> None:
    story = synthetic.study(accuracies={"blind": (0.5, 0.5), "able": (0.5, 0.9)})
    rows = kept(aggregate(story.models)).filter(kind="benchmark")
    assert rows["measure"].unique().to_list() == ["able"]


def test_in_short_it_is_three_sentences(summary: pl.DataFrame) -> None:
    judged = findings(summary)
    late, early, tally = in_short(judged)
    assert late.startswith(judged[0].sentence[:-1])
    assert late.endswith("little cost to the benchmarks, is shown in 4 of 4 models).")
    assert early == judged[1].sentence
    assert tally == (
        "Of the 5 claims of the paper that are judged here, 3 are shown in every model or family "
        "that can tell and 2 are shown in none; that exact match exaggerates the loss is shown in "
        "4 of 4 models."
    )


def test_in_short_nothing_measured_is_said(summary: pl.DataFrame) -> None:
    *_, tally = in_short(findings(summary.clear()))
    assert tally == "Of the 5 claims of the paper that are judged here, 5 are not measured."


@pytest.mark.parametrize(
    ("shown", "measured", "degree"),
    [("ab", "ab", "all"), ("a", "ab", "some"), ("", "ab", "none"), ("", "", "unmeasured")],
)
def test_degrees(shown: str, measured: str, degree: str) -> None:
    assert Finding("c", "s", shown, measured, "", "", "").degree == degree
