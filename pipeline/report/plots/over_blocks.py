"""Figures over the blocks: the share kept, across scales, by length, perplexity.

Source: Figures 3, 5 and A18–A21 (A21: perplexity) and Eq. 4 of arXiv 2501.05078; the figures of the
share kept and of lengths are ours.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.kept import MEAN, MOST
from pipeline.analysis.text import slug, visible
from pipeline.interventions.interventions import IDENTITY, edit_order
from pipeline.report import colours, style
from pipeline.report.numbers import Number
from pipeline.report.plots.plot import (
    BLOCKS_LABEL,
    NUMBERS,
    UNMODIFIED_OR_ONE_BLOCK,
    Plot,
    by_block,
    count,
    extent,
    later_blocks,
    lowest,
    panels,
    share,
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


def kept(shares: pl.DataFrame, *, control: bool = True) -> Iterator[Plot]:
    """The share of the baseline that an edit of one block leaves: the figure of the main finding.

    A panel for each model and edit. If there are more than `_MOST_PANELS`, each edit has its own
    figure.
    """
    data = shares.filter(group="block").sort("block", maintain_order=True).select(_KEPT)
    edits = sorted(data["edit"].unique(), key=edit_order)
    if len(edits) * data["model"].n_unique() <= _MOST_PANELS:
        yield Plot("kept", data, draw_kept, _of_kept(data, edits, control))
        return
    for edit in edits:
        name = "kept" if edit == IDENTITY else f"kept-{slug(edit)}"
        of_edit = data.filter(edit=edit)
        yield Plot(name, of_edit, draw_kept, _of_kept(of_edit, [edit], control), "kept", edit)


def _of_kept(data: pl.DataFrame, edits: Sequence[str], control: bool) -> dict[str, Any]:
    exact = later_blocks(data.filter(measure="exact_match"))
    lost = pl.col("kept") < MOST
    able = later_blocks(data.filter(kind="mean")).filter(~lost)
    both = exact.filter(lost).join(able, on=["model", "edit", "block"], how="semi")

    def by_edit(rows: pl.DataFrame) -> dict[str, Number]:
        return {edit: count(rows.filter(edit=edit).height) for edit in edits}

    return {
        "stopped": by_edit(exact.filter(lost)),
        "blocks": by_edit(exact),
        "able": by_edit(both) if (data["kind"] == "mean").any() else {},
        "benchmarks": (data["kind"] == "benchmark").any(),
        "control": control,
        "panels": panels(data.filter(measure="exact_match").select(model=_PANEL)),
    }


def draw_kept(data: pl.DataFrame) -> Figure:
    """Share of the baseline kept, by block; a row of panels per model, one per edit."""
    edits = sorted(data["edit"].unique(), key=edit_order)
    models = data["model"].unique(maintain_order=True).to_list()
    several = len(edits) > 1
    return style.facets(
        data.with_columns(panel=_PANEL if several else "model"),
        _kept_panel,
        "panel",
        labels=(
            "edited block (0 is nearest to the input)" if several else BLOCKS_LABEL,
            "kept of the baseline",
        ),
        order=[f"{m}, {edit}" for m in models for edit in edits] if several else models,
        scale_y=style.percent_axis,
        bounds=(-0.35, 1.35),
        level=0,
        columns=len(edits) if several else None,
    )


def _kept_panel(axes: Axes, rows: pl.DataFrame) -> None:
    """One edit of one model: thin lines for the benchmarks, below lines for the rest."""
    axes.axhline(1, color=colours.MUTED, linestyle=(0, (6, 3)), linewidth=1)
    for _, one in rows.filter(kind="benchmark").sort("measure").group_by("measure"):
        thin: Any = {"color": colours.GREEN, "linewidth": 0.8, "alpha": 0.7}
        axes.plot(one["block"], style.finite(one["kept"]), **thin)
    labels = {"exact_match": "exact match", "teacher_forced_accuracy": _FORCED, MEAN: "benchmarks"}
    labelled = rows.filter(pl.col("kind") != "benchmark").with_columns(
        line=pl.col("measure").replace(labels)
    )
    looks = {_FORCED: 1, "exact match": 0, "benchmarks": 2}
    style.lines(axes, labelled, line="line", y="kept", looks=looks)


def blocks(summary: pl.DataFrame) -> Iterator[Plot]:
    """Exact match and accuracies by block, one figure per family (Figs. 3, A18–A20)."""
    memory = [views.memorization(summary, metric) for metric in _MEMORY]
    rows = pl.concat([*memory, views.accuracies(summary)]).filter(UNMODIFIED_OR_ONE_BLOCK)
    for family in summary["family"].unique(maintain_order=True):
        data = rows.filter(family=family).select(*NUMBERS, "chance")
        if not data["block"].count():
            continue
        exact = data.filter(metric="exact_match")
        values = {
            "family": family,
            "lowest": lowest(exact),
            "means": _by_size(exact, summary),
            "chance": data["chance"].count() > 0,
        }
        yield Plot(f"blocks-{slug(family)}", data, draw_blocks, values, "blocks", family)


def _by_size(exact: pl.DataFrame, summary: pl.DataFrame) -> dict[str, Number]:
    """The mean exact match over the bypassed blocks of each model, smallest model first."""
    sizes = summary.select("model", "parameters").unique(maintain_order=True)
    means = (
        later_blocks(exact)
        .group_by("model", maintain_order=True)
        .agg(pl.col("value").mean())
        .join(sizes, on="model", maintain_order="left")
        .sort("parameters", maintain_order=True)
    )
    return {model: share(value) for model, value in means.select("model", "value").iter_rows()}


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
    draw = partial(style.lines, looks=names)
    labels = BLOCKS_LABEL, ""
    return style.facets(panelled, draw, "panel", labels=labels, scale_y=style.whole_percent_axis)


def lengths(summary: pl.DataFrame) -> Iterator[Plot]:
    """Exact match at k tokens and teacher-forced accuracy by block."""
    at_k = views.memorization(summary, "exact_match_at_k")
    whole = pl.col("k") == pl.col("k").max().over("model")
    forced = views.memorization(summary, "teacher_forced_accuracy")
    rows = pl.concat([at_k.filter(pl.col("k").is_in(_LENGTHS) | whole), forced])
    data = views.single_blocks(rows).select(*NUMBERS, "k")
    tokens = data.filter(metric="teacher_forced_accuracy")
    values = {
        "forced": _median(tokens),
        "suffixes": _median(data.filter(whole)),
        "panels": panels(data),
        "accuracy": extent(tokens["value"]),
        "lowest": lowest(data.filter(whole)),
    }
    yield Plot("length", data, draw_lengths, values)


def _median(rows: pl.DataFrame) -> Number:
    """The median of a share over all models and bypassed blocks but 0."""
    return share(later_blocks(rows)["value"].median())  # type: ignore[arg-type]


def draw_lengths(data: pl.DataFrame) -> Figure:
    """Exact match at k and teacher-forced accuracy by block; one panel per model."""
    whole = pl.col("k") == pl.col("k").max().over("model")
    firsts = {k: "first token" if k == 1 else f"first {k} tokens" for k in _LENGTHS}
    labelled = data.with_columns(
        line=pl.when(pl.col("k").is_null())
        .then(pl.lit(_FORCED))
        .when(whole)
        .then(pl.lit("whole suffix"))
        .otherwise(pl.col("k").replace_strict(firsts, default=None, return_dtype=pl.String))
    )
    order = ["whole suffix", _FORCED, *firsts.values()]
    draw = partial(style.lines, line="line", looks=order)
    labels = BLOCKS_LABEL, "share right, memorized samples"
    return style.facets(labelled, draw, labels=labels, scale_y=style.whole_percent_axis)


def perplexity(summary: pl.DataFrame) -> Iterator[Plot]:
    """Metrics that are better when lower, such as word_perplexity, by block (Figs. 5, A21)."""
    lower = views.benchmarks(summary).filter(~pl.col("higher_is_better"), UNMODIFIED_OR_ONE_BLOCK)
    data = lower.select(*NUMBERS)
    named = data.select("task", "metric").unique().sort("task", "metric").rows()
    values = {
        "metrics": ", ".join(f"{metric} on {task}" for task, metric in named),
        "bypassed": extent(by_block(data)["value"], unit=""),
        "baseline": extent(views.baseline(data)["value"], unit=""),
        "bands": data.filter(pl.col("value").is_finite())["low"].count() > 0,
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
    return {
        "median": Number("", factors["factor"].median(), unit="ratio"),  # type: ignore[arg-type]
        "most": Number("", most, unit="ratio"),
        "block": str(block),
        "model": model,
    }


def draw_perplexity(data: pl.DataFrame) -> Figure:
    """Perplexity by block; one panel per task and family, one line per model."""

    def panel(axes: Axes, rows: pl.DataFrame) -> None:
        style.lines(axes, rows)
        family, task, metric = rows.select("family", "task", "metric").row(0)
        axes.set_title(visible(family))
        axes.set_ylabel(visible(f"{task}, {metric}"))

    panelled = data.with_columns(panel=pl.format("{} {}", "task", "family"))
    look: Any = {"scale_y": style.log_axis, "key": "best", "height": 2.4}
    return style.facets(panelled, panel, "panel", labels=(BLOCKS_LABEL, ""), **look)
