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
from pipeline.report.plots.plot import ASIDE, BLOCKS_LABEL, HOLLOW, Plot, later_blocks

_LABELS = {"reasoning": "reasoning", "language": "language understanding"}
_SCALES = {"raw": "of the score", "corrected": "of its lead over chance"}


def drops(summary: pl.DataFrame, shares: pl.DataFrame) -> Iterator[Plot]:
    """The relative drop of each kind of task by block, one figure per family (Figs. 6, A22)."""
    lost = kept.drops(summary, shares)
    for family in dict.fromkeys(family for _, family in views.models(summary)):
        data = lost.filter(family=family)
        if not data.height:
            continue
        kinds = "; ".join(
            f"{_LABELS[ability]}: {', '.join(sorted(set(', '.join(tasks).split(', '))))}"
            for ability in views.ABILITIES
            if (tasks := data.filter(ability=ability)["tasks"].to_list())
        )
        corrected = data.filter(scale="corrected")
        spans = " and ".join(
            f"{_change(rows['drop'])} in {_LABELS[ability]}"
            for ability in views.ABILITIES
            if (rows := corrected.filter(ability=ability)).height
        )
        yield Plot(
            name=f"drops-{slug(family)}",
            section="Reasoning and language understanding",
            title=family,
            finding=_averages(family, corrected),
            reading=(
                "Left: loss of the score, as in the paper; right: of the lead over chance, where "
                "the two kinds can be compared."
            ),
            caption=(
                f"{family}: block by block, the lead over chance changes by {spans}; where it "
                "grows, the bypass raises the score. At chance, a two-way task has lost half its "
                "score. "
                f"{_sentence(kinds)} A task that the baseline does not solve above chance is "
                "missing on the right. "
                f"Bands: 95% intervals. {HOLLOW} Compare Figures 6 and A22 of the paper."
            ),
            alt=(
                f"{family}: share lost by bypassed block, one line per kind of task. "
                f"{_averages(family, corrected)}"
            ),
            data=data,
            draw=draw_drops,
        )


def _averages(family: str, corrected: pl.DataFrame) -> str:
    """The mean loss of each kind of task over models and blocks, the smaller first."""
    means = later_blocks(corrected).group_by("ability").agg(pl.mean("drop")).sort("drop", "ability")
    losses = [(value, _LABELS[ability]) for ability, value in means.iter_rows()]
    if not losses:
        return f"{family}: no task is solved above chance."
    words = " less than ".join(label for _, label in losses)
    shares = " against ".join(f"{100 * value:.0f}%" for value, _ in losses)
    return (
        f"{family}: one bypass costs {words}, a mean of {shares} of the lead over chance {ASIDE}."
    )


def _change(drops: pl.Series) -> str:
    """The range of changes, ``−94% to +7%``, from that of losses."""
    ends = (-max(drops), -min(drops))
    told = (f"{round(100 * end):+d}%".replace("+0%", "0%").replace("-", "−") for end in ends)
    return " to ".join(dict.fromkeys(told))


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


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
