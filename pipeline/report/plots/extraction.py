"""How many memorized samples come out within n tries of sampling. Not in the paper.

Source: (n, p)-discoverable extraction, arXiv 2410.19482.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.report import extraction, style
from pipeline.report.numbers import Number
from pipeline.report.plots.plot import NUMBERS, Plot, count, extent, share


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
    values = {
        "once": extent(ends[1]),
        "often": extent(ends[1000]),
        "tries": count(extraction.TRIES),
        **_out(extraction.hidden(summary)),
    }
    yield Plot("extraction", data, draw_extractions, values)


def _out(rows: pl.DataFrame) -> dict[str, Number | None]:
    """The share of hidden samples that come out; over several models its range."""
    if not rows.height:
        return {"hidden": None}
    if rows.height > 1:
        return {"hidden": extent(rows["value"]), "models": count(rows.height), "samples": None}
    ends, [n] = rows.select("value", "low", "high").row(0), rows["n"]
    return {"hidden": share(*ends), "samples": count(n)}


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
