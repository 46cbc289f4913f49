"""The opening of the page: the finding, how sure it is, and the heatmaps."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.estimates import measured_models
from pipeline.analysis.evidence import LATE, TOKENS
from pipeline.analysis.kept import MOST, one_block
from pipeline.interventions.interventions import IDENTITY
from pipeline.measure.metrics import METRICS
from pipeline.report.facts import estimates
from pipeline.report.numbers import SHARE, Number, across, spread, summarized
from pipeline.report.plots.plot import UNMODIFIED, UNMODIFIED_OR_ONE_BLOCK

SHADES = 10
"""Steps of the heatmap's colour, from nothing kept (0) to all of it."""

_MEMORY = {
    "exact_match": "exact match",
    "token_accuracy": "token accuracy",
    "teacher_forced_accuracy": "teacher-forced accuracy",
    "completion_entropy": "completion entropy, nats",
}

_OTHERS = {m.name: m for m in METRICS if m.aggregate and m.name not in _MEMORY}
"""Metrics that the heatmap shows one at a time, as the reader chooses; ``mine/metrics.py`` too."""

_WORDS = _MEMORY | {
    name: name.replace("_", " ") + (f", {m.unit}" if m.unit not in ("", SHARE, "truth") else "")
    for name, m in _OTHERS.items()
}
"""Metric -> its heading."""

_DIRECT = ("token_accuracy", *(name for name, m in _OTHERS.items() if m.memorized_is_higher))
"""Those whose ratio to the baseline is shown, not its inverse."""

_RATIOS = ("token_accuracy", "completion_entropy", *(n for n, m in _OTHERS.items() if m.least >= 0))
"""Metrics of which no share is kept above a floor, so that the heatmap shows a ratio."""


def heatmaps(summary: pl.DataFrame, shares: pl.DataFrame) -> list[dict[str, Any]]:
    """One heatmap per model; the seeds of a recipe are one, and are pooled in `shares`.

    The colour shows what is kept of the baseline, see `kept.kept`; for token accuracy, and for a
    metric that is better when lower, it shows the ratio to the baseline or its inverse.

    Returns:
        For each model: ``model``, its name; ``lowest``, see `lowest`; ``heading``, the metrics;
        ``others``, the number of each of `_OTHERS` that is in the heading;
        ``rows``, what is bypassed and a cell for each metric, the first of the baseline. A cell is
        the number and its shade, 0 (nothing is kept) to `SHADES`; each None where unknown.
    """
    pooled = views.over_seeds(summary)
    shaded = _shaded(pooled, one_block(shares))
    return [
        {"model": name, "lowest": lowest(pooled.filter(model=name))}
        | _heatmap(shaded.filter(model=name))
        for name, _ in views.models(pooled)
    ]


def _heatmap(rows: pl.DataFrame) -> dict[str, Any]:
    heading = rows["label"].unique(maintain_order=True).to_list()
    cells = {
        (row["block"], row["label"]): (summarized(row), row["shade"])
        for row in rows.drop_nulls("value").iter_rows(named=True)
    }
    listed = []
    for block in [None, *rows["block"].drop_nulls().unique().sort()] if heading else []:
        bypassed = "baseline" if block is None else f"block {block}"
        listed.append((bypassed, [cells.get((block, label), (None, None)) for label in heading]))
    others = {_WORDS[name]: str(i) for i, name in enumerate(_OTHERS) if _WORDS[name] in heading}
    return {"heading": heading, "others": others, "rows": listed}


def _shaded(summary: pl.DataFrame, shares: pl.DataFrame) -> pl.DataFrame:
    """The rows of the heatmaps with their column's ``label`` and their ``shade``."""
    memory = [views.memorization(summary, metric) for metric in _MEMORY]
    others = [views.memorization(summary, metric) for metric in _OTHERS]
    tasks = views.benchmarks(summary).sort("task", maintain_order=True)
    rows = pl.concat([*memory, tasks, *others])
    memorized, metric = pl.col("task") == views.MEMORIZATION, pl.col("metric")
    short, every = pl.col("task").str.strip_prefix(views.GENERATED), rows["task"].unique()
    task = pl.when(short.is_in(every.implode())).then("task").otherwise(short)
    task = task.str.replace_all("_", " ")
    task = pl.when(task.is_in(list(_WORDS.values()))).then(task + " (task)").otherwise(task)
    joined = (
        rows.filter(UNMODIFIED_OR_ONE_BLOCK)
        .with_columns(
            label=pl.when(memorized).then(metric.replace(_WORDS)).otherwise(task),
            measure=pl.when(memorized).then(metric).otherwise("task"),
        )
        .join(
            shares.select("model", "block", "measure", "kept"),
            on=["model", "block", "measure"],
            how="left",
            maintain_order="left",
        )
    )
    of_one = ("model", "measure")
    value = pl.col("value")
    whole = value.filter(UNMODIFIED).first().over(of_one)
    inverse = pl.when(value > 0).then(whole / value).otherwise(1.0)
    direct = pl.when(whole > 0).then(value / whole)
    ratio = pl.when(metric.is_in(_DIRECT)).then(direct).otherwise(inverse)
    by_ratio = metric.is_in(_RATIOS) | ~pl.col("higher_is_better").fill_null(True)
    known = value.is_finite() & whole.is_not_null()
    share = pl.when(by_ratio).then(pl.when(known).then(ratio)).otherwise("kept")
    comparable = pl.when(by_ratio).then("block").otherwise(pl.col("kept").cast(pl.Int64))
    whole_share = pl.when(comparable.count().over(of_one) > 0).then(1.0)
    shade = SHADES * pl.when(UNMODIFIED).then(whole_share).otherwise(share).clip(0, 1)
    return joined.with_columns(shade=shade.round(mode="half_to_even").cast(pl.Int64))


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


def finding(summary: pl.DataFrame, shares: pl.DataFrame, evidence: pl.DataFrame) -> dict[str, Any]:
    """The main numbers: memory and ability with one late block edited, edit by edit.

    Returns:
        ``before``: exact match of the baselines, from the lowest to the highest; ``edits``: edit ->
        the numbers of `_of_edit`, the bypass first; ``compared``: those of `_compared`;
        ``uncounted``: model -> the benchmarks of which it has no lead over chance beyond its error;
        ``several``: whether several models have these; ``recited``: whether any baseline recites a
        sample; ``studied``: all models; ``samples``: memorized ones per model.
    """
    exact = shares.filter(group="block", measure="exact_match")
    edits = views.edits(exact)
    memory = views.memorization(views.over_seeds(summary), "exact_match")
    edited = exact["model"].unique().to_list()
    baselines = views.baseline(memory)
    return {
        "before": spread(
            "finding/baseline/exact_match",
            baselines.filter(pl.col("model").is_in(edited))["value"],
        ),
        "edits": {edit: _of_edit(edit, shares, evidence) for edit in edits},
        "compared": _compared(shares, edits) if len(edits) > 1 else {},
        "uncounted": _uncounted(summary, evidence),
        "several": len(edited) > 1,
        "recited": bool((baselines["value"] > 0).any()),
        "studied": Number("finding/studied", summary["recipe"].n_unique(), unit="models"),
        "samples": spread("finding/samples", baselines["n"].to_list() or [0], "samples"),
    }


def _uncounted(summary: pl.DataFrame, evidence: pl.DataFrame) -> dict[str, list[str]]:
    asked = views.tasks(views.accuracies(views.baseline(summary)))
    counted = {model.name: model.metrics for model in measured_models(evidence)}
    left_out = {model: [t for t in asked if t not in tasks] for model, tasks in counted.items()}
    return {model: tasks for model, tasks in left_out.items() if tasks}


def _of_edit(edit: str, shares: pl.DataFrame, evidence: pl.DataFrame) -> dict[str, Any]:
    """What one edit leaves.

    Returns:
        ``after`` and ``ability``: kept of exact match and of the benchmarks' lead over chance, on
        average over the single late blocks, model by model, see `numbers.across`; ``stopped`` of
        ``blocks``: blocks other than 0 at which most of exact match is lost, ``surely`` by the
        whole interval.
    """
    single = one_block(shares, edit).filter(pl.col("block") > 0)
    exact, place = single.filter(measure="exact_match"), f"finding/{edit}"
    left = [
        estimates(place, model, {"after": model.memory(LATE), "ability": model.abilities(LATE)})
        for model in measured_models(evidence.filter(over=LATE), edit=edit)
    ]
    after, ability = (
        across(
            f"{place}/late-block/{what}",
            [cell for row in left if isinstance(cell := row[i], Number)],
        )
        for i, what in enumerate(("exact_match", "benchmarks-kept"))
    )
    counts = {
        "stopped": exact.filter(pl.col("kept") < MOST).height,
        "surely": exact.filter(pl.col("high") < MOST).height,
        "blocks": exact.height,
    }
    return {"after": after, "ability": ability} | {
        name: Number(f"{place}/{name}", n, unit="blocks", table="evidence")
        for name, n in counts.items()
    }


def _compared(shares: pl.DataFrame, edits: Sequence[str]) -> dict[str, Any]:
    """How the bypass compares with other edits of the same block, over blocks other than 0.

    Returns:
        ``blocks`` that all edits have; ``every``: those at which each edit ends most exact matches;
        ``only``: those at which the bypass alone does, ``surely`` by whole intervals; ``fewest``:
        those at which it leaves the fewest tokens right (teacher-forced), of ``tokens``.
    """

    def side_by_side(measure: str, lost: str = "kept", left: str = "kept") -> pl.DataFrame:
        rows = shares.filter(pl.col("block") > 0, group="block", measure=measure)
        bypass = pl.col("edit") == IDENTITY
        rows = rows.with_columns(shown=pl.when(bypass).then(lost).otherwise(left))
        return rows.pivot("edit", index=["model", "block"], values="shown").drop_nulls()

    exact, tokens = side_by_side("exact_match"), side_by_side(TOKENS)
    others = [edit for edit in edits if edit != IDENTITY]
    if not set(edits) <= set(exact.columns):
        return {}
    ends = {edit: pl.col(edit) < MOST for edit in edits}
    alone = [ends[IDENTITY], *(~ends[edit] for edit in others)]
    counts = {
        "blocks": exact.height,
        "every": exact.filter(*ends.values()).height,
        "only": exact.filter(*alone).height,
        "surely": side_by_side("exact_match", "high", "low").filter(*alone).height,
        "fewest": tokens.filter(pl.col(IDENTITY) < pl.min_horizontal(others)).height
        if set(edits) <= set(tokens.columns)
        else 0,
        "tokens": tokens.height,
    }
    return {
        name: Number(f"finding/compared/{name}", count, unit="blocks", table="evidence")
        for name, count in counts.items()
    }
