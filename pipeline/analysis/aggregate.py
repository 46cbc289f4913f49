"""One summary of a study: every estimate with its 95% interval, one row each.

Reads the tables of samples, memorization and benchmarks; writes ``summary.parquet``, and
``evidence.parquet`` for the verdicts (see `evidence`). Beyond the columns of `tables.SUMMARY`:

- edit, group, blocks: what the intervention is, as in its model's table of interventions.
- block (u16): the edited block, 0-based, where each is edited alone (group ``each``); else null.
- copies (u32): times in the training data, for ``exact_match_by_copies``; else null.
- higher_is_better, chance: of a benchmark, as in its table; null for memorization.
- parameters (u64): of the model, as its checkpoint's manifest says; null where it does not.
- recipe: the first of the models that differ from it in their training seed at most.
- difference: the value minus the baseline's, on the same samples or documents; with it
  difference_low, difference_high (95%), and p_value of no difference. Null for the baseline itself,
  and where the documents do not give lm-eval's value. The interval is also null where no sample
  differs.
- p_holm: p_value adjusted, after Holm, for each block alone under one edit, of one model, split and
  metric (and k, or copies); null for all other groups, which are in no such family.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.displacement import estimates as tokenwise
from pipeline.analysis.documents import by_document, link_of, same
from pipeline.analysis.evidence import EVIDENCE, evidence_of, gathered
from pipeline.analysis.measured import ModelTables, grid_problems, read_tables
from pipeline.analysis.statistics import (
    DRAWS,
    LEVEL,
    Differences,
    Estimates,
    Link,
    clustered_means,
    clustered_rates,
    holm,
    normal,
    paired_differences,
    wilson,
)
from pipeline.analysis.views import MEMORIZATION
from pipeline.interventions.interventions import BASELINE, EACH
from pipeline.measure.extraction import SCHEMES, TRIES, out_within
from pipeline.measure.metrics import METRICS, Metric
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError, Problem

CELLS = 1 << 23
"""Values that go through one bootstrap, 64 MB of them; it holds some five times as much."""

_DIFFERENCE = ("difference", "difference_low", "difference_high", "p_value")

_COLUMNS = {name: column.dtype for name, column in tables.SUMMARY.items()} | {
    "edit": pl.String,
    "group": pl.String,
    "blocks": pl.List(pl.UInt16),
    "block": pl.UInt16,
    "copies": pl.UInt32,
    "higher_is_better": pl.Boolean,
    "chance": pl.Float64,
    "parameters": pl.UInt64,
    "recipe": pl.String,
    **dict.fromkeys(_DIFFERENCE, pl.Float64),
    "p_holm": pl.Float64,
}


@dataclass(frozen=True)
class _Measure:
    """One memorization metric of one split: N samples by V interventions."""

    metric: str
    values: NDArray[Any]
    rate: bool
    labels: Mapping[str, int]


class _How(TypedDict):
    """How a metric comes from its documents, for `statistics`."""

    weights: NDArray[np.float64]
    link: Link | None


def write_summary(
    study: str,
    models: Sequence[tuple[str, str]],
    data: Path,
    path: Path,
    seed: int = 0,
    stale: Mapping[str, Collection[Path]] | None = None,
    *,
    benchmarked: bool = True,
) -> pl.DataFrame:
    """Read the tables of a study, aggregate them, write the summary, and the evidence beside it.

    Args:
        study: its name, for the summary's metadata.
        models: (name, family) of each, in the order of the report.
        data: the study's folder, ``data/STUDY``.
        path: where the summary goes; `EVIDENCE` goes into the same folder.
        seed: of the bootstrap.
        stale: after a stage failed: each stage that has not run on the study as it is -> the files
            it writes, which may be there from before. They are left out, with the models whose
            samples, checkpoint or memorization they are, and the page says so. None: nothing may
            be missing.
        benchmarked: False: the study has no benchmarks.

    Returns:
        The summary.

    Raises:
        InputError: a table is missing (with `stale`: those of every model), does not fit its
            schema, or is not complete.
    """
    old = {path for files in (stale or {}).values() for path in files}

    def usable(*paths: Path) -> bool:
        return stale is None or all(path not in old and path.exists() for path in paths)

    wanted = [
        (name, family)
        for name, family in models
        if usable(
            data / "samples" / f"{family}.parquet",
            data / "checkpoints" / name,
            data / "memorization" / f"{name}.parquet",
        )
    ]
    if not wanted:
        raise InputError(
            Problem(
                str(data / "memorization"),
                "no table of any model that was measured on the study as it is",
                "one at least",
                "run the memorization stage of a model: dvc repro",
            )
        )
    benchmarks = {
        name: [data / "benchmarks" / f"{name}{end}" for end in (".parquet", ".documents.parquet")]
        for name, _ in wanted
        if benchmarked
    }
    problems = list[Problem]()

    def readable() -> Iterator[ModelTables]:
        for name, family in wanted:
            try:
                there = benchmarked and usable(*benchmarks[name])
                model = read_tables(data, name, family, benchmarked=there)
            except InputError as error:
                problems.extend(error.problems)
            else:
                yield model
                if not problems and not grid_problems(model):
                    parts.append(evidence_of(model))

    parts = list[pl.DataFrame]()
    try:
        summary = aggregate(readable(), seed)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(*problems)
    used = [data / "memorization" / f"{name}.parquet" for name, _ in wanted]
    used += [table for table, documents in benchmarks.values() if usable(table, documents)]
    measured_with = [tables.provenance(table).get("versions", {}) for table in used]
    provenance = {
        "study": study,
        "versions": _versions(measured_with),
        "models": [name for name, _ in wanted],
        "level": LEVEL,
        "bootstrap": {"seed": seed, "draws": DRAWS},
        **({"stale": sorted(stale)} if stale else {}),
    }
    tables.write(summary, path, tables.SUMMARY, provenance)
    tables.write(gathered(parts), path.with_name(EVIDENCE), tables.EVIDENCE, provenance)
    return summary


def _versions(tables_versions: Sequence[Any]) -> dict[str, str]:
    """Package -> the version that computed the tables; all of them where they are not one."""
    packages = sorted({package for versions in tables_versions for package in versions})
    return {
        package: " and ".join(sorted({str(v[package]) for v in tables_versions if package in v}))
        for package in packages
    }


def aggregate(models: Iterable[ModelTables], seed: int = 0) -> pl.DataFrame:
    """Every estimate of a study.

    - memorization, by split: the rate or mean of each of `metrics.METRICS` (what needs a greedy
      continuation: over the samples that were decoded, if any, whatever came of them; others are
      known only if they are right up to the last token, so they would raise the mean);
      exact_match_at_k for k = 1, 2, 4, … and S: the first k tokens are right;
      exact_match_by_copies where copies are known; extractable and extractable_top_40, the samples
      that come out within k tries (see `extraction`); hidden_extractable and
      hidden_extractable_top_40, the same of those samples that the unmodified model recites and
      the intervention does not. Of some samples, displacement, attention_change and the survival
      of tokens: see `displacement.estimates`.
    - benchmarks: every task and metric as lm-eval gave it.

    Rates have Wilson intervals, means a bootstrap, both clustered by suffix_group. A benchmark
    metric that is the mean of zeros and ones over its documents has a Wilson interval; any other
    its standard error's; one without a standard error a bootstrap over its documents, if they give
    its value.

    Differences to the baseline are paired, sample by sample, document by document; see
    `statistics.paired_differences`. Those of a perplexity are of the perplexities, its tests of the
    documents' log-likelihoods, of which a perplexity is a monotone function.

    Args:
        models: in the order of the report; taken one by one, so that one alone may be in memory.
        seed: of the bootstrap.

    Returns:
        A frame of schema `tables.SUMMARY` and the columns named above.

    Raises:
        InputError: an intervention lacks samples or tasks, or a table holds a row twice.
    """
    parts, problems = list[pl.DataFrame](), list[Problem]()
    for model in models:
        problems += grid_problems(model)
        if not problems:
            seen = (_without_difference(part, model) for part in tokenwise(model, seed))
            estimates = *_memorization(model, seed), *seen, _benchmarks(model, seed)
            parts += [part for part in estimates if part.height]
    if problems:
        raise InputError(*problems)
    if not parts:
        return pl.DataFrame(schema=_COLUMNS)
    whole = pl.concat(parts, how="vertical_relaxed")
    return _with_holm(whole.with_columns(recipe=pl.col("model").first().over("recipe")))


def k_values(suffix_length: int) -> list[int]:
    """The lengths at which exact match is reported: 1, 2, 4, … below S, and S itself."""
    return [1 << i for i in range(suffix_length.bit_length()) if 1 << i < suffix_length] + [
        suffix_length
    ]


def _memorization(model: ModelTables, seed: int) -> list[pl.DataFrame]:
    """The rows of one model's memorization table, a frame per split and kind of estimate."""
    names = model.interventions["intervention"].to_list()
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
    exact, right = grid.values("exact_match"), grid.values("correct_length")
    shown = [each for each in METRICS if each.aggregate and grid.known(each.name)]
    decoded = [each for each in shown if each.needs == "greedy continuation"]
    some = bool(decoded) and not grid.decoded.all()
    whole = [each for each in shown if not (some and each in decoded)]
    log_probs = {metric: grid.values(column) for metric, column in SCHEMES.items()}
    measures = [
        *(_Measure("exact_match_at_k", right >= k, True, {"k": k}) for k in lengths),
        *(_measure(each, grid.values(each.name)) for each in whole),
        *(
            _Measure(metric, out_within(values, n), True, {"k": n})
            for metric, values in log_probs.items()
            for n in TRIES
        ),
    ]
    yield from _estimated(model, names, measures, grid.groups, seed)
    if some and grid.decoded.any():
        measures = [_measure(each, grid.values(each.name)[grid.decoded]) for each in decoded]
        yield from _estimated(model, names, measures, grid.groups[grid.decoded], seed)
    for metric, values in log_probs.items():
        yield from _hidden(model, names, metric, exact, values, grid.groups)
    for copies in np.unique(grid.copies[~np.isnan(grid.copies)]):
        chosen = grid.copies == copies
        measure = _Measure("exact_match_by_copies", exact[chosen], True, {"copies": int(copies)})
        yield from _estimated(model, names, [measure], grid.groups[chosen], seed)


def _measure(metric: Metric, values: NDArray[Any]) -> _Measure:
    return _Measure(metric.name, values, metric.aggregate == "rate", {})


def _hidden(
    model: ModelTables,
    names: Sequence[str],
    metric: str,
    exact: NDArray[np.bool_],
    log_probs: NDArray[np.float64],
    groups: NDArray[np.integer],
) -> Iterator[pl.DataFrame]:
    """Of the samples whose greedy recital an intervention ends, how many are out all the same.

    Args:
        model: of the rows.
        names: of the V interventions.
        metric: of `extraction.SCHEMES`.
        exact: (N, V) exact match.
        log_probs: (N, V) nats, those of the metric.
        groups: (N,) of the samples.
    """
    whole = names.index(BASELINE.name)
    for v, name in enumerate(names):
        hidden = exact[:, whole] & ~exact[:, v]
        if not hidden.any():
            continue
        for n in TRIES:
            out = out_within(log_probs[hidden, v, None], n)
            measure = _Measure(f"hidden_{metric}", out, True, {"k": n})
            estimates = clustered_rates(out, groups[hidden])
            yield _rows(model, [name], measure, estimates, None, slice(None))


def _estimated(
    model: ModelTables,
    names: Sequence[str],
    measures: Sequence[_Measure],
    groups: NDArray[np.integer],
    seed: int,
) -> Iterator[pl.DataFrame]:
    """A frame per measure; those that fit into memory together share one bootstrap.

    Its draws cost more than its columns.
    """
    whole, n = names.index(BASELINE.name), len(names)
    at_once = max(1, CELLS // (len(groups) * n))
    if len(measures) > at_once:
        for start in range(0, len(measures), at_once):
            yield from _estimated(model, names, measures[start : start + at_once], groups, seed)
        return
    stacked = np.concatenate([m.values.astype(np.float64) for m in measures], axis=1)
    columns = [slice(i * n, (i + 1) * n) for i in range(len(measures))]
    unmodified = np.repeat(np.arange(len(measures)) * n + whole, n)
    differences = paired_differences(stacked, stacked[:, unmodified], groups, seed)
    mean = np.repeat([not m.rate for m in measures], n)
    means = clustered_means(stacked[:, mean], groups, seed) if mean.any() else None
    done = 0  # columns of `means`
    for measure, here in zip(measures, columns, strict=True):
        if measure.rate or means is None:
            estimates = clustered_rates(measure.values.astype(np.bool_), groups)
        else:
            estimates = _some(means, slice(done, done + n))
            done += n
        yield _rows(model, names, measure, estimates, differences, here)


def _some(estimates: Estimates, columns: slice) -> Estimates:
    return Estimates(*(getattr(estimates, field)[columns] for field in ("value", "low", "high")))


class _Grid:
    """A complete memorization table of one split as matrices: N samples by V interventions."""

    def __init__(self, frame: pl.DataFrame, names: Sequence[str]) -> None:
        order = pl.col("intervention").cast(pl.Enum(names))
        self._frame = frame.sort(order, "sample_id")
        self._shape = (len(names), frame.height // len(names))
        first = self._frame.head(self._shape[1])
        self.groups: NDArray[np.integer] = first["suffix_group"].to_numpy()
        self.decoded: NDArray[np.bool_] = first["decoded"].to_numpy()
        self.copies = first["copies"].cast(pl.Float64).fill_null(float("nan")).to_numpy()

    def known(self, column: str) -> bool:
        """Whether any sample has a value."""
        return self._frame[column].null_count() < self._frame.height

    def values(self, column: str) -> NDArray[Any]:
        """(N, V), the samples by ascending sample_id."""
        return self._frame[column].to_numpy().reshape(self._shape).T


def _benchmarks(model: ModelTables, seed: int) -> pl.DataFrame:
    """The rows of one model's benchmarks table."""
    if model.benchmarks is None:
        return pl.DataFrame()
    names = model.interventions["intervention"].to_list()
    order = pl.col("intervention").cast(pl.Enum(names))
    parts = [
        _benchmark(rows.sort(order), task, metric, model.documents, seed)
        for (task, metric), rows in model.benchmarks.sort("task", "metric").group_by(
            "task", "metric", maintain_order=True
        )
    ]
    return _finish(pl.concat(parts), model) if parts else pl.DataFrame()


def _benchmark(
    frame: pl.DataFrame, task: object, metric: object, documents: pl.DataFrame, seed: int
) -> pl.DataFrame:
    """One metric of one task, V interventions in order, with its intervals and differences."""
    value = frame["value"].to_numpy()
    low, high = normal(value, frame["stderr"].fill_null(float("nan")).to_numpy())
    differences = None
    found = by_document(documents, task, metric, frame["intervention"].to_list())
    if found is not None:
        values, weights = found
        link = link_of(values, weights, value)
        if link is not None:
            each = np.arange(len(values))
            whole = [frame["intervention"].to_list().index(BASELINE.name)]
            how = _How(weights=weights, link=None if link is same else link)
            differences = paired_differences(values, values[:, whole], each, seed, **how)
            if link is same and np.isin(values, (0.0, 1.0)).all():
                low, high = wilson(values.sum(axis=0), np.full(len(value), float(len(values))))
            elif np.isnan(low).any() and np.isfinite(values).all():
                drawn = clustered_means(values, each, seed, **how)
                low = np.where(np.isnan(low), drawn.low, low)
                high = np.where(np.isnan(high), drawn.high, high)
    ends = frame.with_columns(pl.Series("low", low), pl.Series("high", high))
    return ends.with_columns(_difference_columns(differences, slice(None), len(value)))


def _rows(
    model: ModelTables,
    names: Sequence[str],
    measure: _Measure,
    estimates: Estimates,
    differences: Differences | None,
    here: slice,
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
    n = len(measure.values)
    constants = {"task": MEMORIZATION, "metric": measure.metric, "n": n, **measure.labels}
    return _finish(
        frame.with_columns(
            *(pl.lit(value).alias(name) for name, value in constants.items()),
            *_difference_columns(differences, here, len(names)),
        ),
        model,
    )


def _without_difference(part: pl.DataFrame, model: ModelTables) -> pl.DataFrame:
    """Rows of the summary that are not compared with the baseline's."""
    nothing = _difference_columns(None, slice(None), part.height)
    return _finish(part.with_columns(*nothing, task=pl.lit(MEMORIZATION)), model)


def _difference_columns(
    differences: Differences | None, here: slice, count: int
) -> list[pl.Series]:
    """The columns of the differences, NaN where there are none."""
    if differences is None:
        return [pl.Series(name, np.full(count, np.nan)) for name in _DIFFERENCE]
    fields = (differences.value, differences.low, differences.high, differences.p_value)
    return [pl.Series(name, field[here]) for name, field in zip(_DIFFERENCE, fields, strict=True)]


def _with_holm(summary: pl.DataFrame) -> pl.DataFrame:
    """The column p_holm, over each block alone, by model, edit, split, task, metric, k, copies."""
    family = ["model", "edit", "split", "task", "metric", "k", "copies"]
    adjusted = (
        summary.with_row_index("row")
        .filter(pl.col("p_value").is_not_null(), group=EACH)
        .group_by(family, maintain_order=True)
        .agg("row", "p_value")
    )
    p_holm = np.full(summary.height, np.nan)
    for rows, p_values in adjusted.select("row", "p_value").iter_rows():
        p_holm[rows] = holm(np.array(p_values))
    return summary.with_columns(pl.Series("p_holm", p_holm).fill_nan(None))


def _finish(frame: pl.DataFrame, model: ModelTables) -> pl.DataFrame:
    """All columns of the summary, in order and of their types; NaN ends of intervals are null."""
    listed = model.interventions.select("intervention", "edit", "group", "blocks")
    frame = (
        frame.join(listed, on="intervention", how="left", maintain_order="left")
        .with_columns(
            pl.lit(model.name).alias("model"),
            pl.lit(model.family).alias("family"),
            pl.when(group=EACH).then(pl.col("blocks").list.first()).alias("block"),
            pl.lit(model.parameters).alias("parameters"),
            pl.lit(model.recipe or model.name).alias("recipe"),
            *(
                pl.when(pl.col("intervention") != BASELINE.name).then(pl.col(name)).alias(name)
                for name in _DIFFERENCE
            ),
            pl.col("low", "high").fill_nan(None),
        )
        .with_columns(pl.col(_DIFFERENCE).fill_nan(None))
    )
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None).alias(name)).cast(dtype)
        for name, dtype in _COLUMNS.items()
    )
