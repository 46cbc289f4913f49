"""Memory and ability over the steps of a training run. Not in the paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib as mpl
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pipeline.analysis import views
from pipeline.analysis.text import slug, visible
from pipeline.analysis.training_time import necessary, over_steps, recitable
from pipeline.report import colours, style
from pipeline.report.numbers import Number
from pipeline.report.plots.plot import Plot, count, share

_TITLES = {"exact_match": "exact match", "token_accuracy": "token accuracy"}
_LABELS = 6
"""Largest number of steps that a panel names."""


def trajectories(summary: pl.DataFrame, steps: Sequence[tuple[str, str, int]]) -> Iterator[Plot]:
    """One figure for each training run: the baseline by step, and the loss by step and block.

    Args:
        summary: as `aggregate.aggregate` gives it.
        steps: as for `training_time.over_steps`.
    """
    rows = over_steps(summary, steps)
    for run in dict.fromkeys(run for _, run, _ in steps):
        data = rows.filter(run=run)
        if not data.height:
            continue
        values = {
            "run": run,
            "steps": count(_steps(data).len()),
            **_recited(data),
            **_needed(data),
            "scores": {title: _by_step(data, metric) for metric, title in _TITLES.items()},
        }
        yield Plot(f"training-{slug(run)}", data, draw, values, "training", run)


def _steps(data: pl.DataFrame) -> pl.Series:
    return data["step"].unique().sort()


def _recited(data: pl.DataFrame) -> dict[str, Number | None]:
    """When the memorized samples become recitable, with exact match there and at both ends."""
    steps, step = _steps(data), recitable(data)
    unmodified = views.baseline(data.filter(metric="exact_match"))

    def exact(step: int) -> Number:
        return share(*unmodified.filter(step=step).select("value", "low", "high").row(0))

    return {
        "first": count(steps[0]),
        "last": count(steps[-1]),
        "before": exact(steps[0]),
        "after": exact(steps[-1]),
        "recitable": None if step is None else count(step),
        "then": None if step is None else exact(step),
    }


def _needed(data: pl.DataFrame) -> dict[str, Any]:
    """How many blocks are necessary at the last step, and since when the first ones are."""
    rows, blocks = necessary(data, "exact_match"), data["block"].drop_nulls().n_unique()
    first = rows.filter(pl.col("step") == pl.col("step").min())
    return {
        "blocks": count(blocks),
        "needed": count(rows.height) if rows.height else None,
        "earliest": _list(first["block"]) if first.height < rows.height else "",
        "since": count(first["step"][0]) if rows.height else None,
    }


def _by_step(data: pl.DataFrame, metric: str) -> dict[str, Any]:
    """The step from which on each block is necessary for a score, and the blocks that never are."""
    rows = necessary(data, metric).sort("step", "block")
    never = data.filter(~pl.col("block").is_in(rows["block"].to_list()))["block"].unique().sort()
    by_step = rows.group_by("step", maintain_order=True).agg("block").iter_rows()
    return {
        "parts": [{"step": count(n), "blocks": _list(pl.Series(own))} for n, own in by_step],
        "never": _list(never) if never.len() else "",
    }


def _list(blocks: pl.Series) -> str:
    """``block 3``, ``blocks 3, 4``."""
    return f"{'block' if blocks.len() == 1 else 'blocks'} {', '.join(map(str, blocks))}"


def draw(data: pl.DataFrame) -> Figure:
    """The baselines by step, and a map of the change by step and block for each score."""
    steps = _steps(data).to_list()
    placed = data.with_columns(
        x=pl.col("step").replace_strict(steps, range(len(steps)), return_dtype=pl.Float64)
    )
    scores = data.select("task", "metric").unique(maintain_order=True).rows()
    named = {(task, metric): _TITLES.get(metric, task) for task, metric in scores}
    figure, grid = style.panels(1 + len(scores), height=2.3, share_y=False)
    widest = placed["difference"].abs().max()
    norm = Normalize(-(widest or 1), widest or 1)  # type: ignore[operator,arg-type]
    for index, ((task, metric), axes) in enumerate(zip(scores, grid[1:], strict=True)):
        rows = placed.filter(task=task, metric=metric)
        label = visible(named[task, metric])
        style.curve(grid[0], views.baseline(rows), index, label, x="x", hollow=None)
        _map(axes, rows.filter(pl.col("block").is_not_null()), norm)
        axes.set_title(f"{visible(named[task, metric])}: change")
        axes.set_ylabel("bypassed block")
    grid[0].set_title("unmodified model")
    style.percent_axis(grid[0].yaxis, whole=True)
    for axes in grid:
        every = -(-len(steps) // _LABELS)
        axes.set_xticks(range(0, len(steps), every), [f"{step:,}" for step in steps[::every]])
    label = "change to the step's baseline, percentage points"
    bar = style.scale(figure, grid[1:], norm, mpl.colormaps["RdBu"], label)
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
    figure.supxlabel("training step (evenly spaced)")
    style.legend(figure)
    return figure


def _map(axes: Axes, rows: pl.DataFrame, norm: Normalize) -> None:
    """The change of one score by step and block, a cell each; a dot where it is a loss."""
    known = rows.filter(pl.col("difference").is_not_null())
    x, block = known["x"].to_numpy(), known["block"].cast(pl.Float64).to_numpy()
    shades = mpl.colormaps["RdBu"](norm(known["difference"].to_numpy()))
    cells = axes.bar(x, 1.0, 1.0, block - 0.5, color=shades, linewidth=0)
    style.tell(cells.patches, known)
    falls = known["falls"].to_numpy()
    look: dict[str, Any] = {
        "markersize": 3.5,
        "color": colours.INK,
        "markeredgecolor": colours.PAPER,
    }
    axes.plot(x[falls], block[falls], "o", markeredgewidth=0.5, **look)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
    axes.margins(0)
    axes.grid(visible=False)
