"""The loss of each kind of task: reasoning against language understanding.

Source: Figures 6 and A22 of arXiv 2501.05078; the drop of the lead over chance is ours.
"""

from collections.abc import Iterator
from functools import partial

import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis import kept
from pipeline.analysis.text import slug
from pipeline.report import style
from pipeline.report.plots.plot import BLOCKS_LABEL, Plot, extent, later_blocks, share

_LABELS = {"reasoning": "reasoning", "language": "language understanding"}
_SCALES = {"raw": "of the score", "corrected": "of its lead over chance"}


def drops(summary: pl.DataFrame, shares: pl.DataFrame) -> Iterator[Plot]:
    """The relative drop of each kind of task by block, one figure per family (Figs. 6, A22)."""
    lost = kept.drops(summary, shares)
    for family in summary["family"].unique(maintain_order=True):
        data = lost.filter(family=family)
        corrected = data.filter(scale="corrected")
        tasks = {
            label: sorted(set(", ".join(listed).split(", ")))
            for ability, label in _LABELS.items()
            if (listed := data.filter(ability=ability)["tasks"].to_list())
        }
        changes = {
            label: extent(-rows["drop"], unit="change")
            for ability, label in _LABELS.items()
            if (rows := corrected.filter(ability=ability)).height
        }
        means = dict(later_blocks(corrected).group_by("ability").agg(pl.mean("drop")).iter_rows())
        values = {
            "family": family,
            "costs": {
                label: share(means[ability])
                for ability, label in _LABELS.items()
                if ability in means
            },
            "changes": changes,
            "kinds": tasks,
        }
        yield Plot(f"drops-{slug(family)}", data, draw_drops, values, "drops", family)


def draw_drops(data: pl.DataFrame) -> Figure:
    """The relative drop by block of one family; one row per model, raw beside corrected."""
    labelled = data.with_columns(
        panel=pl.format("{}, {}", "model", pl.col("scale").replace(_SCALES)),
        line=pl.col("ability").replace(_LABELS),
    )
    models = data["model"].unique(maintain_order=True)
    return style.facets(
        labelled,
        partial(style.lines, line="line", y="drop", looks=list(_LABELS.values())),
        "panel",
        labels=(BLOCKS_LABEL, "lost of the baseline"),
        order=[f"{model}, {_SCALES[scale]}" for model in models for scale in kept.SCALES],
        scale_y=style.percent_axis,
        bounds=(-0.35, 1.35),
        level=0,
        columns=2,
    )
