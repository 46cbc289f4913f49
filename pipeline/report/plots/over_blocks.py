"""Figures over the blocks: the share kept, across scales, by length, perplexity.

Source: Figures 3, 5 and A18–A21 (A21: perplexity) and Eq. 4 of arXiv 2501.05078; the figures of the
share kept and of lengths are ours.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.kept import CONTROLS, MEAN, controls
from pipeline.analysis.text import plural, slug, visible
from pipeline.report import colours, style
from pipeline.report.plots.plot import (
    ASIDE,
    BLOCKS_LABEL,
    HOLLOW,
    NUMBERS,
    Plot,
    by_block,
    extent,
    later_blocks,
    lowest,
    number_range,
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

_KEPT = ("model", "family", "intervention", "block", "measure", "kind", "kept", "low", "high")

_HALF = 0.5
"""Less than this share of the baseline left: most is lost."""

_ONE_BY_ONE = (
    "Exact match and teacher-forced accuracy are those of memorized samples. Teacher-forced "
    "accuracy needs one right token at a time, so it shows how much of the fall of exact match is "
    "due to suffix length."
)


def kept(shares: pl.DataFrame) -> Iterator[Plot]:
    """The share of the baseline that one bypass leaves: the figure of the main finding.

    Args:
        shares: as `analysis.kept.kept` gives them.
    """
    data = shares.filter(group="block").sort("block", maintain_order=True).select(_KEPT)
    exact = data.filter(measure="exact_match")
    benchmarks = data.filter(kind="benchmark")
    reading = "100% is the baseline, 0% what it reaches on control samples."
    caption = _ONE_BY_ONE
    if benchmarks.height:
        reading = (
            "100%: the baseline; 0%: chance, or the baseline's score on control samples. Where "
            "exact match lies below the benchmarks, memory needs the block's attention more than "
            "ability does."
        )
        caption = (
            f"{_ONE_BY_ONE} Benchmarks: the mean of their leads over chance; thin lines: each. "
            "Below 0% is under chance, above 100% better than the baseline."
        )
    others = controls(shares).select(_KEPT)
    if others.filter(measure=CONTROLS).height:
        caption += (
            f" Grey: the range of exact match under other edits of the same block "
            f"({_edits(shares)}). A curve inside that range only shows that disturbing the block "
            "costs memory."
        )
    yield Plot(
        name="kept",
        section="What one bypass leaves",
        title="",
        finding=_stopped(data),
        reading=reading,
        caption=(f"{caption} Bands: 95% intervals, from the same samples. {HOLLOW}"),
        alt=(
            f"{plural(exact['model'].n_unique(), 'panel')}, one per model: share of the baseline "
            f"kept by bypassed block. {_stopped(data)}"
        ),
        data=pl.concat([data, others]),
        draw=draw_kept,
    )


def _stopped(data: pl.DataFrame) -> str:
    """At how many blocks a bypass stops most recitals, and at how many of these ability stays."""
    exact = later_blocks(data.filter(measure="exact_match"))
    stopped = exact.filter(pl.col("kept") < _HALF)
    able = later_blocks(data.filter(kind="mean")).filter(pl.col("kept") > _HALF)
    both = stopped.join(able, on=["model", "block"], how="semi").height
    told = (
        f"Bypassing one block ends most exact matches at {stopped.height} of {exact.height} blocks"
    )
    if stopped.height and (data["kind"] == "mean").any():
        told += f"; at {both} of these the benchmarks keep most of their lead over chance"
    return f"{told} {ASIDE}."


def _edits(shares: pl.DataFrame) -> str:
    """The control edits of single blocks, by name."""
    return ", ".join(sorted(shares.filter(group="control")["edit"].unique()))


def draw_kept(data: pl.DataFrame) -> Figure:
    """Share of the baseline kept, by block; one panel per model."""
    names = data["model"].unique(maintain_order=True).to_list()
    figure, grid = style.panels(len(names))
    for axes, name in zip(grid, names, strict=True):
        rows = data.filter(model=name)
        axes.axhline(1, color=colours.MUTED, linestyle=(0, (6, 3)), linewidth=1)
        axes.axhline(0, color=colours.MUTED, linewidth=0.8)
        others = rows.filter(measure=CONTROLS)
        if others.height:
            axes.fill_between(
                others["block"],
                style.finite(others["low"]),
                style.finite(others["high"]),
                color=colours.GREY,
                alpha=0.4,
                linewidth=1.5,  # with a single edit the range is a line
                zorder=0,
                label="other edits",
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
            (1, "teacher_forced_accuracy", _FORCED),
            (0, "exact_match", "exact match"),
        ):
            if (one := rows.filter(measure=measure)).height:
                style.curve(axes, one, index, label, value="kept")
        if (mean := rows.filter(measure=MEAN)).height:
            style.curve(axes, mean, 2, "benchmarks", value="kept")
        axes.set_title(visible(name))
        style.blocks_axis(axes)
        style.percent_axis(axes.yaxis)
    style.bound(grid[0], -0.35, 1.35)
    figure.supxlabel(BLOCKS_LABEL)
    figure.supylabel("kept of the baseline")
    style.legend(figure)
    return figure


def blocks(summary: pl.DataFrame) -> Iterator[Plot]:
    """Exact match and accuracies by block, one figure per family (Figs. 3, A18–A20)."""
    memory = [views.memorization(summary, metric) for metric in _MEMORY]
    rows = pl.concat([*memory, views.accuracies(summary)])
    for family in dict.fromkeys(family for _, family in views.models(summary)):
        data = rows.filter(
            unmodified_or_one_block(),
            family=family,
        ).select(*NUMBERS, "chance")
        yield Plot(
            name=f"blocks-{slug(family)}",
            section="Block by block, across scales",
            title=family,
            finding=_by_size(family, data.filter(metric="exact_match"), summary),
            reading=(
                "Dashed: the baseline; dotted: chance. The smaller the fall at a block, the less "
                "the model depends on its attention."
            ),
            caption=(
                f"{family}: {lowest(data.filter(metric='exact_match'))} Token accuracy is the "
                "share of suffix tokens that the model's own greedy continuation has in the same "
                f"place (Eq. 4 of the paper). Bands: 95% intervals. {HOLLOW} Compare Figures 3 and "
                "A18–A20 of the paper."
            ),
            alt=(
                f"{family}: exact match, token accuracy and benchmark accuracies by bypassed "
                f"block. {lowest(data.filter(metric='exact_match'))}"
            ),
            data=data,
            draw=draw_blocks,
        )


def _by_size(family: str, exact: pl.DataFrame, summary: pl.DataFrame) -> str:
    """The mean exact match over the bypassed blocks of each model, smallest model first."""
    sizes = summary.select("model", "parameters").unique(maintain_order=True)
    means = (
        later_blocks(exact)
        .group_by("model", maintain_order=True)
        .agg(pl.col("value").mean())
        .join(sizes, on="model", maintain_order="left")
        .sort("parameters", maintain_order=True)
    )
    if not means.height:
        return f"{family}: no block but the first was bypassed alone."
    listed = ", ".join(
        f"{100 * value:.0f}% in {model}"
        for model, value in means.select("model", "value").iter_rows()
    )
    ordered = means.select(pl.col("parameters", "value").diff().drop_nulls() > 0)
    rising = means.height > 1 and all(ordered[name].all() for name in ordered.columns)
    more = "the larger model recites more; " if rising else ""
    return f"{family}: {more}with one block bypassed, exact match averages {listed} {ASIDE}."


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
    yield Plot(
        name="length",
        section="How much of the drop is due to suffix length",
        title="",
        finding=(
            f"One bypass leaves a median teacher-forced accuracy of {_median(tokens)} and "
            f"{_median(data.filter(whole))} of whole suffixes {ASIDE}."
        ),
        reading=(
            "The wider the gap between the two lines, the more of the drop is due to suffix length."
        ),
        caption=(
            "Lines: the share of memorized samples whose first k tokens are all right, and the "
            "share of tokens predicted right after the true ones (teacher-forced accuracy). Bands: "
            f"95% intervals. {HOLLOW}"
        ),
        alt=(
            f"{plural(data['model'].n_unique(), 'panel')}, one per model: exact match at growing "
            f"lengths by bypassed block. Teacher-forced accuracy spans {extent(tokens['value'])}; "
            + lowest(data.filter(metric="exact_match_at_k"))
        ),
        data=data,
        draw=draw_lengths,
    )


def _median(rows: pl.DataFrame) -> str:
    """The median of a share over all models and bypassed blocks but 0."""
    value = later_blocks(rows)["value"].median()
    return "an unknown share" if value is None else f"{100 * float(value):.0f}%"  # type: ignore[arg-type]


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
    metrics = ", ".join(f"{metric} on {task}" for task, metric in _task_metrics(data))
    if not data.height:
        return
    known = data.filter(pl.col("value").is_finite())
    bands = "Bands: 95% intervals." if known["low"].count() else "No intervals are known."
    yield Plot(
        name="perplexity",
        section="Perplexity",
        title="",
        finding=_raised(data, metrics),
        reading="Logarithmic; lower is better. Dashed in the same colour: the baseline.",
        caption=(
            f"With one block bypassed, {metrics} is {number_range(by_block(data)['value'])}; at "
            f"baseline it is {number_range(views.baseline(data)['value'])}. "
            f"{bands} {HOLLOW} Compare Figures 5 and A21 of the paper."
        ),
        alt=(
            f"{metrics} by bypassed block, one line per model. At baseline "
            f"{number_range(views.baseline(data)['value'])}, bypassed "
            f"{number_range(by_block(data)['value'])}."
        ),
        data=data,
        draw=draw_perplexity,
    )


def _raised(data: pl.DataFrame, metrics: str) -> str:
    """By what factors one bypass multiplies the metrics."""
    whole = views.baseline(data).select("model", "task", baseline="value")
    factors = (
        later_blocks(data)
        .join(whole, on=["model", "task"], maintain_order="left")
        .with_columns(factor=pl.col("value") / pl.col("baseline"))
        .filter(pl.col("factor").is_finite())
        .sort("factor", descending=True, maintain_order=True)
    )
    if not factors.height:
        return f"Under no bypass is {metrics} finite {ASIDE}."
    model, block, most = factors.select("model", "block", "factor").row(0)
    [median] = factors.select(pl.median("factor"))["factor"]
    return (
        f"One bypass multiplies {metrics} by a median of {median:.2f}, and by at most {most:.2f}, "
        f"at block {block} of {model} {ASIDE}."
    )


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


def _task_metrics(rows: pl.DataFrame) -> list[tuple[str, str]]:
    return rows.select("task", "metric").unique().sort("task", "metric").rows()


def _first(k: int) -> str:
    return "first token" if k == 1 else f"first {k} tokens"
