"""The marks of every figure are told by the rows that they were drawn from."""

from xml.etree import ElementTree

import matplotlib as mpl
import polars as pl
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG

from pipeline.analysis.text import percent_interval
from pipeline.report import figures, style, tooltips
from pipeline.report.plots.plot import Plot


@pytest.fixture(scope="module")
def plots(summary: pl.DataFrame) -> dict[str, Plot]:
    return {plot.name: plot for plot in figures.plots(summary)}


@pytest.fixture
def told(plots: dict[str, Plot], request: pytest.FixtureRequest, tmp_path: object) -> list[str]:
    """Every line of every tooltip of a figure."""
    return _told(plots[request.param], f"{tmp_path}/figure.svg")


def _told(plot: Plot, path: str) -> list[str]:
    drawn = figures.figure(plot)
    with mpl.rc_context(style.RC):
        FigureCanvasSVG(drawn).print_svg(path)
    root = ElementTree.parse(path).getroot()
    return [line for _, words in tooltips.describe(root, plot.data) for line in words.split("\n")]


@pytest.mark.parametrize(
    "told",
    ["blocks-pythia", "length", "entropy", "perplexity", "quartiles-gpt-neo"],
    indirect=True,
)
def test_every_row_is_told_and_nothing_else(
    told: list[str], plots: dict[str, Plot], request: pytest.FixtureRequest
) -> None:
    data = plots[request.node.callspec.params["told"]].data
    drawn = data if "quartile-1" in data["intervention"] else data.drop_nulls("block")
    expected = {tooltips._words(row) for row in drawn.iter_rows(named=True)}
    left_out = {line for line in told if line.startswith("and ")}
    assert set(told) - left_out <= expected
    # where more marks lie on one another than a tooltip names, the rest is counted
    assert len(expected - set(told)) <= 4 * len(left_out)


def test_scatters_tell_both_axes(plots: dict[str, Plot], tmp_path: object) -> None:
    plot = plots["scatter-tiny-neo-8"]
    told = _told(plot, f"{tmp_path}/figure.svg")
    row = plot.data.filter(block=5, metric="acc").row(0, named=True)
    words = tooltips._words(row)
    assert words.startswith(f"block 5, tiny-neo-8, {row['task']}, acc: ")
    assert words.endswith(f"; exact match {100 * row['memorized']:.1f}%")
    assert words in told


def test_what_is_kept_tells_the_means_too(plots: dict[str, Plot], tmp_path: object) -> None:
    plot = plots["kept"]
    told = _told(plot, f"{tmp_path}/figure.svg")
    row = plot.data.filter(kind="mean", model="tiny-neo-12", block=6).row(0, named=True)
    level = percent_interval(row["kept"], row["low"], row["high"])
    assert f"block 6, tiny-neo-12, benchmarks, mean lead over chance: {level}" in told


def test_a_panel_that_no_row_names_is_left_alone() -> None:
    rows = [{"model": "a", "task": "t", "value": 1.0}, {"model": "a, b", "task": "u", "value": 2.0}]
    assert tooltips._of_panel("", rows) == rows
    assert tooltips._of_panel("t, accuracy", rows) == rows[:1]
    assert tooltips._of_panel("a, b", rows) == rows[1:]
    assert tooltips._of_panel("other", rows) == []


def test_scales() -> None:
    linear = tooltips._scale([("0%", 100.0), ("50%", 50.0), ("100%", 0.0)])
    assert linear
    assert linear(0.25) == pytest.approx(75)
    rising = tooltips._scale([("10", 100.0), ("", 70.0), ("1,000", 0.0)])
    assert rising
    assert rising(100) == pytest.approx(50)
    assert rising(0) is None
    names = tooltips._scale([("0", 0.0), ("1", 10.0), ("2", 20.0), ("4", 30.0), ("64", 40.0)])
    assert names
    assert names(4) == 30
    assert names(3) is None
    assert tooltips._scale([("3", 1.0)]) is None


def test_other_drawings_are_left_alone() -> None:
    root = ElementTree.fromstring('<svg xmlns="http://www.w3.org/2000/svg"><g id="axes_1"/></svg>')
    for data in (pl.DataFrame({"x": [1]}), pl.DataFrame({"model": ["m"], "value": [1.0]})):
        assert list(tooltips.describe(root, data)) == []
