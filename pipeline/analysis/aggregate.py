"""One summary of a study: every estimate with its 95% interval, one row each.

Reads the tables of samples, memorization and benchmarks; writes ``summary.parquet``, and
``evidence.parquet`` for the verdicts (see `evidence`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.displacement import estimates as tokenwise
from pipeline.analysis.documents import by_document, link_of, same
from pipeline.analysis.evidence import EVIDENCE, EVIDENCE_FILE, evidence_of, gathered
from pipeline.analysis.measured import ModelTables, grid_problems, read_tables
from pipeline.analysis.memorized import of_memorization
from pipeline.analysis.rows import (
    BY_CATEGORY,
    SUMMARY,
    difference_columns,
    finish,
)
from pipeline.analysis.schema import Thresholds
from pipeline.analysis.statistics import (
    DRAWS,
    LEVEL,
    Link,
    clustered_means,
    clustered_rates,
    holm,
    normal,
    paired_differences,
    scale_of_categories,
)
from pipeline.analysis.verdicts import VERDICTS, VERDICTS_FILE, verdicts
from pipeline.interventions.interventions import BASELINE, EACH
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError, Problem, bad_input


class _How(TypedDict):
    """How a metric is computed from its documents, for `statistics`."""

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
    limits: Thresholds | None = None,
    twins: Mapping[str, str] | None = None,
) -> pl.DataFrame:
    """Read the tables of a study, and write the summary, the evidence and the verdicts.

    Args:
        study: its name, for the summary's metadata.
        models: (name, family) of each, in the order of the report.
        data: the study's folder, ``data/STUDY``.
        path: where the summary goes; `EVIDENCE_FILE` and `VERDICTS_FILE` go into the same folder.
        seed: of the bootstrap.
        stale: after a stage failed: each stage that has not run on the current study -> the files
            it writes, which may remain from an earlier run. They are left out, with the models
            whose samples, checkpoint or memorization they are, and the page lists them. None: all
            files must be present.
        benchmarked: False: the study has no benchmarks.
        limits: the thresholds of the verdicts.
        twins: model -> its twin, for those that have one. A twin is what its model is compared
            with, and no model of the summary itself.

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
        raise bad_input(
            str(data / "memorization"),
            "no model with tables that match the current study",
            "at least one model",
            "run the memorization stage of a model: dvc repro",
        )
    benchmarks = {
        name: [data / "benchmarks" / f"{name}{end}" for end in (".parquet", ".documents.parquet")]
        for name, _ in wanted
        if benchmarked
    }
    problems = list[Problem]()
    references = set((twins or {}).values())

    def readable() -> Iterator[ModelTables]:
        for name, family in wanted:
            if name in references:
                continue
            try:
                there = benchmarked and usable(*benchmarks[name])
                twin = (twins or {}).get(name)
                twin = twin if twin in dict(wanted) else None
                model = read_tables(data, name, family, benchmarked=there, twin=twin)
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
        "models": [name for name, _ in wanted if name not in references],
        "level": LEVEL,
        "bootstrap": {"seed": seed, "draws": DRAWS},
        **({"stale": sorted(stale)} if stale else {}),
    }
    tables.write(summary, path, SUMMARY, provenance)
    evidence, limits = gathered(parts), limits or Thresholds()
    tables.write(evidence, path.with_name(EVIDENCE_FILE), EVIDENCE, provenance)
    provenance["thresholds"] = limits.model_dump()
    judged = verdicts(evidence, limits)
    tables.write(judged, path.with_name(VERDICTS_FILE), VERDICTS, provenance)
    return summary


def _versions(tables_versions: Sequence[Any]) -> dict[str, str]:
    """Package -> the version that computed the tables; all versions where they differ."""
    packages = sorted({package for versions in tables_versions for package in versions})
    return {
        package: " and ".join(sorted({str(v[package]) for v in tables_versions if package in v}))
        for package in packages
    }


def aggregate(models: Iterable[ModelTables], seed: int = 0) -> pl.DataFrame:
    """Every estimate of a study.

    - memorization, by split: the rate or mean of each of `metrics.METRICS` (a metric of the greedy
      continuation: over all samples that were decoded, if any; the others are known only if they
      are right up to the last token, so they would raise the mean);
      exact_match_at_k for k = 1, 2, 4, … and S: the first k tokens are right;
      exact_match_by_copies where copies are known; of a model with a twin also
      counterfactual_by_copies (see `twins`); extractable and extractable_top_40, the samples
      that come out within k tries (see `extraction`); hidden_extractable and
      hidden_extractable_top_40, the same for the samples that the unmodified model recites and
      the intervention does not. For some samples also displacement, attention_change and the
      survival of tokens: see `displacement.estimates`.
    - benchmarks: every task and metric as lm-eval reports it; of the unmodified model also
      acc_by_category, where a task has categories.

    Rates have Wilson intervals, means Student's or Hall's, clustered by suffix_group. So have the
    metrics of benchmarks that follow from their documents, clustered by category where a task has
    categories. Any other has the interval of lm-eval's standard error, if it gives one.

    Differences to the baseline are paired, sample by sample, document by document; see
    `statistics.paired_differences`. For a perplexity the difference is of the perplexities, and the
    test is of the documents' log-likelihoods, since perplexity is a monotone function of them.

    Args:
        models: in the order of the report; read one by one, so that only one is in memory.
        seed: of the bootstrap.

    Returns:
        A frame of schema `rows.SUMMARY`.

    Raises:
        InputError: an intervention lacks samples or tasks, or a table holds a row twice.
    """
    parts, problems = list[pl.DataFrame](), list[Problem]()
    for model in models:
        problems += grid_problems(model)
        if not problems:
            seen = (finish(part, model) for part in tokenwise(model, seed))
            estimates = *of_memorization(model, seed), *seen, *_benchmarks(model, seed)
            parts += [part for part in estimates if part.height]
    if problems:
        raise InputError(*problems)
    if not parts:
        return tables.empty(SUMMARY)
    whole = pl.concat(parts, how="vertical_relaxed")
    return _with_holm(whole.with_columns(recipe=pl.col("model").first().over("recipe")))


def _benchmarks(model: ModelTables, seed: int) -> Iterator[pl.DataFrame]:
    """The rows of one model's benchmarks table."""
    if model.benchmarks is None:
        return
    names = model.interventions["intervention"].to_list()
    order = pl.col("intervention").cast(pl.Enum(names))
    ordered = model.benchmarks.sort("task", "metric", order)
    for (task, metric), rows in ordered.group_by("task", "metric", maintain_order=True):
        yield finish(_benchmark(rows, task, metric, model.documents, seed), model)
    for part in _by_category(model.documents):
        yield finish(part, model)


def _by_category(documents: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The baseline's accuracy for each category of a task's documents."""
    rows = documents.filter(intervention=BASELINE.name, metric="acc")
    rows = rows.drop_nulls("category").sort("task", "category")
    for (task, category), of in rows.group_by("task", "category", maintain_order=True):
        outcomes = of["value"].to_numpy()[:, None] == 1
        rate = clustered_rates(outcomes, np.arange(of.height))
        yield pl.DataFrame(
            {
                **{"task": task, "category": category, **vars(rate), "n": of.height},
                **{"intervention": BASELINE.name, "metric": BY_CATEGORY, "higher_is_better": True},
            }
        )


def _benchmark(
    frame: pl.DataFrame, task: object, metric: object, documents: pl.DataFrame, seed: int
) -> pl.DataFrame:
    """One metric of one task, V interventions in order, with its intervals and differences."""
    value = frame["value"].to_numpy()
    low, high = normal(value, frame["stderr"].fill_null(float("nan")).to_numpy())
    differences = None
    found = by_document(documents, task, metric, frame["intervention"].to_list())
    if found is not None:
        values, weights, groups = found
        link = link_of(values, weights, value)
        if link is not None:
            whole = [frame["intervention"].to_list().index(BASELINE.name)]
            rate = link is same and bool(np.isin(values, (0.0, 1.0)).all())
            scale = np.full(len(value), scale_of_categories(groups) if rate else 0.0)
            how = _How(weights=weights, link=None if link is same else link)
            differences = paired_differences(
                values, values[:, whole], groups, seed, scale=scale, **how
            )
            if rate:
                own = clustered_rates(values.astype(bool), groups)
            else:
                own = clustered_means(values, groups, **how)
            low, high = own.low, own.high
    ends = {"low": pl.Series(low), "high": pl.Series(high)}
    return frame.with_columns(**ends, **difference_columns(differences))


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
