"""How samples differ: completion entropy and token accuracy, memorized or not, block by block.

Source: Figure 2, Eq. 4 (token accuracy) and Eq. 5 (completion entropy) of arXiv 2501.05078.
"""

import math
from collections.abc import Iterator
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.spread import NOTHING, QUANTILES
from pipeline.report import style
from pipeline.report.plots.plot import (
    BLOCKS_LABEL,
    NUMBERS,
    Plot,
    by_block,
    extent,
    later_blocks,
    panels,
    unmodified_or_one_block,
)

_INDICES = {"memorized": 0, "exposed": 5, "control": 1, "famous": 2}
"""Split -> index of its colour and marker."""

_BANDS = ("memorized", "control")
"""The splits whose spread is drawn; more bands would hide each other."""

_AT_BASELINE = -1
"""The place of the baseline on the axis of blocks."""


def spreads(summary: pl.DataFrame, spread: pl.DataFrame = NOTHING) -> Iterator[Plot]:
    """Completion entropy (Fig. 2) and token accuracy (Eq. 4) by block and split."""
    for metric in ("completion_entropy", "token_accuracy"):
        rows = summary.filter(unmodified_or_one_block(), metric=metric).select(*NUMBERS, "split")
        data = rows.join(
            spread,
            on=["model", "intervention", "split", "metric"],
            how="left",
            maintain_order="left",
        )
        if data["block"].count():
            known = _levels(data) if metric == "completion_entropy" else _shares(data)
            values = {"panels": panels(data), **known}
            yield Plot(metric.replace("_", "-"), data, draw_spreads, values)


def _levels(data: pl.DataFrame) -> dict[str, Any]:
    """The mean entropy of each split at baseline, and of memorized samples under a bypass."""
    unmodified = views.baseline(data)
    levels = {
        split: extent(rows["value"], unit="nats")
        for split in _BANDS
        if (rows := unmodified.filter(split=split)).height
    }
    bypassed = later_blocks(data.filter(split="memorized"))["value"]
    return {"levels": levels, "bypassed": extent(bypassed, unit="nats")}


def _shares(data: pl.DataFrame) -> dict[str, Any]:
    """The token accuracy of the median sample of each split under a bypass."""
    rows = later_blocks(data)
    medians = {
        split: extent(median)
        for split in _BANDS
        if (median := rows.filter(split=split)["q50"]).count()
    }
    return {"medians": medians, "bypassed": extent(rows.filter(split="memorized")["value"])}


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
