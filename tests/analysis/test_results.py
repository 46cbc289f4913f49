"""What can never be is refused: every rule is broken once."""

import shutil
from pathlib import Path

import polars as pl
import pytest

from pipeline.analysis.results import check_results
from pipeline.measure import metrics, schemas
from pipeline.samples.schemas import read_samples
from pipeline.theory import columns
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests.analysis import synthetic

MODEL, N_BLOCKS, SAMPLES = "tiny-neo-8", 8, 2
TABLES = {
    "memorization": metrics.MEMORIZATION,
    "benchmarks": schemas.BENCHMARKS,
    "benchmarks.documents": schemas.BENCHMARK_DOCUMENTS,
    "tokens": schemas.TOKENS,
    "displacement": schemas.DISPLACEMENT,
    "divergence": columns.DIVERGENCE_TRIANGLE,
    "divergence.bounds": columns.DIVERGENCE_BOUNDS,
}


def path_of(data: Path, table: str) -> Path:
    folder, _, part = table.partition(".")
    return data / folder / ".".join(filter(None, (MODEL, part, "parquet")))


def write(data: Path, table: str, frame: pl.DataFrame) -> None:
    tables.write(frame, path_of(data, table), TABLES[table], {})


def read(data: Path, table: str) -> pl.DataFrame:
    return tables.read(path_of(data, table), TABLES[table])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("whole")
    study = synthetic.study(models={MODEL: ("gpt-neo", N_BLOCKS)})
    study.write(data)
    samples = study.models[0].samples
    chosen = [samples.filter(split=split).head(SAMPLES) for split in ("memorized", "control")]
    chosen = pl.concat(chosen).select("sample_id", "split")
    synthetic.write_divergence(data, MODEL, N_BLOCKS, chosen)
    return data


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    """A study in which nothing is wrong, as its test may change it."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    return tmp_path


def check(data: Path) -> dict[str, dict[str, int]]:
    return check_results([(MODEL, "gpt-neo")], data, SAMPLES)


def test_a_whole_study_passes_and_its_rows_are_counted(data: Path) -> None:
    counted = check(data)[MODEL]
    n_samples = read_samples(data, "gpt-neo").height
    assert counted["memorization"] == (1 + N_BLOCKS + 4) * n_samples
    assert counted["tokens"] == (1 + N_BLOCKS + 4) * 2 * 51 * 16  # a tenth of 512, of each split
    assert counted["displacement"] == (1 + N_BLOCKS + 4) * 2 * 51
    assert counted["bounds"] == 2 * SAMPLES * N_BLOCKS
    assert counted["divergence"] == 2 * SAMPLES * N_BLOCKS * (N_BLOCKS + 3) // 2


NAN, INFINITE = float("nan"), float("inf")
SHORT, LENGTH = pl.col("continuation").list.head(3), pl.col("continuation").list.len()
WRONG = {
    "token_accuracy is possible": ("memorization", "token_accuracy", 1.5),
    "teacher_forced_accuracy is possible": ("memorization", "teacher_forced_accuracy", NAN),
    "completion_entropy is possible": ("memorization", "completion_entropy", -1.0),
    "suffix_log_prob is possible": ("memorization", "suffix_log_prob", -INFINITE),
    "worst_rank is possible": ("memorization", "worst_rank", 0),
    "top_40 is no less": ("memorization", "suffix_log_prob_top_40", -1e9),
    "min_margin is finite": ("memorization", "min_margin", -0.5),
    "as long as the suffix": ("memorization", "continuation", SHORT),
    "continuation and suffix are equal": ("memorization", "exact_match", ~pl.col("exact_match")),
    "correct_length is the whole suffix": ("memorization", "correct_length", LENGTH),
    "counts the correct_length": ("memorization", "correct_length", 60),
    "log_prob is finite": ("tokens", "log_prob", 0.1),
    "entropy and margin": ("tokens", "margin", -0.1),
    "is of rank 1": ("tokens", "greedy", pl.col("token")),
    "displacement is finite": ("displacement", "others", NAN),
    "the baseline is where it is": ("displacement", "first", 0.5),
    "an accuracy is a share": ("benchmarks", "value", 1.01),
    "the standard error": ("benchmarks", "stderr", -0.1),
    "there are documents": ("benchmarks", "n", 0),
    "changes are": ("divergence", "change", NAN),
    "divergences are": ("divergence", "kl", -1.0),
    "no corrected bound": ("divergence.bounds", "violated", True),
    "one block on": ("divergence.bounds", "next_violated", True),
}
"""A part of a rule -> a table, and the column and the value of its first row that break it."""


@pytest.mark.parametrize("rule", WRONG)
def test_what_can_never_be_is_refused(data: Path, rule: str) -> None:
    table, column, value = WRONG[rule]
    frame = read(data, table)
    spoiled = pl.when(pl.int_range(pl.len()) == 0).then(value).otherwise(column)
    write(data, table, frame.with_columns(spoiled.cast(frame.schema[column]).alias(column)))
    with pytest.raises(InputError, match="1 of") as refused:
        check(data)
    assert any(rule in problem.what for problem in refused.value.problems)


def test_a_bypass_without_effect_is_refused_but_may_change_no_answer(data: Path) -> None:
    frame = read(data, "memorization")
    baseline = frame.filter(intervention="baseline").select("sample_id", same="suffix_log_prob")
    same = frame.join(baseline, on="sample_id", maintain_order="left").with_columns(
        suffix_log_prob=pl.when(intervention="block-03").then("same").otherwise("suffix_log_prob")
    )
    write(data, "memorization", same.drop("same"))
    with pytest.raises(InputError, match="block-03: every suffix_log_prob is the baseline's"):
        check(data)
    write(data, "memorization", frame)
    # no answer may change, of a few that are right or wrong; but every likelihood of a text does
    answers = read(data, "benchmarks.documents")
    write(data, "benchmarks.documents", answers.with_columns(value=1.0))
    check(data)
    write(data, "benchmarks.documents", answers.with_columns(value=2.0))
    with pytest.raises(InputError, match=r"block-00.*: every value is the baseline's"):
        check(data)


def test_the_interventions_are_those_that_were_listed(data: Path) -> None:
    frame = read(data, "memorization")
    renamed = pl.col("intervention").replace({"block-03": "block-03.zero"})
    write(data, "memorization", frame.with_columns(renamed))
    with pytest.raises(InputError) as refused:
        check(data)
    told = [problem.got for problem in refused.value.problems if "interventions" in problem.what]
    assert told == ["without ['block-03']", "['block-03.zero']"]


def test_what_was_not_decoded_may_be_unknown(data: Path) -> None:
    frame = read(data, "memorization")
    exact = pl.col("exact_match")
    known = [*metrics.unknown(exact), pl.when(exact).then(pl.col("continuation"))]
    write(data, "memorization", frame.with_columns(known, decoded=False))
    check(data)
    write(data, "memorization", frame.with_columns(known))
    with pytest.raises(InputError, match="known where it was decoded"):
        check(data)
    unknown = frame.with_columns(pl.lit(None, pl.Float64).alias("token_accuracy"))
    write(data, "memorization", unknown)
    with pytest.raises(InputError, match="token_accuracy is known where the continuation is"):
        check(data)


def test_missing_rows_and_tables_are_all_named(data: Path) -> None:
    write(data, "divergence.bounds", read(data, "divergence.bounds").head(5))
    write(data, "memorization", read(data, "memorization").slice(1))
    with pytest.raises(InputError) as refused:
        check_results([(MODEL, "gpt-neo"), ("absent", "gpt-neo")], data, SAMPLES)
    told = str(refused.value)
    parts = ("bounds of tiny-neo-8, rows", "memorization of tiny-neo-8, samples")
    for expected in (*parts, "checkpoints/absent/manifest.json"):
        assert expected in told
