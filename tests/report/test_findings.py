"""Every verdict flips when the data flip."""

import polars as pl
import pytest
import synthetic

from pipeline.report.aggregate import aggregate
from pipeline.report.findings import Thresholds, block_range, findings
from pipeline.report.text import percent_interval
from pipeline.report.views import kept


def verdicts(story: synthetic.Story) -> list[str]:
    return [f.verdict for f in findings(aggregate(synthetic.study(story).models))]


def test_the_papers_story_is_shown(summary: pl.DataFrame) -> None:
    assert [f.verdict for f in findings(summary)] == ["shown in 4 of 4 models"] * 3


def test_nothing_happens() -> None:
    nowhere = "not shown in any of 4 models"
    assert verdicts(synthetic.NOTHING) == [nowhere, nowhere, "not measured"]


def test_only_the_benchmarks_suffer() -> None:
    nowhere = "not shown in any of 4 models"
    assert verdicts(synthetic.OPPOSITE) == [nowhere, nowhere, "not measured"]


def test_late_blocks_that_cost_the_benchmarks_too() -> None:
    both = synthetic.Story(lambda depth: 0.3, lambda depth: 0.3)
    assert verdicts(both)[:2] == ["not shown in any of 4 models", "shown in 4 of 4 models"]


def test_tokens_that_fall_with_exact_match(summary: pl.DataFrame) -> None:
    """With teacher-forced accuracy as low as exact match, length explains nothing."""
    tokens = pl.col("metric") == "teacher_forced_accuracy"
    exact = summary.filter(metric="exact_match").with_columns(
        pl.lit("teacher_forced_accuracy").alias("metric")
    )
    flipped = pl.concat([summary.filter(~tokens), exact])
    assert findings(flipped)[2].verdict == "not shown in any of 4 models"


def test_one_model_may_differ(study: synthetic.Study) -> None:
    unlike = synthetic.study(synthetic.NOTHING).models[0]
    mixed = aggregate([unlike, *study.models[1:]])
    assert findings(mixed)[0].verdict == "shown in 3 of 4 models"


def test_the_sentence_holds_the_summarys_numbers(summary: pl.DataFrame) -> None:
    exact = summary.filter(metric="exact_match", split="memorized")
    sentence = findings(summary)[0].sentence
    block = int(sentence.split("block ")[2].split(":")[0])
    model = sentence.split("memorization: ")[1].split(",")[0]
    row = exact.filter(model=model, block=block).row(0, named=True)
    whole = exact.filter(model=model, intervention="baseline").row(0, named=True)
    for each in (row, whole):
        assert percent_interval(each["value"], each["low"], each["high"]) in sentence


def test_thresholds_decide(summary: pl.DataFrame) -> None:
    strict = findings(summary, Thresholds(reduced=0.99, collapsed=0.999))
    assert [f.shown for f in strict] == [[], [], []]


def test_a_study_without_benchmarks_or_blocks_says_so(study: synthetic.Study) -> None:
    first = study.models[0]
    summary = aggregate([first]).filter(task="memorization")
    assert [f.verdict for f in findings(summary)[:2]] == ["not measured"] * 2
    only_baseline = summary.filter(intervention="baseline")
    assert [f.verdict for f in findings(only_baseline)] == ["not measured"] * 3


@pytest.mark.parametrize(
    ("n_blocks", "early", "late"), [(1, [0], []), (5, [0], [3, 4]), (8, [0, 1], [4, 5, 6, 7])]
)
def test_block_ranges(n_blocks: int, early: list[int], late: list[int]) -> None:
    assert list(block_range(n_blocks, late=False)) == early
    assert list(block_range(n_blocks, late=True)) == late


def test_a_benchmark_at_chance_has_nothing_to_lose() -> None:
    story = synthetic.study(accuracies={"blind": (0.5, 0.5), "able": (0.5, 0.9)})
    rows = kept(aggregate(story.models)).filter(kind="benchmark")
    assert rows["measure"].unique().to_list() == ["able"]
