"""The opening of the page: the finding, how sure it is, and the heatmaps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.views import block_range
from pipeline.report.numbers import Number, spread, summarized

SHADES = 10
"""Steps of the heatmap's colour, from nothing kept (0) to all of it."""

_MEMORY = {
    "exact_match": "exact match",
    "token_accuracy": "token accuracy",
    "teacher_forced_accuracy": "teacher-forced accuracy",
    "completion_entropy": "completion entropy, nats",
}

_RATIOS = ("token_accuracy", "completion_entropy")
"""Metrics of which no share is kept above a floor, so that the heatmap shows a ratio."""


@dataclass(frozen=True)
class Cell:
    """One number of a heatmap.

    Args:
        shown: the number; None: not measured.
        shade: 0 (nothing of the baseline is kept) to `SHADES`; None: not known.
    """

    shown: Number | None
    shade: int | None


@dataclass(frozen=True)
class Heatmap:
    """The blocks of one model by metrics.

    Args:
        model: its name.
        lowest: what its caption says, see `lowest`.
        heading: the metrics.
        rows: what is bypassed, and a cell for each metric; the first is the baseline.
    """

    model: str
    lowest: Mapping[str, Any]
    heading: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]


def heatmaps(summary: pl.DataFrame, shares: pl.DataFrame) -> list[Heatmap]:
    """One heatmap per model; the seeds of a recipe are one.

    The colour shows what is kept of the baseline, see `kept.kept`; for token accuracy, and for a
    metric that is better when lower, it shows the ratio to the baseline or its inverse.

    Args:
        summary: as `aggregate.aggregate` gives it.
        shares: as `kept.kept` gives it, seeds pooled.
    """
    pooled = views.over_seeds(summary)
    of_blocks = shares.filter(group="block")
    return [
        _heatmap(pooled.filter(model=name), of_blocks.filter(model=name), name)
        for name, _ in views.models(pooled)
    ]


def _heatmap(summary: pl.DataFrame, shares: pl.DataFrame, name: str) -> Heatmap:
    columns = {label: views.memorization(summary, key) for key, label in _MEMORY.items()}
    benchmarks = views.benchmarks(summary)
    for task in views.tasks(benchmarks):
        label = task.removeprefix(views.GENERATED).replace("_", " ")
        columns[label] = benchmarks.filter(task=task)
    columns = {label: rows for label, rows in columns.items() if rows.height}
    blocks = views.single_blocks(summary)["block"].unique().sort().to_list()
    cells = [_column(rows, shares, blocks) for rows in columns.values()]
    bypassed = ["baseline", *(f"block {block}" for block in blocks)]
    rows = list(zip(bypassed, zip(*cells, strict=True), strict=True)) if cells else []
    return Heatmap(name, lowest(summary), list(columns), rows)


def _column(rows: pl.DataFrame, shares: pl.DataFrame, blocks: Sequence[int]) -> list[Cell]:
    task, metric, upwards = rows.select("task", "metric", "higher_is_better").row(0)
    baseline = next(views.baseline(rows).iter_rows(named=True), None)
    single = {row["block"]: row for row in views.single_blocks(rows).iter_rows(named=True)}
    measure = metric if task == views.MEMORIZATION else task
    share = dict(shares.filter(measure=measure).select("block", "kept").iter_rows())
    if metric in _RATIOS or upwards is False:
        level = baseline["value"] if baseline else None
        share = {block: _ratio(row["value"], level, metric) for block, row in single.items()}
    known = 1.0 if share and baseline else None
    cells = [(baseline, known), *((single.get(block), share.get(block)) for block in blocks)]
    return [
        Cell(summarized(row), None if of is None else round(SHADES * min(1.0, max(0.0, of))))
        if row is not None and row["value"] is not None
        else Cell(None, None)
        for row, of in cells
    ]


def _ratio(value: float | None, baseline: float | None, metric: str) -> float | None:
    """The value by the baseline's, or the inverse where lower is better; None: not known."""
    if value is None or baseline is None or not math.isfinite(value):
        return None
    if metric == "token_accuracy":
        return value / baseline if baseline > 0 else None
    return baseline / value if value > 0 else 1.0


def lowest(summary: pl.DataFrame) -> dict[str, Any]:
    """The blocks, other than 0, whose bypass lowers exact match of one model most.

    Returns:
        ``baseline`` and ``lowest``, and the ``blocks`` (names; none where no bypass lowers it);
        empty where exact match was not measured block by block.
    """
    rows = views.memorization(summary, "exact_match")
    single = views.single_blocks(rows).filter(pl.col("block") > 0).drop_nulls("value")
    baseline = views.baseline(rows).drop_nulls("value")
    if not single.height or not baseline.height:
        return {}
    least = single.filter(value=pl.col("value").min())
    lowers = least["value"][0] < baseline["value"][0]
    return {
        "baseline": summarized(baseline.row(0, named=True)),
        "lowest": summarized(least.row(0, named=True)),
        "blocks": least["block"].cast(pl.String).to_list() if lowers else [],
    }


def finding(summary: pl.DataFrame, shares: pl.DataFrame) -> dict[str, Any]:
    """The main numbers: memory and ability with the median late block bypassed.

    Args:
        summary: as `aggregate.aggregate` gives it.
        shares: as `kept.kept` gives it, seeds not pooled.

    Returns:
        ``before``, ``after``: exact match, from the lowest to the highest model; ``ability``: the
        kept share of the lead over chance, averaged over the benchmarks; ``several``: whether
        several models have these; ``studied``: all models; ``samples``: memorized ones per model.
    """
    memory = views.memorization(summary, "exact_match")
    of_ability = shares.filter(kind="mean", group="block")
    before, after, ability = [], [], []
    for name, _ in views.models(summary):
        single = views.single_blocks(memory.filter(model=name))
        late = pl.col("block").is_in(
            list(block_range(max(single["block"].to_list(), default=0) + 1, "late"))
        )
        baseline = views.baseline(memory.filter(model=name))["value"].to_list()
        level = single.filter(late)["value"].median()
        if baseline and isinstance(level, float):
            before.append(baseline[0])
            after.append(level)
        left = of_ability.filter(late, model=name)["kept"].median()
        if isinstance(left, float):
            ability.append(left)
    return {
        "before": spread("finding/baseline/exact_match", before),
        "after": spread("finding/late-block/exact_match", after),
        "ability": spread("finding/late-block/benchmarks-kept", ability),
        "several": len(after) > 1,
        "studied": Number("finding/studied", len(views.models(summary)), unit="models"),
        "samples": spread(
            "finding/samples",
            views.baseline(memory)["n"].to_list() or [0],
            "samples",
        ),
    }
