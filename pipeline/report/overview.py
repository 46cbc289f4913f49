"""The opening of the page: the finding, how sure it is, and the heatmaps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.evidence import TOKENS
from pipeline.analysis.kept import one_block
from pipeline.analysis.views import block_range
from pipeline.interventions.interventions import IDENTITY
from pipeline.report.numbers import Number, spread, summarized

SHADES = 10
"""Steps of the heatmap's colour, from nothing kept (0) to all of it."""

_MEMORY = {
    "exact_match": "exact match",
    "token_accuracy": "token accuracy",
    "teacher_forced_accuracy": "teacher-forced accuracy",
    "completion_entropy": "completion entropy, nats",
}

MOST = 0.5
"""Less than this share of the baseline kept: most is lost."""

STOPPED = pl.col("kept") < MOST

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
    of_blocks = one_block(shares)
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
    """The main numbers: memory and ability with the median late block edited, edit by edit.

    Args:
        summary: as `aggregate.aggregate` gives it.
        shares: as `kept.kept` gives it, seeds not pooled.

    Returns:
        ``before``: exact match of the baselines, from the lowest to the highest; ``edits``: edit ->
        the numbers of `_of_edit`, the bypass first; ``compared``: those of `_compared`;
        ``several``: whether several models have these; ``studied``: all models; ``samples``:
        memorized ones per model.
    """
    exact = shares.filter(group="block", measure="exact_match")
    edits = [IDENTITY, *(e for e in exact["edit"].unique(maintain_order=True) if e != IDENTITY)]
    memory = views.memorization(summary, "exact_match")
    edited = exact["model"].unique().to_list()
    baselines = views.baseline(memory)
    return {
        "before": spread(
            "finding/baseline/exact_match",
            baselines.filter(pl.col("model").is_in(edited))["value"],
        ),
        "edits": {edit: _of_edit(edit, memory, shares) for edit in edits},
        "compared": _compared(shares, edits) if len(edits) > 1 else {},
        "several": len(edited) > 1,
        "studied": Number("finding/studied", len(views.models(summary)), unit="models"),
        "samples": spread("finding/samples", baselines["n"].to_list() or [0], "samples"),
    }


def _of_edit(edit: str, memory: pl.DataFrame, shares: pl.DataFrame) -> dict[str, Any]:
    """What one edit leaves.

    Returns:
        ``after``: exact match with the median late block edited, over the models; ``ability``: the
        kept share of the lead over chance, averaged over the benchmarks; ``stopped`` of ``blocks``:
        blocks other than 0 at which most of exact match is lost.
    """
    single = one_block(shares, edit).filter(pl.col("block") > 0)
    exact = single.filter(measure="exact_match")
    values = exact.join(
        memory.select("model", "intervention", "value"), on=["model", "intervention"]
    )
    place = f"finding/{edit}"
    return {
        "after": spread(f"{place}/late-block/exact_match", _of_late(values, "value")),
        "ability": spread(
            f"{place}/late-block/benchmarks-kept", _of_late(single.filter(kind="mean"), "kept")
        ),
        "stopped": Number(
            f"{place}/stopped", exact.filter(STOPPED).height, unit="blocks", table="evidence"
        ),
        "blocks": Number(f"{place}/blocks", exact.height, unit="blocks", table="evidence"),
    }


def _of_late(rows: pl.DataFrame, column: str) -> list[float]:
    """The median over the late blocks of each model."""
    medians = []
    for _, of_model in rows.group_by("model", maintain_order=True):
        n_blocks = max(of_model["block"]) + 1
        late = of_model.filter(pl.col("block").is_in(list(block_range(n_blocks, "late"))))
        medians.append(late[column].median())
    return [float(median) for median in medians if isinstance(median, float)]


def _compared(shares: pl.DataFrame, edits: Sequence[str]) -> dict[str, Any]:
    """How the bypass compares with other edits of the same block, over blocks other than 0.

    Returns:
        ``blocks`` that all edits have; ``every``: those at which each edit ends most exact matches;
        ``only``: those at which the bypass alone does; ``fewest``: those at which the bypass leaves
        the fewest tokens right (teacher-forced), of ``tokens``.
    """

    def side_by_side(measure: str) -> pl.DataFrame:
        rows = shares.filter(pl.col("block") > 0, group="block", measure=measure)
        return rows.pivot("edit", index=["model", "block"], values="kept").drop_nulls()

    exact, tokens = side_by_side("exact_match"), side_by_side(TOKENS)
    others = [edit for edit in edits if edit != IDENTITY]
    if not set(edits) <= set(exact.columns):
        return {}
    ends = {edit: pl.col(edit) < MOST for edit in edits}
    counts = {
        "blocks": exact.height,
        "every": exact.filter(*ends.values()).height,
        "only": exact.filter(ends[IDENTITY], *(~ends[edit] for edit in others)).height,
        "fewest": tokens.filter(pl.col(IDENTITY) < pl.min_horizontal(others)).height
        if set(edits) <= set(tokens.columns)
        else 0,
        "tokens": tokens.height,
    }
    return {
        name: Number(f"finding/compared/{name}", count, unit="blocks", table="evidence")
        for name, count in counts.items()
    }
