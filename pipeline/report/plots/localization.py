"""How often each scorer ranks a place that learned first, by kind of place. Not in the paper."""

from collections.abc import Iterator

import polars as pl
from matplotlib import colormaps
from matplotlib.figure import Figure

from pipeline.analysis.localization import ALL, means, merits
from pipeline.localization.schema import ORACLE, RANDOM
from pipeline.report import style
from pipeline.report.localization import SECTION, called
from pipeline.report.plots.plot import Plot, count, share


def found_first(found: pl.DataFrame) -> Iterator[Plot]:
    """The hits of each scorer, a column for each kind of place; of the table `LOCALIZATION`."""
    data = means(merits(found), ["hit"], ["chance"]).rename({"place": "rank"})
    data = data.with_columns(called=pl.col("scorer").map_elements(called, pl.String))
    known = data.filter(~pl.col("scorer").is_in([ORACLE, RANDOM]), truth=ALL)
    best = known.sort("hit", descending=True, maintain_order=True)
    top = best.row(0, named=True)
    equal = best.filter(hit=top["hit"]).height
    values = {
        "equal": count(equal) if equal > 1 else None,
        "best": share(top["hit"], top["hit_low"], top["hit_high"]),
        "scorer": top["called"],
        "chance": share(top["chance"]),
    }
    yield Plot("localization", data, draw, values, section=SECTION)


def draw(data: pl.DataFrame) -> Figure:
    """A map of scorers by truths; the number is the hit in percent, grey within chance."""
    of_all = data.filter(truth=ALL).sort("hit", "scorer", descending=True)
    scorers = of_all["scorer"].to_list()
    truths = [ALL, *(t for t in data["truth"].unique(maintain_order=True) if t != ALL)]
    placed = data.with_columns(
        x=pl.col("truth").replace_strict({truth: i for i, truth in enumerate(truths)}),
        y=pl.col("scorer").replace_strict({name: -i for i, name in enumerate(scorers)}),
    )
    figure, [axes] = style.panels(1, height=1.2 + 0.21 * len(scorers), columns=1)
    shades = colormaps["viridis"](style.finite(placed["hit"]))
    style.cells(axes, placed, "x", "y", shades)
    for cell, shade in zip(placed.iter_rows(named=True), shades, strict=True):
        weight = "bold" if cell["hit_low"] > cell["chance"] else "normal"
        style.percent_on(axes, cell, cell["hit"], shade, fontsize=7, fontweight=weight)
    axes.set_xticks(range(len(truths)), truths, rotation=40, ha="right")
    axes.set_yticks([-i for i in range(len(scorers))], list(of_all["called"]))
    return figure
