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
from pipeline.analysis.text import percent_interval, plural, slug, visible
from pipeline.analysis.training_time import necessary, over_steps, recitable
from pipeline.report import colours, style
from pipeline.report.plots.plot import Plot

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
        yield Plot(
            name=f"training-{slug(run)}",
            section="When memory comes in training",
            title=run,
            finding=f"{run}: {_recited(data)}; {_needed(data)}.",
            reading=(
                "Lines: the unmodified model. Colour: the change when one block is bypassed; red "
                "is a loss. Dots: a significant loss."
            ),
            caption=(
                "Exact match and token accuracy are those of memorized samples. Steps are evenly "
                "spaced, not to scale. Recitable: the interval of exact match lies above that of "
                "the first step. Necessary: at this step and all later ones, bypassing the block "
                f"lowers the score significantly. {_by_step(data)} Significant: at the 5% level, "
                "adjusted for the blocks of a step (Holm). Bands: 95% intervals."
            ),
            alt=(
                f"{run}: scores of the unmodified model at {plural(_steps(data).len(), 'step')}, "
                "and a map of the change by step and bypassed block for each score. "
                f"{_by_step(data)}"
            ),
            data=data,
            draw=draw,
        )


def _steps(data: pl.DataFrame) -> pl.Series:
    return data["step"].unique().sort()


def _recited(data: pl.DataFrame) -> str:
    """When the memorized samples become recitable, with exact match there and at the first step."""
    steps, found = _steps(data), recitable(data)
    whole = views.baseline(data.filter(metric="exact_match"))

    def told(step: int) -> str:
        return percent_interval(*whole.filter(step=step).select("value", "low", "high").row(0))

    if found is None:
        return (
            f"memorized samples do not become recitable between step {steps[0]:,} "
            f"({told(steps[0])}) and step {steps[-1]:,} ({told(steps[-1])})"
        )
    return (
        f"memorized samples become recitable at step {found:,}, where exact match is "
        f"{told(found)}; at step {steps[0]:,} it is {told(steps[0])}"
    )


def _needed(data: pl.DataFrame) -> str:
    """How many blocks are necessary at the last step, and since when the first ones are."""
    found, blocks = necessary(data, "exact_match"), data["block"].drop_nulls().n_unique()
    if not found.height:
        return f"none of {plural(blocks, 'block')} becomes necessary"
    first = found.filter(pl.col("step") == pl.col("step").min())
    which = f"the first, {_list(first['block'])}," if first.height < found.height else "all"
    return (
        f"{found.height} of {plural(blocks, 'block')} become necessary for that, {which} from step "
        f"{first['step'][0]:,} on"
    )


def _by_step(data: pl.DataFrame) -> str:
    """Sentences that name the step from which on each block is necessary, for each score."""
    told = []
    for metric, title in _TITLES.items():
        found = necessary(data, metric)
        others = ~pl.col("block").is_in(found["block"].to_list())
        never = data.filter(others)["block"].unique().sort()
        parts = [
            f"from step {step[0]:,}, {_list(own['block'])}"
            for step, own in found.sort("step", "block").group_by("step", maintain_order=True)
        ]
        parts += [f"never, {_list(never)}"] if never.len() else []
        told.append(f"Necessary for {title}: {'; '.join(parts)}.")
    return " ".join(told)


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
        _line(grid[0], views.baseline(rows), index, named[task, metric])
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


def _line(axes: Axes, rows: pl.DataFrame, index: int, label: str) -> None:
    """One score of the unmodified model by step, with its interval as a band."""
    style.curve(axes, rows, index, visible(label), x="x", hollow=None)


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
