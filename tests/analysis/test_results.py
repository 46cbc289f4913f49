"""What can never be is refused: every rule is broken once."""

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

MODEL = "tiny-neo-8"
N_BLOCKS = 8
SAMPLES = 2


def _divergence(study: synthetic.Study, data: Path) -> None:
    """Tables of the right size in which nothing is wrong."""
    samples = study.models[0].samples
    chosen = pl.concat(
        [samples.filter(split=split).head(SAMPLES) for split in ("memorized", "control")]
    ).select("sample_id", "split")
    pairs = [(b, after) for b in range(N_BLOCKS) for after in range(b, N_BLOCKS + 1)]
    keys = pl.DataFrame(pairs, schema=["block", "after"], orient="row")
    triangle = chosen.join(keys, how="cross").with_columns(change=1.0, relative=0.1)
    triangle = triangle.with_columns(
        kl=pl.when(pl.col("after") == N_BLOCKS).then(0.5), block=pl.col("block")
    )
    blocks = pl.DataFrame({"block": range(N_BLOCKS)})
    _write(triangle, data / f"{MODEL}.parquet", columns.DIVERGENCE_TRIANGLE)
    bounds = chosen.join(blocks, how="cross")
    _write(bounds, data / f"{MODEL}.bounds.parquet", columns.DIVERGENCE_BOUNDS)
    _write(blocks, data / f"{MODEL}.blocks.parquet", columns.DIVERGENCE_BLOCKS)


def _write(frame: pl.DataFrame, path: Path, schema: tables.Schema) -> None:
    """What the frame has, and for all other columns a one or a no."""
    filled = frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(column.dtype != pl.Boolean))
        .cast(column.dtype)
        .alias(name)
        if column.dtype != pl.Boolean
        else pl.lit(False).alias(name)
        for name, column in schema.items()
    )
    tables.write(filled, path, schema, {})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    study = synthetic.study(models={MODEL: ("gpt-neo", N_BLOCKS)})
    study.write(tmp_path)
    _divergence(study, tmp_path / "divergence")
    return tmp_path


def check(data: Path) -> dict[str, dict[str, int]]:
    return check_results([(MODEL, "gpt-neo")], data, SAMPLES)


def spoil(path: Path, schema: tables.Schema, change: pl.Expr, row: int = 0) -> None:
    """Change one row of a table."""
    frame = tables.read(path, schema).with_row_index("row")
    name = change.meta.output_name()
    here = pl.when(pl.col("row") == row).then(change).otherwise(pl.col(name))
    spoiled = frame.with_columns(here.cast(schema[name].dtype).alias(name)).drop("row")
    tables.write(spoiled, path, schema, {})


def test_a_whole_study_passes_and_its_rows_are_counted(data: Path) -> None:
    counted = check(data)[MODEL]
    n_samples = read_samples(data, "gpt-neo").height
    assert counted["memorization"] == (1 + N_BLOCKS + 4) * n_samples
    assert counted["tokens"] == (1 + N_BLOCKS + 4) * 2 * 51 * 16  # a tenth of 512, of each split
    assert counted["displacement"] == (1 + N_BLOCKS + 4) * 2 * 51
    assert counted["bounds"] == 2 * SAMPLES * N_BLOCKS
    assert counted["divergence"] == 2 * SAMPLES * N_BLOCKS * (N_BLOCKS + 3) // 2


WRONG = {
    "token_accuracy is possible": ("memorization", pl.lit(1.5).alias("token_accuracy")),
    "teacher_forced_accuracy is possible": (
        "memorization",
        pl.lit(float("nan")).alias("teacher_forced_accuracy"),
    ),
    "completion_entropy is possible": ("memorization", pl.lit(-1.0).alias("completion_entropy")),
    "suffix_log_prob is possible": ("memorization", pl.lit(-float("inf")).alias("suffix_log_prob")),
    "worst_rank is possible": ("memorization", pl.lit(0).alias("worst_rank")),
    "top_40 is no less": ("memorization", pl.lit(-1e9).alias("suffix_log_prob_top_40")),
    "min_margin is finite": ("memorization", pl.lit(-0.5).alias("min_margin")),
    "as long as the suffix": (
        "memorization",
        pl.col("continuation").list.head(3).alias("continuation"),
    ),
    "continuation and suffix are equal": (
        "memorization",
        (~pl.col("exact_match")).alias("exact_match"),
    ),
    "correct_length is the whole suffix": (
        "memorization",
        pl.col("continuation").list.len().alias("correct_length"),
    ),
    "counts the correct_length": ("memorization", pl.lit(60).alias("correct_length")),
    "log_prob is finite": ("tokens", pl.lit(0.1).alias("log_prob")),
    "entropy and margin": ("tokens", pl.lit(-0.1).alias("margin")),
    "is of rank 1": ("tokens", pl.col("token").alias("greedy")),
    "displacement is finite": ("displacement", pl.lit(float("nan")).alias("others")),
    "the baseline is where it is": ("displacement", pl.lit(0.5).alias("first")),
    "an accuracy is a share": ("benchmarks", pl.lit(1.01).alias("value")),
    "the standard error": ("benchmarks", pl.lit(-0.1).alias("stderr")),
    "there are documents": ("benchmarks", pl.lit(0).alias("n")),
}


@pytest.mark.parametrize("rule", WRONG)
def test_what_can_never_be_is_refused(data: Path, rule: str) -> None:
    folder, change = WRONG[rule]
    schema = {
        "memorization": metrics.MEMORIZATION,
        "benchmarks": schemas.BENCHMARKS,
        "tokens": schemas.TOKENS,
        "displacement": schemas.DISPLACEMENT,
    }[folder]
    path = data / folder / f"{MODEL}.parquet"
    spoil(path, schema, change)
    with pytest.raises(InputError) as refused:
        check(data)
    assert any(rule in problem.what for problem in refused.value.problems)
    assert "1 of" in str(refused.value)


@pytest.mark.parametrize(
    ("table", "schema", "change", "rule"),
    [
        ("", columns.DIVERGENCE_TRIANGLE, pl.lit(float("nan")).alias("change"), "changes are"),
        ("", columns.DIVERGENCE_TRIANGLE, pl.lit(-1.0).alias("kl"), "divergences are"),
        (
            ".bounds",
            columns.DIVERGENCE_BOUNDS,
            pl.lit(True).alias("violated"),
            "no corrected bound",
        ),
        (
            ".bounds",
            columns.DIVERGENCE_BOUNDS,
            pl.lit(True).alias("next_violated"),
            "one block on",
        ),
    ],
)
def test_a_broken_theorem_is_refused(
    data: Path, table: str, schema: tables.Schema, change: pl.Expr, rule: str
) -> None:
    spoil(data / "divergence" / f"{MODEL}{table}.parquet", schema, change)
    with pytest.raises(InputError, match=rule):
        check(data)


def test_a_bypass_that_did_not_happen_is_refused(data: Path) -> None:
    path = data / "memorization" / f"{MODEL}.parquet"
    frame = tables.read(path, metrics.MEMORIZATION)
    baseline = frame.filter(intervention="baseline").select("sample_id", same="suffix_log_prob")
    same = frame.join(baseline, on="sample_id", maintain_order="left").with_columns(
        suffix_log_prob=pl.when(pl.col("intervention") == "block-03")
        .then(pl.col("same"))
        .otherwise(pl.col("suffix_log_prob"))
    )
    tables.write(same.drop("same"), path, metrics.MEMORIZATION, {})
    with pytest.raises(InputError, match="block-03: every suffix_log_prob is the baseline's"):
        check(data)


def test_the_interventions_are_those_that_were_listed(data: Path) -> None:
    path = data / "memorization" / f"{MODEL}.parquet"
    frame = tables.read(path, metrics.MEMORIZATION)
    renamed = pl.col("intervention").replace({"block-03": "block-03.zero"})
    tables.write(frame.with_columns(renamed), path, metrics.MEMORIZATION, {})
    with pytest.raises(InputError) as refused:
        check(data)
    told = [problem.got for problem in refused.value.problems if "interventions" in problem.what]
    assert told == ["without ['block-03']", "['block-03.zero']"]


def test_what_was_not_decoded_may_be_unknown(data: Path) -> None:
    path = data / "memorization" / f"{MODEL}.parquet"
    frame = tables.read(path, metrics.MEMORIZATION)
    exact = pl.col("exact_match")
    known = [*metrics.unknown(exact), pl.when(exact).then(pl.col("continuation"))]
    tables.write(frame.with_columns(known, decoded=False), path, metrics.MEMORIZATION, {})
    check(data)
    tables.write(frame.with_columns(known), path, metrics.MEMORIZATION, {})
    with pytest.raises(InputError, match="known where it was decoded"):
        check(data)
    unknown = frame.with_columns(pl.lit(None, pl.Float64).alias("token_accuracy"))
    tables.write(unknown, path, metrics.MEMORIZATION, {})
    with pytest.raises(InputError, match="token_accuracy is known where the continuation is"):
        check(data)


def test_a_bypass_may_change_no_answer(data: Path) -> None:
    """Of a few documents, each right or wrong; but no likelihood of a text stays what it is."""
    path = data / "benchmarks" / f"{MODEL}.documents.parquet"
    frame = tables.read(path, schemas.BENCHMARK_DOCUMENTS)
    tables.write(frame.with_columns(value=1.0), path, schemas.BENCHMARK_DOCUMENTS, {})
    check(data)
    tables.write(frame.with_columns(value=2.0), path, schemas.BENCHMARK_DOCUMENTS, {})
    with pytest.raises(InputError, match=r"block-00.*: every value is the baseline's"):
        check(data)


def test_missing_rows_and_tables_are_all_named(data: Path) -> None:
    path = data / "divergence" / f"{MODEL}.bounds.parquet"
    frame = tables.read(path, columns.DIVERGENCE_BOUNDS)
    tables.write(frame.head(5), path, columns.DIVERGENCE_BOUNDS, {})
    path = data / "memorization" / f"{MODEL}.parquet"
    whole = tables.read(path, metrics.MEMORIZATION)
    tables.write(whole.slice(1), path, metrics.MEMORIZATION, {})
    with pytest.raises(InputError) as refused:
        check_results([(MODEL, "gpt-neo"), ("absent", "gpt-neo")], data, SAMPLES)
    told = str(refused.value)
    for expected in ("bounds of tiny-neo-8, rows", "memorization of tiny-neo-8, samples", "absent"):
        assert expected in told
