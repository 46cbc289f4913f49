"""One summary of a study: every estimate with its 95% interval, one row each.

Reads the tables of samples, memorization and benchmarks; writes those of `results.NUMBERS`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipeline.analysis.displacement import estimates as tokenwise
from pipeline.analysis.documents import Documents, by_document
from pipeline.analysis.evidence import evidence_of, gathered
from pipeline.analysis.measured import ModelTables, grid_problems, read_tables
from pipeline.analysis.memorized import of_memorization
from pipeline.analysis.results import NUMBERS
from pipeline.analysis.rows import (
    BY_CATEGORY,
    SUMMARY,
    Measure,
    difference_columns,
    finish,
    rows_of,
)
from pipeline.analysis.schema import Thresholds
from pipeline.analysis.statistics import (
    DRAWS,
    LEVEL,
    Z,
    clustered_means,
    clustered_rates,
    holm,
    paired_differences,
    same,
    scale_of_categories,
)
from pipeline.analysis.verdicts import verdicts
from pipeline.interventions.interventions import BASELINE, EACH
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError, Problem, bad_input


def write_summary(
    study: str,
    models: Sequence[tuple[str, str]],
    data: Path,
    seed: int = 0,
    stale: Mapping[str, Collection[Path]] | None = None,
    *,
    benchmarked: bool = True,
    limits: Thresholds | None = None,
    twins: Mapping[str, str] | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Read the tables of a study, and write the summary, the evidence and the verdicts.

    They are in its folder, ``data/STUDY``, for the models, (name, family), in the order of the
    report. `twins` has the twin of each model that has one: what it is compared with, and no model
    of the summary itself. The seed is of the sign flips of the tests, the limits of the verdicts.

    After a stage failed, `stale` has each stage that has not run on the current study -> the files
    it writes, which may remain from an earlier run. They are left out, with the models whose
    samples, checkpoint or memorization they are, and the page lists them. None: all files must be
    present, but for those of benchmarks where the study is not `benchmarked`.

    Returns:
        The summary and the evidence.

    Raises:
        InputError: a table is missing (with `stale`: those of every model), does not fit its
            schema, or is not complete.
    """
    old = {path for files in (stale or {}).values() for path in files}
    twins, limits = twins or {}, limits or Thresholds()

    def usable(*files: str) -> bool:
        paths = [data / file for file in files]
        return stale is None or all(path not in old and path.exists() for path in paths)

    wanted = {
        name: family
        for name, family in models
        if usable(
            f"samples/{family}.parquet", f"checkpoints/{name}", f"memorization/{name}.parquet"
        )
    }
    if not wanted:
        raise bad_input(
            str(data / "memorization"),
            "no model with tables that match the current study",
            "at least one model",
            "run the memorization stage of a model: dvc repro",
        )
    own = [name for name in wanted if name not in twins.values()]
    used = [f"memorization/{name}.parquet" for name in wanted]
    problems = list[Problem]()
    rows, parts = list[pl.DataFrame](), list[pl.DataFrame]()
    for name, family in wanted.items():
        answered = f"benchmarks/{name}.parquet", f"benchmarks/{name}.documents.parquet"
        if there := benchmarked and usable(*answered):
            used.append(answered[0])
        if name not in own:
            continue
        twin = twins[name] if twins.get(name) in wanted else None
        try:
            model = read_tables(data, name, family, benchmarked=there, twin=twin)
            problems += grid_problems(model)
        except InputError as error:
            problems += error.problems
        if not problems:
            rows.append(_of_model(model, seed))
            parts.append(evidence_of(model))
    if problems:
        raise InputError(*problems)
    provenance: dict[str, object] = {
        "study": study,
        "versions": _versions(
            [tables.provenance(data / file).get("versions", {}) for file in used]
        ),
        "models": own,
        "level": LEVEL,
        "sign_flips": {"seed": seed, "draws": DRAWS},
        **({"stale": sorted(stale)} if stale else {}),
    }
    summary, evidence = _joined(rows), gathered(parts)
    made = {"summary": summary, "evidence": evidence, "verdicts": verdicts(evidence, limits)}
    for name, table in made.items():
        if name == "verdicts":
            provenance["thresholds"] = limits.model_dump()
        tables.write(table, data / f"{name}.parquet", NUMBERS[name], provenance)
    return summary, evidence


def _versions(of_tables: Sequence[Any]) -> dict[str, str]:
    """Package -> the version that computed the tables; all versions where they differ."""
    return {
        package: " and ".join(sorted({str(each[package]) for each in of_tables if package in each}))
        for package in sorted(set().union(*of_tables))
    }


def aggregate(models: Iterable[ModelTables], seed: int = 0) -> pl.DataFrame:
    """Every estimate of a study.

    - memorization, by split: the rate or mean of each of `metrics.METRICS` (a metric of the greedy
      continuation: over all samples that were decoded, if any; the others are known only if they
      are right up to the last token, so they would raise the mean);
      exact_match_at_k for k = 1, 2, 4, … and S: the first k tokens are right;
      exact_match_by_copies where copies are known; of a model with a twin also
      counterfactual_by_copies (see `memorized`); extractable and extractable_top_40, the samples
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

    The models are in the order of the report, without holes (see `measured.grid_problems`); the
    seed is that of the sign flips of the tests. The frame is of schema `rows.SUMMARY`.
    """
    return _joined(_of_model(model, seed) for model in models)


def _of_model(model: ModelTables, seed: int) -> pl.DataFrame:
    """The estimates of one model."""
    parts = of_memorization(model, seed), tokenwise(model), _benchmarks(model, seed)
    return finish(chain(*parts), model)


def _joined(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """The summary, with the recipe's first model as its name, and with the column p_holm.

    P-values are adjusted over each block alone, by model, edit, split, task, metric, k and copies.
    """
    whole = pl.concat([tables.empty(SUMMARY), *parts])
    family = ("model", "edit", "split", "task", "metric", "k", "copies")
    p_holm = (
        pl.when(group=EACH)
        .then("p_value")
        .map_batches(lambda p_values: pl.Series(holm(p_values.to_numpy())), return_dtype=pl.Float64)
    )
    return whole.with_columns(
        recipe=pl.col("model").first().over("recipe"), p_holm=p_holm.over(family).fill_nan(None)
    )


def _benchmarks(model: ModelTables, seed: int) -> Iterator[pl.DataFrame]:
    """The rows of one model's benchmarks table, and the baseline's accuracy by category."""
    if model.benchmarks is None:
        return
    order, baseline = pl.col("intervention").cast(pl.Enum(model.names)), model.baseline
    ordered = model.benchmarks.sort("task", "metric", order)
    for (task, metric), rows in ordered.group_by("task", "metric", maintain_order=True):
        yield _benchmark(rows, by_document(model, task, metric), baseline, seed)
    of_category = model.documents.filter(intervention=BASELINE.name, metric="acc")
    of_category = of_category.drop_nulls("category").sort("task", "category")
    for (task, category), of in of_category.group_by("task", "category", maintain_order=True):
        labels = {"category": category, "higher_is_better": True}
        right, alone = of["value"].to_numpy()[:, None] == 1, np.arange(of.height)
        measure = Measure(BY_CATEGORY, right, alone, str(task), labels=labels)
        yield rows_of([BASELINE.name], measure, clustered_rates(right, alone))


def _benchmark(
    frame: pl.DataFrame, found: Documents | None, baseline: int, seed: int
) -> pl.DataFrame:
    """One metric of one task, V interventions in order, with its intervals and differences."""
    if found is None or (link := found.link) is None:
        half = Z * pl.col("stderr")
        return frame.with_columns(low=pl.col("value") - half, high=pl.col("value") + half)
    values, weights, groups, _ = found
    scale = 0.0
    if link is same and np.isin(values, (0.0, 1.0)).all():
        own, scale = clustered_rates(values.astype(bool), groups), scale_of_categories(groups)
    else:
        own = clustered_means(values, groups, weights, link)
    differences = paired_differences(
        values, values[:, [baseline]], groups, seed, weights=weights, link=link, scale=scale
    )
    ends = {"low": pl.Series(own.low), "high": pl.Series(own.high)}
    return frame.with_columns(**ends, **difference_columns(differences))
