"""The pages beside the main one: theory, the numbers behind the figures, how the study was made."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from markupsafe import Markup

from pipeline.report import facts, marks
from pipeline.report.claims import Finding
from pipeline.report.markup import CODE_PATH, inline_svg, template
from pipeline.report.theory_sections import TheorySection

SCRIPTS = (
    "vendor/sortable-tablesort-4.1.7.js",  # github.com/tofsjonas/sortable, public domain
    "page.js",
)


@dataclass(frozen=True)
class PageFigure:
    """A figure as the figures stage left it.

    Args:
        name, section, title, finding, reading, caption, alt: as in `figures.Plot`.
        marks: as in `style.marks`.
        svg: the file's text.
        data: the numbers drawn.
    """

    name: str
    section: str
    title: str
    finding: str
    reading: str
    caption: str
    alt: str
    svg: str
    data: pl.DataFrame
    marks: Sequence[Sequence[float]] = ()


Numbered = Sequence[tuple[str, PageFigure]]
"""Figures with their numbers, such as 1 or 2a; the numbering continues from page to page."""


def shared() -> dict[str, Any]:
    """What every page's template needs: style, script, and how figures and tables are written."""
    script = "\n".join((CODE_PATH / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return {
        "stylesheet": Markup((CODE_PATH / "page.css").read_text(encoding="utf-8")),  # noqa: S704  ours
        "script": Markup(script),  # noqa: S704  ours
        "script_hash": content_hash(script),
        "inline_svg": inline_svg,
        "marks": lambda figure: marks.as_json(marks.told(figure.marks, figure.data)),
        "data_table": facts.data_table,
        "holds": holds,
    }


def holds(figure: PageFigure) -> str:
    """Which models the files of a figure hold: the one shown, or all of its panels."""
    if "model" not in figure.data.columns:
        return "the whole figure"
    names = figure.data["model"].unique(maintain_order=True).to_list()
    return str(names[0]) if len(names) == 1 else f"all {len(names)} models: {', '.join(names)}"


def content_hash(script: str) -> str:
    """The source by which the page's content security policy allows its one script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def render_theory(study: str, theory: Sequence[TheorySection], figures: Numbered) -> str:
    """The theory as HTML: each section with its figures and its judged statements."""
    sections = [(each, [(i, f) for i, f in figures if f.section == each.title]) for each in theory]
    return template("theory.html.jinja").render(
        **shared(), study=study, title="Theory", sections=sections
    )


def render_numbers(
    study: str, evidence: pl.DataFrame, judged: Sequence[Finding], figures: Numbered
) -> str:
    """The long tables as HTML.

    Args:
        study: its name.
        evidence: schema `tables.EVIDENCE`, for what one late block leaves.
        judged: as `claims.findings` gives them, for the intervals behind the verdicts.
        figures: those of all pages, for the numbers behind each.
    """
    return template("numbers.html.jinja").render(
        **shared(),
        study=study,
        title="Numbers",
        retention=facts.retention(evidence),
        intervals=facts.intervals(judged),
        figures=figures,
    )


def render_provenance(
    study: str, provenance: Mapping[str, object], manifests: Sequence[Mapping[str, object]]
) -> str:
    """How the study was made, as HTML.

    Args:
        study: its name.
        provenance: by heading, as `provenance.collect` gives it. ``commands`` (a list of lines) is
            shown as the way to reproduce the study; any other mapping as a table, anything else as
            JSON. Its models and tables are only in ``provenance.json``.
        manifests: of every model's checkpoint.
    """
    git = provenance.get("git")
    return template("provenance.html.jinja").render(
        **shared(),
        study=study,
        title="How it was made",
        provenance=facts.provenance(provenance),
        commands=provenance.get("commands", []),
        citation=provenance.get("citation"),
        runs=facts.runs(provenance.get("runs")),
        took=facts.RUN_HEADING,
        dirty=bool(isinstance(git, Mapping) and git.get("dirty")),
        manifests=[(str(m["name"]), facts.lines(m)) for m in manifests],
    )
