"""How many memorized samples come out within n tries of sampling. Not in the paper.

Source: (n, p)-discoverable extraction, arXiv 2410.19482.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.report import extraction, style
from pipeline.report.plots.plot import NUMBERS, Plot, extent


def extractions(summary: pl.DataFrame) -> Iterator[Plot]:
    """The share of memorized samples extracted within n tries, under typical interventions."""
    chosen = extraction.typical(summary)
    order = [(views.models(summary), "model", 0), (chosen.rows(), "label", 2)]
    ranks = [
        pl.col(name).cast(pl.Enum(list(dict.fromkeys(row[at] for row in rows))))
        for rows, name, at in order
    ]
    data = (
        views.memorization(summary, extraction.TOP_40)
        .join(chosen, on=["model", "intervention"])
        .select(*NUMBERS, "k", "label")
        .sort(*ranks, "k")
    )
    if not data.height:
        return
    ends = {n: data.filter(k=n, label=extraction.BASELINE)["value"] for n in (1, 1000)}
    yield Plot(
        name="extraction",
        section="Extraction",
        title="",
        finding=extraction.sentence(summary)
        or "The bypass of a typical late block hides no memorized sample from greedy decoding.",
        reading=(
            "Curves: the share of memorized samples that come out within n tries with a chance of "
            "at least one half."
        ),
        caption=(
            "A try is a continuation "
            "sampled at temperature 1 from the 40 likeliest tokens. The probabilities are exact, "
            "from one teacher-forced pass; nothing is sampled. A typical block leaves the median "
            "exact match of its quarter, the first or the last, block 0 left out; “last quarter”: "
            "all of its blocks at once. Bands: 95% intervals."
        ),
        alt=(
            "Share of memorized samples extracted within n tries, one panel per model, one line "
            f"per intervention. At baseline: {extent(ends[1])} within one try and "
            f"{extent(ends[1000])} within 1,000."
        ),
        data=data,
        draw=draw_extractions,
    )


def draw_extractions(data: pl.DataFrame) -> Figure:
    """Share extracted by tries; one panel per model, one line per intervention."""
    labels = data["label"].cast(pl.String)
    data = data.with_columns(labels, pl.col("model").cast(pl.String))
    order = labels.unique(maintain_order=True).to_list()
    figure, grid = style.lines(data, line="label", x="k", order=order, hollow=None)
    for axes in grid.values():
        style.log_axis(axes.xaxis)
        axes.set_xticks([1, 10, 100, 1000, 10**6], ["1", "10", "100", "1,000", "10⁶"])
        style.percent_axis(axes.yaxis, whole=True)
    figure.supxlabel("tries")
    figure.supylabel("memorized samples extracted")
    style.legend(figure)
    return figure
