"""Figures over the blocks: the share kept, across scales, by length, perplexity.

Source: Figures 3, 5 and A18–A21 (A21: perplexity) and Eq. 4 of arXiv 2501.05078; the figures of the
share kept and of lengths are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.kept import MEAN
from pipeline.analysis.text import slug, visible
from pipeline.interventions.interventions import EDITS, IDENTITY
from pipeline.report import colours, style
from pipeline.report.numbers import Number
from pipeline.report.plots.plot import (
    BLOCKS_LABEL,
    NUMBERS,
    Plot,
    by_block,
    count,
    extent,
    later_blocks,
    lowest,
    panels,
    share,
    unmodified_or_one_block,
)

_LENGTHS = (1, 4, 16)
"""Tokens at which exact match is drawn, beside the whole suffix."""

_MEMORY = {
    "exact_match": "exact match, memorized",
    "token_accuracy": "token accuracy (Eq. 4), memorized",
}
"""Metric on memorized samples -> the title of its panel."""

_FORCED = "teacher-forced accuracy"

_KEPT = (
    *("model", "family", "intervention", "edit", "block", "measure", "kind"),
    *("kept", "low", "high"),
)

_PANEL = pl.format("{}, {}", "model", "edit")

_MOST_PANELS = 24
"""Of one figure."""

_HALF = 0.5
"""Less than this share of the baseline left: most is lost."""


def kept(shares: pl.DataFrame) -> Iterator[Plot]:
    """The share of the baseline that an edit of one block leaves: the figure of the main finding.

    A panel for each model and edit. If there are more than `_MOST_PANELS`, each edit has its own
    figure.

    Args:
        shares: as `analysis.kept.kept` gives them.
    """
    data = shares.filter(group="block").sort("block", maintain_order=True).select(_KEPT)
    edits = sorted(data["edit"].unique(), key=EDITS.index)
    if len(edits) * data["model"].n_unique() <= _MOST_PANELS:
        yield Plot("kept", data, draw_kept, _of_kept(data, edits))
        return
    for edit in edits:
        name = "kept" if edit == IDENTITY else f"kept-{slug(edit)}"
        of_edit = data.filter(edit=edit)
        yield Plot(name, of_edit, draw_kept, _of_kept(of_edit, [edit]), "kept", edit)


def _of_kept(data: pl.DataFrame, edits: Sequence[str]) -> dict[str, Any]:
    exact = later_blocks(data.filter(measure="exact_match"))
    lost = pl.col("kept") < _HALF
    able = later_blocks(data.filter(kind="mean")).filter(~lost)
    both = {
        edit: exact.filter(lost, edit=edit).join(
            able.filter(edit=edit), on=["model", "block"], how="semi"
        )
        for edit in edits
    }
    return {
        "stopped": {edit: count(exact.filter(lost, edit=edit).height) for edit in edits},
        "blocks": {edit: count(exact.filter(edit=edit).height) for edit in edits},
        "able": {edit: count(rows.height) for edit, rows in both.items()}
        if (data["kind"] == "mean").any()
        else {},
        "benchmarks": (data["kind"] == "benchmark").any(),
        "panels": panels(data.filter(measure="exact_match").select(model=_PANEL)),
    }


def draw_kept(data: pl.DataFrame) -> Figure:
    """Share of the baseline kept, by block; a row of panels per model, one per edit."""
    edits = sorted(data["edit"].unique(), key=EDITS.index)
    models = data["model"].unique(maintain_order=True).to_list()
    columns = len(edits) if len(edits) > 1 else None
    figure, grid = style.panels(len(models) * len(edits), columns=columns)
    places = [(model, edit) for model in models for edit in edits]
    for axes, (model, edit) in zip(grid, places, strict=True):
        rows = data.filter(model=model, edit=edit)
        axes.axhline(1, color=colours.MUTED, linestyle=(0, (6, 3)), linewidth=1)
        axes.axhline(0, color=colours.MUTED, linewidth=0.8)
        benchmarks = rows.filter(kind="benchmark")
        for task in benchmarks["measure"].unique().sort():
            one = benchmarks.filter(measure=task)
            axes.plot(
                one["block"],
                style.finite(one["kept"]),
                color=colours.GREEN,
                linewidth=0.8,
                alpha=0.7,
            )
        for index, measure, label in (
            (1, "teacher_forced_accuracy", _FORCED),
            (0, "exact_match", "exact match"),
            (2, MEAN, "benchmarks"),
        ):
            if (one := rows.filter(measure=measure)).height:
                style.curve(axes, one, index, label, value="kept")
        axes.set_title(visible(f"{model}, {edit}" if len(edits) > 1 else model))
        style.blocks_axis(axes)
        style.percent_axis(axes.yaxis)
    style.bound(grid[0], -0.35, 1.35)
    figure.supxlabel("edited block (0 is nearest to the input)" if columns else BLOCKS_LABEL)
    figure.supylabel("kept of the baseline")
    style.legend(figure)
    return figure


def blocks(summary: pl.DataFrame) -> Iterator[Plot]:
    """Exact match and accuracies by block, one figure per family (Figs. 3, A18–A20)."""
    memory = [views.memorization(summary, metric) for metric in _MEMORY]
    rows = pl.concat([*memory, views.accuracies(summary)]).filter(unmodified_or_one_block())
    for family in dict.fromkeys(family for _, family in views.models(summary)):
        data = rows.filter(family=family).select(*NUMBERS, "chance")
        exact = data.filter(metric="exact_match")
        values = {"family": family, "lowest": lowest(exact), **_by_size(exact, summary)}
        yield Plot(f"blocks-{slug(family)}", data, draw_blocks, values, "blocks", family)


def _by_size(exact: pl.DataFrame, summary: pl.DataFrame) -> dict[str, Any]:
    """The mean exact match over the bypassed blocks of each model, smallest model first."""
    sizes = summary.select("model", "parameters").unique(maintain_order=True)
    means = (
        later_blocks(exact)
        .group_by("model", maintain_order=True)
        .agg(pl.col("value").mean())
        .join(sizes, on="model", maintain_order="left")
        .sort("parameters", maintain_order=True)
    )
    ordered = means.select(pl.col("parameters", "value").diff().drop_nulls() > 0)
    named = means.select("model", "value").iter_rows()
    return {
        "means": {model: share(value) for model, value in named},
        "rising": means.height > 1 and all(ordered[name].all() for name in ordered.columns),
    }


def draw_blocks(data: pl.DataFrame) -> Figure:
    """Memorization and accuracies of one family by block; a panel per measure, a line per model."""
    names = data["model"].unique(maintain_order=True).to_list()
    memorized = pl.col("task") == views.MEMORIZATION
    title = pl.when(memorized).then(pl.col("metric").replace(_MEMORY))
    ranks = {task: rank for rank, task in enumerate(views.tasks(data.filter(~memorized)))}
    panelled = data.with_columns(
        panel=title.otherwise(pl.format("{}, accuracy", "task")),
        rank=pl.col("task").replace_strict(ranks, default=-1),
    ).sort("rank", maintain_order=True)
    figure, grid = style.lines(panelled, panel="panel", order=names)
    for axes in grid.values():
        style.percent_axis(axes.yaxis, whole=True)
    figure.supxlabel(BLOCKS_LABEL)
    style.legend(figure)
    return figure


def lengths(summary: pl.DataFrame) -> Iterator[Plot]:
    """Exact match at k tokens and teacher-forced accuracy by block."""
    at_k = views.memorization(summary, "exact_match_at_k")
    whole = pl.col("k") == pl.col("k").max().over("model")
    rows = pl.concat(
        [
            at_k.filter(pl.col("k").is_in(_LENGTHS) | whole),
            views.memorization(summary, "teacher_forced_accuracy"),
        ]
    )
    data = views.single_blocks(rows).select(*NUMBERS, "k")
    tokens = data.filter(metric="teacher_forced_accuracy")
    values = {
        "forced": _median(tokens),
        "suffixes": _median(data.filter(whole)),
        "panels": panels(data),
        "accuracy": extent(tokens["value"]),
        "lowest": lowest(data.filter(metric="exact_match_at_k")),
    }
    yield Plot("length", data, draw_lengths, values)


def _median(rows: pl.DataFrame) -> Number:
    """The median of a share over all models and bypassed blocks but 0."""
    return share(later_blocks(rows)["value"].median())  # type: ignore[arg-type]


def draw_lengths(data: pl.DataFrame) -> Figure:
    """Exact match at k and teacher-forced accuracy by block; one panel per model."""
    whole = pl.col("k") == pl.col("k").max().over("model")
    firsts = {k: _first(k) for k in _LENGTHS}
    labelled = data.with_columns(
        line=pl.when(pl.col("k").is_null())
        .then(pl.lit(_FORCED))
        .when(whole)
        .then(pl.lit("whole suffix"))
        .otherwise(pl.col("k").replace_strict(firsts, default=None, return_dtype=pl.String))
    )
    order = ["whole suffix", _FORCED, *firsts.values()]
    figure, grid = style.lines(labelled, line="line", order=order)
    for axes in grid.values():
        style.percent_axis(axes.yaxis, whole=True)
    figure.supxlabel(BLOCKS_LABEL)
    figure.supylabel("share right, memorized samples")
    style.legend(figure)
    return figure


def perplexity(summary: pl.DataFrame) -> Iterator[Plot]:
    """Metrics that are better when lower, such as word_perplexity, by block (Figs. 5, A21)."""
    rows = views.losses(summary)
    data = rows.filter(unmodified_or_one_block()).select(*NUMBERS)
    if not data.height:
        return
    named = data.select("task", "metric").unique().sort("task", "metric").rows()
    known = data.filter(pl.col("value").is_finite())
    values = {
        "metrics": ", ".join(f"{metric} on {task}" for task, metric in named),
        "bypassed": extent(by_block(data)["value"], unit=""),
        "baseline": extent(views.baseline(data)["value"], unit=""),
        "bands": known["low"].count() > 0,
        **_raised(data),
    }
    yield Plot("perplexity", data, draw_perplexity, values)


def _raised(data: pl.DataFrame) -> dict[str, Any]:
    """By what factors one bypass multiplies the metrics."""
    unmodified = views.baseline(data).select("model", "task", baseline="value")
    factors = (
        later_blocks(data)
        .join(unmodified, on=["model", "task"], maintain_order="left")
        .with_columns(factor=pl.col("value") / pl.col("baseline"))
        .filter(pl.col("factor").is_finite())
        .sort("factor", descending=True, maintain_order=True)
    )
    if not factors.height:
        return {"median": None}
    model, block, most = factors.select("model", "block", "factor").row(0)
    [median] = factors.select(pl.median("factor"))["factor"]
    ratios = {"median": Number("", median, unit="ratio"), "most": Number("", most, unit="ratio")}
    return {**ratios, "block": str(block), "model": model}


def draw_perplexity(data: pl.DataFrame) -> Figure:
    """Perplexity by block; one panel per task and family, one line per model."""
    panelled = data.with_columns(panel=pl.format("{} {}", "task", "family"))
    figure, grid = style.lines(panelled, panel="panel", height=2.4)
    for name, axes in grid.items():
        row = panelled.filter(panel=name).row(0, named=True)
        axes.set_title(visible(row["family"]))
        axes.set_ylabel(visible(f"{row['task']}, {row['metric']}"))
        axes.legend(loc="best")
        style.log_axis(axes.yaxis)
    figure.supxlabel(BLOCKS_LABEL)
    return figure


def _first(k: int) -> str:
    return "first token" if k == 1 else f"first {k} tokens"
