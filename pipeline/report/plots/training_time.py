"""Memory and ability over the steps of a training run. Not in the paper."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import matplotlib as mpl
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pipeline.analysis import views
from pipeline.analysis.text import slug
from pipeline.analysis.training_time import necessary, over_steps, recitable
from pipeline.report import style
from pipeline.report.colours import INK, PAPER
from pipeline.report.numbers import Number
from pipeline.report.plots.plot import Plot, by_block, count, shares

_TITLES = {"exact_match": "exact match", "token_accuracy": "token accuracy"}
_LABELS = 6
"""Largest number of steps that a panel names."""


def trajectories(summary: pl.DataFrame, steps: Sequence[tuple[str, str, int]]) -> Iterator[Plot]:
    """One figure for each training run: the baseline by step, and the loss by step and block."""
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
        return shares(unmodified.filter(step=step))[0]

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
    every = -(-len(steps) // _LABELS)
    named = data.with_columns(
        x=pl.col("step").replace_strict(steps, range(len(steps)), return_dtype=pl.Float64),
        line=pl.col("metric").replace_strict(_TITLES, default=pl.col("task")),
    )
    whole = views.baseline(named).with_columns(panel=pl.lit("unmodified model"))
    changes = by_block(named).with_columns(panel=pl.format("{}: change", "line"))
    widest = data["difference"].abs().max() or 1
    norm, colours = Normalize(-widest, widest), mpl.colormaps["RdBu"]  # type: ignore[operator,arg-type]
    titles = named["line"].unique(maintain_order=True)
    figure = style.facets(
        pl.concat([whole, changes]),
        partial(_panel, shade=lambda values: colours(norm(values))),
        "panel",
        labels=("training step (evenly spaced)", ""),
        order=["unmodified model", *(f"{title}: change" for title in titles)],
        ticks={at: f"{step:,}" for at, step in list(enumerate(steps))[::every]},
        height=2.3,
        share_y=False,
    )
    label = "change to the step's baseline, percentage points"
    bar = style.scale(figure, figure.axes[1:], norm, colours, label)
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
    return figure


def _panel(axes: Axes, rows: pl.DataFrame, shade: Callable[[Any], Any]) -> None:
    """The baselines by step; or one score by step and block, with a dot where it is a loss."""
    if not rows["block"].count():
        style.lines(axes, rows, line="line", x="x", hollow=None)
        style.whole_percent_axis(axes.yaxis)
        return
    known = rows.drop_nulls("difference")
    style.cells(axes, known, "x", "block", shade(known["difference"].to_numpy()), linewidth=0)
    falls = known.filter("falls")
    look: Any = {"markersize": 3.5, "markeredgewidth": 0.5, "markeredgecolor": PAPER}
    axes.plot(falls["x"], falls["block"], "o", color=INK, **look)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
    axes.set_ylabel("bypassed block")
