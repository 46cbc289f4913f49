"""The marks of every figure lie where they are drawn, and tell the rows that they stand for."""

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest

from pipeline.analysis.text import percent_interval
from pipeline.report import figures, marks, style
from pipeline.report.plots.plot import Plot

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def plots(summary: pl.DataFrame, evidence_of_paper: pl.DataFrame) -> dict[str, Plot]:
    return {plot.name: plot for plot in figures.plots(summary, evidence_of_paper)}


def _saved(plot: Plot, folder: Path) -> list[style.Mark]:
    return style.save(figures.figure(plot), folder, plot.name)


@pytest.mark.parametrize(
    "name", ["blocks-pythia", "length", "completion-entropy", "perplexity", "quartiles-gpt-neo"]
)
def test_every_row_that_is_drawn_has_a_mark_and_no_other(
    plots: dict[str, Plot], name: str, tmp_path: Path
) -> None:
    data = plots[name].data.with_row_index("row")
    drawn = data if {"quartile", "q50"} & set(data.columns) else data.drop_nulls("block")
    found = _saved(plots[name], tmp_path)
    assert sorted(row for row, *_ in found) == drawn["row"].to_list()


@pytest.mark.parametrize("name", ["kept", "scatter-tiny-neo-8", "completion-entropy", "copies"])
def test_marks_lie_where_the_file_has_them(
    plots: dict[str, Plot], name: str, tmp_path: Path
) -> None:
    found = _saved(plots[name], tmp_path)
    root = ElementTree.parse(tmp_path / f"{name}.svg").getroot()
    drawn: dict[int, tuple[float, float]] = {}
    for group in root.iter(f"{SVG}g"):
        rows = re.fullmatch(r"rows((?:-\d+)+)", group.get("id", ""))
        if rows:
            used = [
                (float(use.get("x", 0)), float(use.get("y", 0))) for use in group.iter(f"{SVG}use")
            ]
            drawn |= dict(zip(map(int, rows[1][1:].split("-")), used, strict=True))
    assert len(found) > 7
    for row, x, y in found:
        assert math.dist((x, y), drawn[int(row)]) < 0.2


def test_bars_have_a_size(plots: dict[str, Plot], tmp_path: Path) -> None:
    plot = plots["quartiles-gpt-neo"]
    for row, _, y, *size in _saved(plot, tmp_path):
        share = plot.data["value"][int(row)]
        if plot.data["higher_is_better"][int(row)] is False:
            assert not size
            continue
        width, height = size
        assert width > 4
        assert 0 <= y <= 72 * 12
        assert (height > 3) == (share > 0.05)


def test_scatters_tell_both_axes(plots: dict[str, Plot]) -> None:
    plot = plots["scatter-tiny-neo-8"]
    row = plot.data.with_row_index("row").filter(block=5, metric="acc").row(0, named=True)
    [mark] = marks.told([[row["row"], 3.0, 4.0]], plot.data)
    assert (mark.block, mark.model, mark.measure) == (5, "tiny-neo-8", f"{row['task']}, acc")
    assert mark.level.endswith(f"; exact match {100 * row['memorized']:.1f}%")
    assert mark.place == [3.0, 4.0]


def test_what_is_kept_tells_the_means_too(plots: dict[str, Plot]) -> None:
    data = plots["kept"].data.with_row_index("row")
    row = data.filter(kind="mean", model="tiny-neo-12", block=6).row(0, named=True)
    [mark] = marks.told([[row["row"], 0.0, 0.0]], data)
    assert mark.measure == "benchmarks, mean lead over chance"
    assert mark.level == percent_interval(row["kept"], row["low"], row["high"])


def test_the_script_gets_names_once() -> None:
    told = [
        marks.Told([1.25, 2.0], block, "", "</script>&", "m", "1%", edit="identity")
        for block in (3, 4)
    ]
    text = str(marks.as_json(told))
    assert not re.search("[<>&]", text)
    assert json.loads(text) == {
        "models": ["</script>&"],
        "edits": ["identity"],
        "measures": ["m"],
        "marks": [[0, 0, 0, 3, "1%", 1.25, 2], [0, 0, 0, 4, "1%", 1.25, 2]],
    }


def test_several_numbers_of_one_row_are_not_told() -> None:
    assert marks.told([[0, 1.0, 2.0]], pl.DataFrame({"model": ["m"], "change": [1.0]})) == []
