"""How samples differ: completion entropy and token accuracy, memorized or not, block by block.

Source: Figure 2, Eq. 4 (token accuracy) and Eq. 5 (completion entropy) of arXiv 2501.05078.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.spread import NOTHING, QUANTILES
from pipeline.analysis.text import plural, visible
from pipeline.report import style
from pipeline.report.plots.plot import (
    ASIDE,
    BLOCKS_LABEL,
    HOLLOW,
    NUMBERS,
    Plot,
    extent,
    later_blocks,
    number_range,
    unmodified_or_one_block,
)

SECTION = "Spread over the samples"

_INDICES = {"memorized": 0, "exposed": 5, "control": 1, "famous": 2}
"""Split -> index of its colour and marker."""

_BANDS = ("memorized", "control")
"""The splits whose spread is drawn; more bands would hide each other."""

_AT_BASELINE = -1
"""The place of the baseline on the axis of blocks."""


def spreads(summary: pl.DataFrame, spread: pl.DataFrame = NOTHING) -> Iterator[Plot]:
    """Completion entropy (Fig. 2) and token accuracy (Eq. 4) by block and split.

    Args:
        summary: seeds pooled.
        spread: as `spread.quantiles` gives it; without rows no spread is drawn.
    """
    for metric, title, meaning in (
        (
            "completion_entropy",
            "completion entropy",
            "Completion entropy (Eq. 5) is the uncertainty about the next token, summed over the "
            "suffix, given the true suffix. Lower means more confident.",
        ),
        (
            "token_accuracy",
            "token accuracy",
            "Token accuracy (Eq. 4) is the share of suffix tokens that the model's own greedy "
            "continuation has in the same place.",
        ),
    ):
        rows = summary.filter(unmodified_or_one_block(), metric=metric).select(*NUMBERS, "split")
        data = rows.join(
            spread,
            on=["model", "intervention", "split", "metric"],
            how="left",
            maintain_order="left",
        )
        if not data.height:
            continue
        finding = _levels(data) if metric == "completion_entropy" else _shares(data)
        yield Plot(
            name=title.replace(" ", "-"),
            section=SECTION,
            title=title,
            finding=finding,
            reading=(
                "Lines: means, the baseline at the left (–). Dark: the middle half of the samples; "
                "light: all but the lowest and the highest 5%."
            ),
            caption=f"{meaning} Exposed samples: only the mean. {HOLLOW} Compare Figure 2 of the "
            "paper.",
            alt=(
                f"{plural(data['model'].n_unique(), 'panel')}, one per model: {title} by bypassed "
                f"block, one line and its spread per split. {finding}"
            ),
            data=data,
            draw=draw_spreads,
        )


def _levels(data: pl.DataFrame) -> str:
    """The mean entropy of each split at baseline, and of memorized samples under a bypass."""
    whole = views.baseline(data)
    levels = " and ".join(
        f"{number_range(whole.filter(split=split)['value'].round(1))} nats on {split} samples"
        for split in _BANDS
        if whole.filter(split=split).height
    )
    one = later_blocks(data.filter(split="memorized"))["value"]
    return (
        f"At baseline the suffix has {levels}; one bypass raises memorized samples to "
        f"{number_range(one.round(1))} {ASIDE}."
    )


def _shares(data: pl.DataFrame) -> str:
    """The token accuracy of the median sample of each split under a bypass."""
    rows = later_blocks(data)
    medians = " and ".join(
        f"{extent(rows.filter(split=split)['q50'])} of the tokens of the median {split} sample"
        for split in _BANDS
        if rows.filter(split=split)["q50"].count()
    )
    if not medians:
        medians = f"{extent(rows.filter(split='memorized')['value'])} of memorized tokens"
    return f"One bypass leaves {medians} right {ASIDE}."


def draw_spreads(data: pl.DataFrame) -> Figure:
    """A metric by block; one panel per model, a line and its quantiles per split."""
    names = data["model"].unique(maintain_order=True).to_list()
    share = data["metric"][0] == "token_accuracy"
    figure, grid = style.panels(len(names), share_y=share)
    for axes, name in zip(grid, names, strict=True):
        last = 0
        for split, index in _INDICES.items():
            rows = data.filter(model=name, split=split)
            if rows.height:
                _split(axes, rows, split, index)
                last = max(last, *rows["block"].drop_nulls(), 0)
        ticks = range(0, last + 1, math.ceil((last + 1) / 8))
        axes.set_xticks([_AT_BASELINE, *ticks], ["–", *map(str, ticks)])
        axes.set_title(visible(name))
        if share:
            style.percent_axis(axes.yaxis, whole=True)
        else:
            axes.set_ylim(bottom=0)
    figure.supxlabel(BLOCKS_LABEL)
    figure.supylabel("token accuracy" if share else "completion entropy, nats")
    style.legend(figure)
    return figure


def _split(axes: Axes, rows: pl.DataFrame, split: str, index: int) -> None:
    """One split of a model: the baseline at the left, the blocks as a curve over bands."""
    numbered = rows.with_columns(block=pl.col("block").cast(pl.Int32).fill_null(_AT_BASELINE)).sort(
        "block"
    )
    blocks = numbered.filter(pl.col("block") > _AT_BASELINE)
    colour, marker, _ = style.category(index)
    if split in _BANDS:
        low, *_, high = (style.finite(blocks[name]) for name in QUANTILES)
        axes.fill_between(blocks["block"], low, high, color=colour, alpha=0.12, linewidth=0)
    middle = ("q25", "q75") if split in _BANDS else (None, None)
    ends = [pl.lit(None) if name is None else pl.col(name) for name in middle]
    style.curve(axes, blocks.with_columns(low=ends[0], high=ends[1]), index, split)
    whole = numbered.filter(block=_AT_BASELINE)
    at = [_AT_BASELINE + 0.12 * (index - 2)] * whole.height
    if split in _BANDS:
        for low_name, high_name, width in (("q05", "q95", 1.0), ("q25", "q75", 3.5)):
            least, most = style.finite(whole[low_name]), style.finite(whole[high_name])
            axes.vlines(at, least, most, color=colour, linewidth=width, alpha=0.6)
    points = axes.plot(at, style.finite(whole["value"]), color=colour, marker=marker, linestyle="")
    style.tell(points, whole)
