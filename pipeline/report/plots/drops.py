"""The loss of each kind of task: reasoning against language understanding.

Source: Figures 6 and A22 of arXiv 2501.05078; the drop of the lead over chance is ours.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis import kept, views
from pipeline.analysis.text import slug
from pipeline.report import colours, style
from pipeline.report.plots.plot import BLOCKS_LABEL, Plot, extent, later_blocks, share

_LABELS = {"reasoning": "reasoning", "language": "language understanding"}
_SCALES = {"raw": "of the score", "corrected": "of its lead over chance"}


def drops(summary: pl.DataFrame, shares: pl.DataFrame) -> Iterator[Plot]:
    """The relative drop of each kind of task by block, one figure per family (Figs. 6, A22)."""
    lost = kept.drops(summary, shares)
    for family in dict.fromkeys(family for _, family in views.models(summary)):
        data = lost.filter(family=family)
        if not data.height:
            continue
        corrected = data.filter(scale="corrected")
        by_ability = [(name, _LABELS[name]) for name in views.ABILITIES]
        tasks = {
            label: sorted(set(", ".join(listed).split(", ")))
            for ability, label in by_ability
            if (listed := data.filter(ability=ability)["tasks"].to_list())
        }
        changes = {
            label: extent(-rows["drop"], unit="change")
            for ability, label in by_ability
            if (rows := corrected.filter(ability=ability)).height
        }
        means = later_blocks(corrected).group_by("ability").agg(pl.mean("drop"))
        values = {
            "family": family,
            "costs": {
                _LABELS[ability]: share(value)
                for ability, value in means.sort("drop", "ability").iter_rows()
            },
            "changes": changes,
            "kinds": tasks,
        }
        yield Plot(f"drops-{slug(family)}", data, draw_drops, values, "drops", family)


def draw_drops(data: pl.DataFrame) -> Figure:
    """The relative drop by block of one family; one row per model, raw beside corrected."""
    panel = pl.format("{}, {}", "model", pl.col("scale").replace(_SCALES))
    ranks = pl.col("scale").replace_strict(kept.SCALES, range(len(kept.SCALES)))
    models = data["model"].unique(maintain_order=True).to_list()
    model_ranks = pl.col("model").replace_strict(models, range(len(models)))
    labelled = data.with_columns(panel=panel, line=pl.col("ability").replace(_LABELS)).sort(
        model_ranks, ranks, maintain_order=True
    )
    order = [_LABELS[ability] for ability in views.ABILITIES]
    figure, panels = style.lines(
        labelled, panel="panel", line="line", y="drop", order=order, columns=2
    )
    grid = list(panels.values())
    for axes in grid:
        axes.axhline(0, color=colours.MUTED, linewidth=0.8)
        style.percent_axis(axes.yaxis)
    style.bound(grid[0], -0.35, 1.35)
    figure.supxlabel(BLOCKS_LABEL)
    figure.supylabel("lost of the baseline")
    style.legend(figure)
    return figure
