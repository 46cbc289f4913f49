"""Every figure of a study: the registry, and the files.

`plots` cuts the summary into one tidy frame per figure, in the order of the page. A figure is drawn
from its frame alone, and that frame is saved beside it as CSV, so the CSV holds exactly the numbers
that are drawn.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
import seaborn
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text

from pipeline.analysis import kept, link, spread, views
from pipeline.analysis.results import read_numbers
from pipeline.analysis.theory import Theory, read_theory
from pipeline.localization.schemas import LOCALIZATION
from pipeline.report import style
from pipeline.report.columns import MEANINGS
from pipeline.report.numbers import unclaimed
from pipeline.report.plots import attention_only
from pipeline.report.plots import divergence as theorems
from pipeline.report.plots.copies import counterfactual, doses
from pipeline.report.plots.drops import drops
from pipeline.report.plots.extraction import extractions
from pipeline.report.plots.gaps import gaps
from pipeline.report.plots.localization import found_first
from pipeline.report.plots.over_blocks import blocks, lengths, perplexity
from pipeline.report.plots.over_blocks import kept as what_is_kept
from pipeline.report.plots.plot import FIGURES_INDEX, Plot
from pipeline.report.plots.quartiles import quartiles
from pipeline.report.plots.scatter import scatters
from pipeline.report.plots.training_time import trajectories
from pipeline.report.plots.uncertainty import spreads
from pipeline.report.texts import are_given
from pipeline.workflow import tables
from pipeline.workflow.files import atomic, write_text

OWN_COLUMN = "see mine/figures.py"
COLUMNS = "columns.csv"
"""Beside the figures: what the columns of their data mean."""


def own(summary: pl.DataFrame) -> Iterable[Plot]:
    """The figures of the project's own ``mine/figures.py``; none where there is no such file."""
    try:
        from mine.figures import plots
    except ModuleNotFoundError as error:
        if error.name not in ("mine", "mine.figures"):
            raise
        return ()
    drawn: Iterable[Plot] = plots(summary)
    return drawn


def write_figures(data: Path, folder: Path, *, steps: Sequence[tuple[str, str, int]] = ()) -> None:
    """Draw every figure of a study, from its folder ``data/STUDY``.

    Those of the theory and of localization are drawn where there are tables of these; `steps` are
    model, run and step of each model that is a checkpoint of a training run. `folder` becomes a
    folder with each figure as SVG, PNG and PDF, its data as CSV, and ``figures.json`` and
    ``columns.csv``. A folder of that name is replaced.

    Raises:
        InputError: the summary, or a table of samples, is missing or does not fit its schema.
    """
    frame, evidence = read_numbers(data)
    theory = read_theory(data, views.models(frame))
    registry = plots(frame, evidence, theory, spread.quantiles(frame, data))
    path = data / "localization.parquet"
    if path.exists():
        registry[1:1] = found_first(tables.read(path, LOCALIZATION))
    registry[1:1] = trajectories(frame, steps)
    given = are_given(data, [family for _, family in views.models(frame)])
    with atomic(folder, directory=True) as temporary:
        index = []
        for plot in registry:
            drawn = figure(plot)
            for text in drawn.findobj(Text) if given else ():
                if "memorized" in (words := text.get_text()):
                    text.set_text(unclaimed(words))
            marks = style.save(drawn, temporary, plot.name)
            plot.data.write_csv(temporary / f"{plot.name}.csv")
            index.append({**plot.words(), "marks": marks})
        used = sorted({column for plot in registry for column in plot.data.columns})
        meanings = [MEANINGS.get(column, OWN_COLUMN) for column in used]
        pl.DataFrame({"column": used, "meaning": meanings}).write_csv(temporary / COLUMNS)
        # the marks are thousands of numbers, too many for one number per line
        told = json.dumps(index, ensure_ascii=False, default=vars)
        write_text(temporary / FIGURES_INDEX, told + "\n")


def plots(
    summary: pl.DataFrame,
    evidence: pl.DataFrame,
    theory: Theory | None = None,
    over_samples: pl.DataFrame = spread.NOTHING,
) -> list[Plot]:
    """All figures with data, in the order of the page; the seeds of a recipe are one line.

    Those of the theory are left out without it. `over_samples` is as `spread.quantiles` gives it.
    """
    pooled = views.over_seeds(summary)
    shares = kept.kept(evidence)
    made = [
        *counterfactual(pooled),
        *what_is_kept(shares, control="control" in summary["split"]),
        *scatters(pooled, evidence),
        *blocks(pooled),
        *drops(pooled, shares),
        *gaps(evidence, pooled),
        *lengths(pooled),
        *extractions(pooled),
        *spreads(pooled, over_samples),
        *perplexity(pooled),
        *quartiles(pooled),
        *doses(pooled),
        *own(pooled),
    ]
    if theory is not None:
        made += theorems.triangles(theory)
        made += theorems.bounded(theory)
        made += theorems.damage(link.pairs(summary, evidence, theory.quantities))
        made += attention_only.experiments(theory)
    seen, unique = Counter[str](), []
    for plot in (each for each in made if each.data.height):
        name = plot.name
        seen[name] += 1
        if seen[name] > 1:  # two model names may differ in punctuation alone
            plot = replace(plot, name=f"{name}-again-{seen[name]}", kind=plot.kind or name)
        unique.append(plot)
    return unique


def figure(plot: Plot) -> Figure:
    """Draw a plot in the one style."""
    with rc_context(), seaborn.axes_style("ticks", {"axes.grid": True}), rc_context(style.RC):
        drawn = plot.draw(plot.data.with_row_index(style.ROW))
        seaborn.despine(drawn)
        return drawn
