"""How samples differ: completion entropy and token accuracy, memorized or not, block by block.

Source: Figure 2, Eq. 4 (token accuracy) and Eq. 5 (completion entropy) of arXiv 2501.05078.
"""

import math
from collections.abc import Iterator

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.spread import METRICS, QUANTILES
from pipeline.report import style
from pipeline.report.numbers import SHARE
from pipeline.report.plots.plot import (
    BLOCKS_LABEL,
    NUMBERS,
    UNMODIFIED_OR_ONE_BLOCK,
    Plot,
    by_block,
    extent,
    later_blocks,
    panels,
)

_INDICES = {"memorized": 0, "exposed": 5, "control": 1, "famous": 2}
"""Split -> index of its colour and marker."""

_BANDS = ("memorized", "control")
"""The splits whose spread is drawn; more bands would hide each other."""

_AT_BASELINE = -1
"""The place of the baseline on the axis of blocks."""


def spreads(summary: pl.DataFrame, spread: pl.DataFrame) -> Iterator[Plot]:
    """Completion entropy (Fig. 2) and token accuracy (Eq. 4) by block and split."""
    for metric in METRICS:
        rows = summary.filter(UNMODIFIED_OR_ONE_BLOCK, metric=metric).select(*NUMBERS, "split")
        key = ("model", "intervention", "split", "metric")
        data = rows.join(spread, on=key, how="left", maintain_order="left")
        if not data["block"].count():
            continue
        bypassed = later_blocks(data)
        if metric == "completion_entropy":  # the means at baseline
            name, unit, rows = "levels", "nats", views.baseline(data)
        else:  # the median sample under a bypass
            name, unit, rows = "medians", SHARE, bypassed.with_columns(value="q50")
        values = {
            "panels": panels(data),
            name: {
                split: extent(own, unit)
                for split in _BANDS
                if (own := rows.filter(split=split)["value"]).count()
            },
            "bypassed": extent(bypassed.filter(split="memorized")["value"], unit),
        }
        yield Plot(metric.replace("_", "-"), data, draw_spreads, values)


def draw_spreads(data: pl.DataFrame) -> Figure:
    """A metric by block; one panel per model, a line and its quantiles per split."""
    share = data["metric"][0] == "token_accuracy"
    return style.facets(
        data,
        _panel,
        labels=(BLOCKS_LABEL, "token accuracy" if share else "completion entropy, nats"),
        scale_y=style.whole_percent_axis if share else lambda axis: axis.axes.set_ylim(bottom=0),
        share_y=share,
    )


def _panel(axes: Axes, rows: pl.DataFrame) -> None:
    """One model: the baseline at the left, the blocks as curves over bands."""
    banded = pl.col("split").is_in(_BANDS)
    for split in _BANDS:
        blocks = by_block(rows.filter(split=split))
        low, *_, high = (style.finite(blocks[name]) for name in QUANTILES)
        colour, *_ = style.category(_INDICES[split])
        axes.fill_between(blocks["block"], low, high, color=colour, alpha=0.12, linewidth=0)
    middle = by_block(rows).with_columns(
        low=pl.when(banded).then("q25"), high=pl.when(banded).then("q75")
    )
    style.lines(axes, middle, line="split", looks=_INDICES)
    for split, index in _INDICES.items():
        whole = views.baseline(rows.filter(split=split))
        colour, marker, _ = style.category(index)
        at = [_AT_BASELINE + 0.12 * (index - 2)] * whole.height
        if split in _BANDS:
            for low_name, high_name, width in (("q05", "q95", 1.0), ("q25", "q75", 3.5)):
                least, most = style.finite(whole[low_name]), style.finite(whole[high_name])
                axes.vlines(at, least, most, color=colour, linewidth=width, alpha=0.6)
        points = axes.plot(at, style.finite(whole["value"]), color=colour, marker=marker, ls="")
        style.tell(points, whole)
    last = max(0, *rows["block"].drop_nulls())
    ticks = range(0, last + 1, math.ceil((last + 1) / 8))
    axes.set_xticks([_AT_BASELINE, *ticks], ["–", *map(str, ticks)])
