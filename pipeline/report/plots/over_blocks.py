"""Figures over the blocks: the share kept, across scales, by length, entropy, perplexity.

Source: Figures 2, 3, 5 and A18–A21 (A21: perplexity) of arXiv 2501.05078; the figures of the share
kept and of lengths are ours.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.text import plural, slug, visible
from pipeline.report import colours, style
from pipeline.report.plots.plot import (
    BLOCKS_LABEL,
    HOLLOW,
    NUMBERS,
    Plot,
    by_block,
    extent,
    lowest,
    number_range,
    unmodified_or_one_block,
)

_LENGTHS = (1, 4, 16)
"""Tokens at which exact match is drawn, beside the whole suffix."""

_ONE_BY_ONE = (
    "Single tokens need one right token at a time, so they show how much of the fall of exact "
    "match is due to suffix length."
)


def kept(summary: pl.DataFrame) -> Iterator[Plot]:
    """The share of the baseline that one bypass leaves: the figure of the main finding."""
    data = views.kept(summary)
    exact = data.filter(measure="exact_match")
    benchmarks = data.filter(kind="benchmark")
    reading = _ONE_BY_ONE
    if benchmarks.height:
        reading = (
            "For a benchmark, 0% is chance. Where exact match falls and the benchmarks stay, "
            "memorization needs that block's attention more than the benchmarks do. "
            f"{_ONE_BY_ONE} Thin lines: each benchmark."
        )
    others = views.controls(summary)
    if others.filter(measure=views.CONTROLS).height:
        reading += (
            f" Grey: the range of exact match under other edits of the same block "
            f"({_edits(summary)}). A curve inside that range only shows that disturbing the block "
            "costs memory."
        )
    spans = [f"Exact match on memorized samples keeps {extent(exact['kept'])}"]
    if benchmarks.height:
        spans.append(f"the benchmarks {extent(benchmarks['kept'])}")
    yield Plot(
        name="kept",
        section="What one bypass leaves",
        title="",
        caption=(
            f"{', '.join(spans)}, when the attention of one block is bypassed. 100% is the "
            f"unmodified model; 0% is what it reaches on control samples. {reading} Bands: 95% "
            f"intervals of the difference to the baseline on the same samples. {HOLLOW}"
        ),
        alt=(
            f"{plural(exact['model'].n_unique(), 'panel')}, one per model: share of the baseline "
            f"kept by bypassed block. {', '.join(spans)}."
        ),
        data=pl.concat([data, others]),
        draw=draw_kept,
    )


def _edits(summary: pl.DataFrame) -> str:
    """The control edits of single blocks, by name."""
    return ", ".join(sorted(summary.filter(views.CONTROL)["edit"].unique()))


def draw_kept(data: pl.DataFrame) -> Figure:
    """Share of the baseline kept, by block; one panel per model."""
    names = data["model"].unique(maintain_order=True).to_list()
    figure, grid = style.panels(len(names))
    for axes, name in zip(grid, names, strict=True):
        rows = data.filter(model=name)
        axes.axhline(1, color=colours.MUTED, linestyle=(0, (6, 3)), linewidth=1)
        axes.axhline(0, color=colours.MUTED, linewidth=0.8)
        controls = rows.filter(measure=views.CONTROLS)
        if controls.height:
            axes.fill_between(
                controls["block"],
                style.finite(controls["low"]),
                style.finite(controls["high"]),
                color=colours.GREY,
                alpha=0.4,
                linewidth=1.5,  # with a single edit the range is a line
                zorder=0,
                label="exact match, other edits",
            )
        benchmarks = rows.filter(kind="benchmark")
        for task in views.tasks(benchmarks.rename({"measure": "task"})):
            one = benchmarks.filter(measure=task)
            axes.plot(
                one["block"],
                style.finite(one["kept"]),
                color=colours.GREEN,
                linewidth=0.8,
                alpha=0.7,
            )
        for index, measure, label in (
            (1, "teacher_forced_accuracy", "single tokens, teacher-forced"),
            (0, "exact_match", "exact match, memorized samples"),
        ):
            if (one := rows.filter(measure=measure)).height:
                style.curve(axes, one, index, label, value="kept")
        if (mean := rows.filter(measure=views.MEAN)).height:
            style.curve(axes, mean, 2, views.MEAN, value="kept")
        axes.set_title(visible(name))
        style.blocks_axis(axes)
        style.percent_axis(axes.yaxis)
    style.bound(grid[0], -0.35, 1.35)
    figure.supxlabel(BLOCKS_LABEL)
    figure.supylabel("kept of the baseline")
    style.legend(figure, columns=3 if len(names) > 1 else 1)  # one panel is narrow
    return figure


def blocks(summary: pl.DataFrame) -> Iterator[Plot]:
    """Exact match and accuracies by block, one figure per family (Figs. 3, A18–A20)."""
    memorized = views.memorization(summary, "exact_match")
    rows = pl.concat([memorized, views.accuracies(summary)])
    for family in dict.fromkeys(family for _, family in views.models(summary)):
        data = rows.filter(
            unmodified_or_one_block(),
            family=family,
        ).select(*NUMBERS, "chance")
        yield Plot(
            name=f"blocks-{slug(family)}",
            section="Block by block, across scales",
            title=family,
            caption=(
                f"{family}: {lowest(data.filter(metric='exact_match'))} One line a model. "
                "Dashed in the same colour: the unmodified "
                f"model; dotted: chance; bands: 95% intervals. {HOLLOW} Compare Figures 3 and "
                "A18–A20 of the paper."
            ),
            alt=(
                f"{family}: exact match and benchmark accuracies by bypassed block. "
                + lowest(data.filter(metric="exact_match"))
            ),
            data=data,
            draw=draw_blocks,
        )


def draw_blocks(data: pl.DataFrame) -> Figure:
    """Exact match and accuracies of one family by block; a panel per measure, a line per model."""
    memorized = data["task"][0]
    measures = [memorized, *(task for task in views.tasks(data) if task != memorized)]
    names = data["model"].unique(maintain_order=True).to_list()
    figure, grid = style.panels(len(measures))
    for axes, task in zip(grid, measures, strict=True):
        rows = data.filter(task=task)
        for index, name in enumerate(names):
            one = rows.filter(model=name)
            if not one.height:
                continue
            whole = views.baseline(one)["value"][0]
            style.curve(axes, by_block(one), index, visible(name), baseline=whole)
        for chance in rows["chance"].drop_nulls().unique():
            axes.axhline(chance, color=colours.INK, linestyle=":", linewidth=1)
        axes.set_title(
            "exact match, memorized" if task == memorized else f"{visible(task)}, accuracy"
        )
        style.blocks_axis(axes)
        style.percent_axis(axes.yaxis, whole=True)
    figure.supxlabel(BLOCKS_LABEL)
    style.legend(figure, columns=4)
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
    yield Plot(
        name="length",
        section="How much of the drop is due to suffix length",
        title="",
        caption=(
            f"Single tokens stay right in {extent(tokens['value'])} of cases with one block "
            "bypassed. Lines: the share of memorized samples whose first k tokens are all right, "
            "and the share of single tokens predicted right after the true ones "
            "(teacher-forced). The further the lines lie apart, the more of the drop is due to "
            f"suffix length, which no benchmark tests. Bands: 95% intervals. {HOLLOW}"
        ),
        alt=(
            f"{plural(data['model'].n_unique(), 'panel')}, one per model: exact match at growing "
            f"lengths by bypassed block. Teacher-forced accuracy spans {extent(tokens['value'])}; "
            + lowest(data.filter(metric="exact_match_at_k"))
        ),
        data=data,
        draw=draw_lengths,
    )


def draw_lengths(data: pl.DataFrame) -> Figure:
    """Exact match at k and teacher-forced accuracy by block; one panel per model."""
    names = data["model"].unique(maintain_order=True).to_list()
    figure, grid = style.panels(len(names))
    for axes, name in zip(grid, names, strict=True):
        rows = data.filter(model=name)
        tokens = rows.filter(metric="teacher_forced_accuracy")
        style.curve(axes, tokens, 1, "single tokens, teacher-forced")
        lengths = sorted(rows["k"].drop_nulls().unique())
        for k in lengths:
            label = "whole suffix" if k == lengths[-1] else _first(k)
            index = 0 if k == lengths[-1] else 2 + _LENGTHS.index(k)
            style.curve(axes, rows.filter(k=k), index, label)
        axes.set_title(visible(name))
        style.blocks_axis(axes)
        style.percent_axis(axes.yaxis, whole=True)
    figure.supxlabel(BLOCKS_LABEL)
    figure.supylabel("share right, memorized samples")
    style.legend(figure)
    return figure


def entropy(summary: pl.DataFrame) -> Iterator[Plot]:
    """Completion entropy by block and split (Fig. 2)."""
    rows = summary.filter(metric="completion_entropy")
    data = rows.filter(unmodified_or_one_block()).select(*NUMBERS, "split")
    whole = views.baseline(data)
    levels = " and ".join(
        f"{number_range(whole.filter(split=split)['value'])} nats on {split} samples"
        for split in ("memorized", "control")
        if whole.filter(split=split).height
    )
    yield Plot(
        name="entropy",
        section="Uncertainty about the suffix",
        title="",
        caption=(
            f"Unmodified, the models have {levels}. Completion entropy is the uncertainty about "
            "the next token, summed over the suffix, given the true suffix. Lower means more "
            "confident. Dashed in the same colour: the unmodified model. Bands: 95% intervals. "
            f"{HOLLOW} Compare Figure 2 of the paper."
        ),
        alt=(
            f"{plural(data['model'].n_unique(), 'panel')}, one per model: completion entropy by "
            f"bypassed block, one line per split. Unmodified, the models have {levels}."
        ),
        data=data,
        draw=draw_entropy,
    )


def draw_entropy(data: pl.DataFrame) -> Figure:
    """Completion entropy by block; one panel per model, one line per split."""
    names = data["model"].unique(maintain_order=True).to_list()
    figure, grid = style.panels(len(names), share_y=False)
    indices = {"memorized": 0, "exposed": 5, "control": 1, "famous": 2}
    for axes, name in zip(grid, names, strict=True):
        for split, index in indices.items():
            rows = data.filter(model=name, split=split)
            if not rows.height:
                continue
            whole = views.baseline(rows)["value"][0]
            style.curve(axes, by_block(rows), index, split, baseline=whole)
        axes.set_ylim(bottom=0)
        axes.set_title(visible(name))
        style.blocks_axis(axes)
    figure.supxlabel(BLOCKS_LABEL)
    figure.supylabel("completion entropy, nats")
    style.legend(figure)
    return figure


def perplexity(summary: pl.DataFrame) -> Iterator[Plot]:
    """Metrics that are better when lower, such as word_perplexity, by block (Figs. 5, A21)."""
    rows = views.losses(summary)
    data = rows.filter(unmodified_or_one_block()).select(*NUMBERS)
    metrics = ", ".join(f"{task}, {metric}" for task, metric in _task_metrics(data))
    if not data.height:
        return
    known = data.filter(pl.col("value").is_finite())
    bands = "Bands: 95% intervals." if known["low"].count() else "No intervals are known."
    yield Plot(
        name="perplexity",
        section="Perplexity",
        title="",
        caption=(
            f"With one block bypassed, {metrics} is {number_range(by_block(data)['value'])}; "
            f"unmodified it is {number_range(views.baseline(data)['value'])}. The scale is "
            "logarithmic; lower is better. Dashed "
            f"in the same colour: the unmodified model. {bands} {HOLLOW} Compare Figures 5 and "
            "A21 of the paper."
        ),
        alt=(
            f"{metrics} by bypassed block, one line per model. Unmodified "
            f"{number_range(views.baseline(data)['value'])}, bypassed "
            f"{number_range(by_block(data)['value'])}."
        ),
        data=data,
        draw=draw_perplexity,
    )


def draw_perplexity(data: pl.DataFrame) -> Figure:
    """Perplexity by block; one panel per task and family, one line per model."""
    cells = data.select("task", "family").unique(maintain_order=True).rows()
    figure, grid = style.panels(len(cells), height=2.4)
    for axes, (task, family) in zip(grid, cells, strict=True):
        rows = data.filter(task=task, family=family)
        for index, name in enumerate(rows["model"].unique(maintain_order=True)):
            one = rows.filter(model=name)
            whole = views.baseline(one)["value"][0]
            style.curve(axes, by_block(one), index, visible(name), baseline=whole)
        axes.set_title(visible(family))
        axes.set_ylabel(visible(f"{task}, {rows['metric'][0]}"))
        axes.legend(loc="best")
        style.blocks_axis(axes)
        style.log_axis(axes.yaxis)
    figure.supxlabel(BLOCKS_LABEL)
    return figure


def _task_metrics(rows: pl.DataFrame) -> list[tuple[str, str]]:
    return rows.select("task", "metric").unique().sort("task", "metric").rows()


def _first(k: int) -> str:
    return "first token" if k == 1 else f"first {k} tokens"
