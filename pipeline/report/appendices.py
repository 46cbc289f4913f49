"""The pages beside the main one: theory, the numbers behind the figures, how the study was made."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from markupsafe import Markup

from pipeline.analysis.text import MISSING, number
from pipeline.report import facts, marks
from pipeline.report.claims import Finding
from pipeline.report.markup import template
from pipeline.report.numbers import Number, Numbers, Sentence
from pipeline.report.theory_sections import TheorySection

# key of a stage's sidecar -> heading in the table of resources
_RESOURCES = {
    "wall_seconds": "wall, s",
    "cpu_seconds": "CPU, s",
    "peak_memory_mib": "memory, MiB",
    "device": "device",
    "processor": "processor",
    "python": "Python",
}

# entries of the provenance that the page shows elsewhere, or that are only in the file
_ELSEWHERE = ("study", "commands", "models", "tables", "citation", "runs")


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
    finding: str | Sentence
    reading: str | Sentence
    caption: str | Sentence
    alt: str | Sentence
    svg: str
    data: pl.DataFrame
    marks: Sequence[Sequence[float]] = ()

    def told(self, *, given: bool) -> Markup:
        """Its marks with their tooltips as JSON, which with `given` leave out what samples are."""
        data = self.data.drop(["split"] if given else [], strict=False)
        return marks.as_json(marks.told(self.marks, data))

    @property
    def holds(self) -> str:
        """Which models its files hold: the one shown, or all of its panels."""
        if "model" not in self.data.columns:
            return "the whole figure"
        names = self.data["model"].unique(maintain_order=True).to_list()
        return str(names[0]) if len(names) == 1 else f"all {len(names)} models: {', '.join(names)}"


Numbered = Sequence[tuple[str, PageFigure]]
"""Figures with their numbers, such as 1 or 2a; the numbering continues from page to page."""


def render_theory(
    study: str, theory: Sequence[TheorySection], figures: Numbered, numbers: Numbers | None = None
) -> str:
    """The theory as HTML: each section with its figures and its judged statements."""
    sections = [(part, [(i, f) for i, f in figures if f.section == part.title]) for part in theory]
    page = template("theory.html.jinja", numbers)
    return page.render(study=study, title="Theory", sections=sections)


def render_numbers(
    study: str,
    summary: pl.DataFrame,
    evidence: pl.DataFrame,
    judged: Sequence[Finding],
    figures: Numbered,
    numbers: Numbers | None = None,
) -> str:
    """The long tables as HTML; `figures` are those of all pages.

    The numbers of the tables are recorded; those of the figures are in their CSV files.
    """
    return template("numbers.html.jinja", numbers).render(
        study=study,
        title="Numbers",
        retention=facts.retention(evidence),
        metrics=facts.metrics(summary),
        categories=facts.categories(summary),
        judged=judged,
        figures=[(i, figure, *_data_table(figure)) for i, figure in figures],
    )


def _data_table(figure: PageFigure) -> tuple[Number, list[str], list[list[str]]]:
    """Rows behind a figure: how many, and a table of them without the columns that are empty."""
    table, frame = f"figures/{figure.name}", figure.data
    filled = frame[[each.name for each in frame if each.null_count() < frame.height]]
    rows = [[_cell(value) for value in row] for row in filled.iter_rows()]
    return Number(f"{table}/rows", frame.height, table=table), filled.columns, rows


def render_provenance(
    study: str, provenance: Mapping[str, Any], manifests: Sequence[Mapping[str, object]]
) -> str:
    """How the study was made, as HTML.

    Of the entries that `provenance.collect` gives, ``commands`` (a list of lines) is shown as the
    way to reproduce the study, any other mapping as a table, anything else as JSON. Its models and
    tables are only in ``provenance.json``.
    """
    git = provenance.get("git")
    return template("provenance.html.jinja").render(
        study=study,
        title="How it was made",
        provenance=[
            (heading, *_entry(_git_rows(value) if heading == "git" else value))
            for heading, value in provenance.items()
            if heading not in _ELSEWHERE and value is not None
        ],
        commands=provenance.get("commands", []),
        citation=provenance.get("citation"),
        runs=_runs(provenance.get("runs") or {}),
        resources=["stage", *_RESOURCES.values(), "events"],
        dirty=bool(git and git.get("dirty")),
        manifests=[(str(manifest["name"]), _lines(manifest)) for manifest in manifests],
    )


def _entry(value: object) -> tuple[list[tuple[str, str]], str]:
    """The rows of a table, or a text, for an entry of the provenance."""
    if isinstance(value, Mapping) and not any(
        isinstance(part, Mapping | list | tuple) for part in value.values()
    ):
        return [(str(key), _cell(part)) for key, part in value.items()], ""
    return [], _lines(value)


def _git_rows(git: Mapping[str, Any]) -> dict[str, object]:
    changed = git.get("changed") or []
    more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
    named = ", ".join(changed[:5])
    return {
        "commit": git.get("commit"),
        "remote": git.get("remote") or None,
        "differs from it": f"yes: {named}{more}" if git.get("dirty") else "no",
    }


def _runs(runs: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A row for each run of a stage: time, memory, device and events."""
    return [
        [
            f"{stage}, {name}",
            *(_cell(took.get(key)) for key in _RESOURCES),
            "; ".join(f"{key} {_cell(n)}" for key, n in (took.get("events") or {}).items() if n),
        ]
        for stage, by_name in runs.items()
        for name, took in by_name.items()
    ]


def _cell(value: object) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _lines(value: object) -> str:
    """As text: JSON with a line for each entry, or the text itself."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
