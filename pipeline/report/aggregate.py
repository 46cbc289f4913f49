"""One summary of a study: every estimate with its 95% interval, one row each.

Reads the tables of samples, memorization and benchmarks; writes ``summary.parquet``. Beyond the
columns of `tables.SUMMARY`:

- block (u16): the bypassed block, 0-based; null unless exactly one block is bypassed.
- copies (u32): times in the training data, for ``exact_match_by_copies``; else null.
- higher_is_better, chance: of a benchmark, as in its table; null for memorization.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline import tables
from pipeline.bypass.interventions import block_name, sweep
from pipeline.errors import InputError, Problem, shorten
from pipeline.report.manifests import read_manifests
from pipeline.report.statistics import (
    DRAWS,
    LEVEL,
    Estimates,
    clustered_means,
    clustered_rates,
    normal,
    wilson,
)
from pipeline.report.views import MEMORIZATION

MEANS = (
    "token_accuracy",
    "completion_entropy",
    "teacher_forced_accuracy",
    "suffix_log_prob",
    "matching_prefix",
)

_COLUMNS = {name: column.dtype for name, column in tables.SUMMARY.items()} | {
    "block": pl.UInt16,
    "copies": pl.UInt32,
    "higher_is_better": pl.Boolean,
    "chance": pl.Float64,
}


@dataclass(frozen=True)
class ModelTables:
    """What was measured on one model.

    Args:
        name: of the model.
        family: of the model.
        n_blocks: L.
        samples: the family's table, schema `tables.SAMPLES`.
        memorization: the model's, schema `tables.MEMORIZATION`.
        benchmarks: the model's, schema `tables.BENCHMARKS`; None where none were run.
        documents: the model's, schema `tables.BENCHMARK_DOCUMENTS`; may be empty.
    """

    name: str
    family: str
    n_blocks: int
    samples: pl.DataFrame
    memorization: pl.DataFrame
    benchmarks: pl.DataFrame | None
    documents: pl.DataFrame


def write_summary(
    study: str,
    models: Sequence[tuple[str, str]],
    data: Path,
    path: Path,
    seed: int = 0,
) -> None:
    """Read the tables of a study, aggregate them, write the summary.

    Args:
        study: its name, for the summary's metadata.
        models: (name, family) of each, in the order of the report.
        data: the study's folder, ``data/STUDY``.
        path: where the summary goes.
        seed: of the bootstrap.

    Raises:
        InputError: a table is missing, does not fit its schema, or is not complete.
    """
    manifests = read_manifests(data, models)
    measured = [
        _read(data, name, family, manifest["n_blocks"])
        for (name, family), manifest in zip(models, manifests, strict=True)
    ]
    summary = aggregate(measured, seed)
    measured_with = [
        tables.provenance(data / kind / f"{name}.parquet").get("versions", {})
        for name, _ in models
        for kind in ("memorization", "benchmarks")
    ]
    provenance = {
        "study": study,
        "versions": _versions(measured_with),
        "models": [name for name, _ in models],
        "level": LEVEL,
        "bootstrap": {"seed": seed, "draws": DRAWS},
    }
    tables.write(summary, path, tables.SUMMARY, provenance)


def _versions(tables_versions: Sequence[Any]) -> dict[str, str]:
    """Package -> the version that computed the tables; all of them where they are not one."""
    packages = sorted({package for versions in tables_versions for package in versions})
    return {
        package: " and ".join(sorted({str(v[package]) for v in tables_versions if package in v}))
        for package in packages
    }


def aggregate(models: Sequence[ModelTables], seed: int = 0) -> pl.DataFrame:
    """Every estimate of a study.

    - memorization, by split: exact_match and the means of `MEANS`; exact_match_at_k for k = 1, 2,
      4, … and S: the first k tokens are right; exact_match_by_copies where copies are known.
    - benchmarks: every task and metric as lm-eval gave it.

    Rates have Wilson intervals, means a bootstrap, both clustered by suffix_group. A benchmark
    metric that is the mean of zeros and ones over its documents has a Wilson interval; any other
    its standard error's, or none.

    Args:
        models: in the order of the report.
        seed: of the bootstrap.

    Returns:
        A frame of schema `tables.SUMMARY` and the columns named above.

    Raises:
        InputError: an intervention lacks samples or tasks, or a table holds a row twice.
    """
    problems = [problem for model in models for problem in _check(model)]
    if problems:
        raise InputError(*problems)
    parts = [
        part
        for model in models
        for part in (*_memorization(model, seed), _benchmarks(model))
        if part.height
    ]
    if not parts:
        return pl.DataFrame(schema=_COLUMNS)
    return pl.concat(parts, how="vertical_relaxed")


def k_values(suffix_length: int) -> list[int]:
    """The lengths at which exact match is reported: 1, 2, 4, … below S, and S itself."""
    return [1 << i for i in range(suffix_length.bit_length()) if 1 << i < suffix_length] + [
        suffix_length
    ]


def _read(data: Path, name: str, family: str, n_blocks: int) -> ModelTables:
    return ModelTables(
        name,
        family,
        n_blocks,
        tables.read(data / "samples" / f"{family}.parquet", tables.SAMPLES),
        tables.read(data / "memorization" / f"{name}.parquet", tables.MEMORIZATION),
        tables.read(data / "benchmarks" / f"{name}.parquet", tables.BENCHMARKS),
        tables.read(data / "benchmarks" / f"{name}.documents.parquet", tables.BENCHMARK_DOCUMENTS),
    )


def _memorization(model: ModelTables, seed: int) -> list[pl.DataFrame]:
    """The rows of one model's memorization table, a frame per split and kind of estimate."""
    names = _intervention_order(model, model.memorization)
    known = model.samples.select("sample_id", "suffix_group", "copies")
    frame = model.memorization.join(known, on="sample_id")
    lengths = k_values(model.samples["suffix_length"].to_list()[0]) if frame.height else []
    splits = {split: frame.filter(split=split) for split in tables.SPLITS}
    return [
        rows.with_columns(pl.lit(split).alias("split"))
        for split, of_split in splits.items()
        if of_split.height
        for rows in _split(model, names, _Grid(of_split, names), lengths, seed)
    ]


def _split(
    model: ModelTables, names: Sequence[str], grid: _Grid, lengths: Sequence[int], seed: int
) -> Iterator[pl.DataFrame]:
    """The rows of one split, a frame per kind of estimate."""
    exact, right, groups = grid.values("exact_match"), grid.values("matching_prefix"), grid.groups
    n = len(groups)
    yield _rows(model, names, "exact_match", clustered_rates(exact, groups), n)
    for k in lengths:
        estimates = clustered_rates(right >= k, groups)
        yield _rows(model, names, "exact_match_at_k", estimates, n, k=k)
    for metric in MEANS:
        values = grid.values(metric).astype(np.float64)
        yield _rows(model, names, metric, clustered_means(values, groups, seed), n)
    for copies in np.unique(grid.copies[~np.isnan(grid.copies)]):
        chosen = grid.copies == copies
        estimates = clustered_rates(exact[chosen], groups[chosen])
        n_chosen = int(chosen.sum())
        yield _rows(model, names, "exact_match_by_copies", estimates, n_chosen, copies=int(copies))


class _Grid:
    """A complete memorization table of one split as matrices: N samples by V interventions."""

    def __init__(self, frame: pl.DataFrame, names: Sequence[str]) -> None:
        order = pl.col("intervention").cast(pl.Enum(names))
        self._frame = frame.sort(order, "sample_id")
        self._shape = (len(names), frame.height // len(names))
        first = self._frame.head(self._shape[1])
        self.groups: NDArray[np.integer] = first["suffix_group"].to_numpy()
        self.copies = first["copies"].cast(pl.Float64).fill_null(float("nan")).to_numpy()

    def values(self, column: str) -> NDArray[Any]:
        """(N, V), the samples by ascending sample_id."""
        return self._frame[column].to_numpy().reshape(self._shape).T


def _benchmarks(model: ModelTables) -> pl.DataFrame:
    """The rows of one model's benchmarks table."""
    if model.benchmarks is None:
        return pl.DataFrame()
    key = ["intervention", "task", "metric"]
    counted = model.documents.group_by(key).agg(
        pl.len().alias("documents"),
        pl.col("value").sum().alias("successes"),
        pl.col("value").is_in([0.0, 1.0]).all().alias("binary"),
    )
    frame = model.benchmarks.join(counted, on=key, how="left", maintain_order="left")
    value = frame["value"].to_numpy()
    stderr = frame["stderr"].fill_null(float("nan")).to_numpy()
    successes = frame["successes"].fill_null(float("nan")).to_numpy()
    documents = frame["documents"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    # a rate only where lm-eval's value is indeed the mean of the documents' zeros and ones
    rate = frame["binary"].fill_null(False).to_numpy() & np.isclose(successes / documents, value)
    low, high = normal(value, stderr)
    if rate.any():
        low[rate], high[rate] = wilson(successes[rate], documents[rate])
    names = _intervention_order(model, model.benchmarks)
    return _finish(frame.with_columns(pl.Series("low", low), pl.Series("high", high)), model).sort(
        "task", "metric", pl.col("intervention").cast(pl.Enum(names)), maintain_order=True
    )


def _rows(
    model: ModelTables,
    names: Sequence[str],
    metric: str,
    estimates: Estimates,
    n: int,
    **extra: int,
) -> pl.DataFrame:
    """One row per intervention; the split is filled in by the caller."""
    frame = pl.DataFrame(
        {
            "intervention": names,
            "value": estimates.value,
            "low": estimates.low,
            "high": estimates.high,
        }
    )
    constants = {"task": MEMORIZATION, "metric": metric, "n": n, **extra}
    return _finish(frame.with_columns(**{k: pl.lit(v) for k, v in constants.items()}), model)


def _finish(frame: pl.DataFrame, model: ModelTables) -> pl.DataFrame:
    """All columns of the summary, in order and of their types; NaN ends of intervals are null."""
    blocks = {block_name(block): block for block in range(model.n_blocks)}
    frame = frame.with_columns(
        pl.lit(model.name).alias("model"),
        pl.lit(model.family).alias("family"),
        pl.col("intervention")
        .replace_strict(blocks, default=None, return_dtype=pl.UInt16)
        .alias("block"),
        pl.col("low", "high").fill_nan(None),
    )
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None).alias(name)).cast(dtype)
        for name, dtype in _COLUMNS.items()
    )


def _intervention_order(model: ModelTables, frame: pl.DataFrame) -> list[str]:
    """The sweep's interventions in its order, then any others as they come in the table."""
    names = [intervention.name for intervention in sweep(model.n_blocks)]
    present = frame["intervention"].unique(maintain_order=True).to_list()
    return [name for name in names if name in present] + [n for n in present if n not in names]


def _check(model: ModelTables) -> list[Problem]:
    """Whether every intervention of the sweep holds every sample, task and metric, just once."""
    expected = [intervention.name for intervention in sweep(model.n_blocks)]
    samples = model.samples.select("sample_id", "split").sort("sample_id")
    problems = _grid_problems(
        f"memorization of {model.name}",
        expected,
        model.memorization.select("intervention", "sample_id", "split"),
        samples,
        "samples",
    )
    if model.benchmarks is None:
        return problems
    tasks = model.benchmarks.select("task", "metric").unique().sort("task", "metric")
    return problems + _grid_problems(
        f"benchmarks of {model.name}",
        expected,
        model.benchmarks.select("intervention", "task", "metric"),
        tasks,
        "tasks and metrics",
    )


def _grid_problems(
    what: str, expected: Sequence[str], rows: pl.DataFrame, cells: pl.DataFrame, noun: str
) -> list[Problem]:
    """Compare `rows` (intervention and a cell) with every expected intervention times `cells`."""
    remedy = "make the table again: delete it and run the stage that writes it"
    problems = []
    present = rows["intervention"].unique()
    if missing := [name for name in expected if name not in present]:
        problems.append(
            Problem(
                f"{what}, interventions",
                f"without {shorten(missing)}",
                f"all {len(expected)} of the sweep",
                remedy,
            )
        )
    if twice := int(rows.is_duplicated().sum()):
        problems.append(
            Problem(f"{what}, rows", f"{twice} that occur twice or more", "each once", remedy)
        )
    whole = pl.DataFrame({"intervention": present}).join(cells, how="cross")
    key = whole.columns
    absent = whole.join(rows, on=key, how="anti")
    unknown = rows.join(whole, on=key, how="anti")
    for frame, state in ((absent, "lacks"), (unknown, "holds unknown")):
        if frame.height:
            where = sorted(frame["intervention"].unique())
            problems.append(
                Problem(
                    f"{what}, {noun}",
                    f"{state} {frame.height}, in {shorten(where)}",
                    f"the same {cells.height} under every intervention",
                    remedy,
                )
            )
    return problems
