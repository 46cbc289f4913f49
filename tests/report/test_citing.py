"""BibTeX of a study's figures."""

import polars as pl

from pipeline.report.appendices import PageFigure
from pipeline.report.citing import bibtex


def test_an_entry_for_the_paper_the_software_and_each_figure() -> None:
    figure = PageFigure("kept", "100% & {more}", "a_b", *[""] * 5, pl.DataFrame())
    text = bibtex("my_study", [("2a", figure)], {"commit": "0123abc"})
    assert [line for line in text.split("\n") if line.startswith("@")] == [
        "@article{paper,",
        "@software{software,",
        "@misc{my-study-kept,",
    ]
    assert "author = {Menta, Tarun Ram and Agrawal, Susmit and Agarwal, Chirag}," in text
    assert r"title = {Study my\_study, figure 2a: 100\% \& \{more\}, a\_b}," in text
    assert text.count("commit 0123abc") == 2
    assert "commit" not in bibtex("s", [], None)  # without git
    bare = text.replace(r"\{", "").replace(r"\}", "")
    assert bare.count("{") == bare.count("}")
