"""The page: one self-contained HTML file that tells the study's story and can be sent on.

It needs no network and no scripts. Everything that comes from data or params is text: jinja
escapes it, and `text.visible` spells out what could not be seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline import tables
from pipeline.errors import InputError, Problem
from pipeline.files import atomic, write_text
from pipeline.report import colours, views
from pipeline.report.findings import Thresholds, findings
from pipeline.report.generations import Generations, read_generations
from pipeline.report.manifests import read_manifests
from pipeline.report.text import (
    MISSING,
    number,
    percent,
    percent_interval,
    plural,
    slug,
    visible,
)

FIGURES_INDEX = "figures.json"
BLIND_SCORES = "baselines.json"
CODE_PATH = Path(__file__).parent

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
# the page's own colours take the place of the figures', so that they follow light and dark
_COLOURS = {
    colours.INK: "var(--ink)",
    colours.MUTED: "var(--muted)",
    colours.RULE: "var(--rule)",
    colours.PAPER: "var(--card)",
}

# of a checkpoint's manifest: key -> heading in the table of models
_SIZE = {"family": "family", "n_blocks": "blocks", "parameters": "parameters"}
_MAKE = {
    "width": "width",
    "n_heads": "heads",
    "context": "context, tokens",
    "dtype": "dtype",
    "seed": "seed",
}


@dataclass(frozen=True)
class PageFigure:
    """A figure as the figures stage left it.

    Args:
        name, section, title, caption, alt: as in `figures.Plot`.
        svg: the file's text.
        data: the numbers drawn.
    """

    name: str
    section: str
    title: str
    caption: str
    alt: str
    svg: str
    data: pl.DataFrame


def write_page(
    study: str,
    models: Sequence[tuple[str, str]],
    data: Path,
    tasks: Path,
    figures: Path,
    page: Path,
    csv: Path,
    provenance: Mapping[str, object],
) -> None:
    """Write the page and its tables.

    Args:
        study: its name.
        models: (name, family) of each, in the order of the report.
        data: the study's folder, ``data/STUDY``.
        tasks: the folder of the benchmark tasks.
        figures: the folder that `figures.write_figures` wrote.
        page: where the page goes, ``reports/STUDY/index.html``.
        csv: becomes a folder with the summary as CSV, ``reports/STUDY/tables``.
        provenance: see `render`.

    Raises:
        InputError: the summary or the figures are missing or do not fit.
    """
    summary = tables.read(data / "summary.parquet", tables.SUMMARY)
    manifests = read_manifests(data, models)
    drawn, blind = read_figures(figures), read_blind(tasks)
    written = read_generations(data, [name for name, _ in models])
    write_text(page, render(study, summary, manifests, drawn, provenance, blind, written))
    with atomic(csv, directory=True) as temporary:
        summary.write_csv(temporary / "summary.csv")


def read_figures(folder: Path) -> list[PageFigure]:
    """The figures of a folder in the order of its index.

    Raises:
        InputError: the index or a file that it names is not there.
    """
    try:
        index = json.loads((folder / FIGURES_INDEX).read_text(encoding="utf-8"))
        return [
            PageFigure(
                **words,
                svg=(folder / f"{words['name']}.svg").read_text(encoding="utf-8"),
                data=pl.read_csv(folder / f"{words['name']}.csv", infer_schema_length=None),
            )
            for words in index
        ]
    except OSError as error:
        raise InputError(
            Problem(
                what=str(folder),
                got=str(error),
                expected=f"the figures that {FIGURES_INDEX} names, as SVG and CSV",
                remedy="run the figures stage again",
            )
        ) from error


def read_blind(tasks: Path) -> dict[str, dict[str, float]]:
    """What scorers without attention reach: task -> scorer -> score, as the corpus stage wrote it.

    Empty for tasks that come without, such as lm-eval's own.
    """
    path = tasks / BLIND_SCORES
    if not path.exists():
        return {}
    reached: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))
    return reached


def render(
    study: str,
    summary: pl.DataFrame,
    manifests: Sequence[Mapping[str, object]],
    figures: Sequence[PageFigure],
    provenance: Mapping[str, object],
    blind: Mapping[str, Mapping[str, float]] | None = None,
    written: Sequence[Generations] = (),
    thresholds: Thresholds | None = None,
) -> str:
    """The page as HTML.

    Args:
        study: its name.
        summary: as `aggregate.aggregate` gives it.
        manifests: of every model's checkpoint, in the order of the report.
        figures: in order; the first is shown with the finding, the others by section.
        provenance: what determines the study, by heading. ``commands`` (a list of lines) is shown
            as the way to make it again; any other mapping as a table, anything else as JSON.
        blind: what scorers without attention reach, as `read_blind` reads it; given for a
            generated world alone.
        written: what the models wrote, as `read_generations` reads it.
        thresholds: when a claim counts as shown.
    """
    limits = thresholds or Thresholds()
    environment = Environment(
        loader=FileSystemLoader(CODE_PATH),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["slug"] = slug
    sections: dict[str, list[tuple[int, PageFigure]]] = {}
    for i, figure in enumerate(figures[1:], start=2):
        sections.setdefault(figure.section, []).append((i, figure))
    return environment.get_template("page.html.jinja").render(
        study=study,
        stylesheet=Markup((CODE_PATH / "page.css").read_text(encoding="utf-8")),  # noqa: S704
        findings=findings(summary, limits),
        thresholds=limits,
        facts=_facts(summary, manifests),
        lead=figures[0] if figures else None,
        sections=sections,
        models=_models(summary, manifests),
        benchmarks=_benchmarks(summary, blind or {}),
        generated=bool(blind),
        written=written,
        inline_svg=inline_svg,
        data_table=_data_table,
        provenance=_provenance(provenance),
        commands=provenance.get("commands", []),
        largest=_largest(manifests),
        seeds=_seeds(_seed_counts(manifests)),
        one_seed=max(_seed_counts(manifests), default=0) <= 1,
        manifests=[(str(m["name"]), _lines(m)) for m in manifests],
    )


def inline_svg(svg: str, prefix: str, label: str) -> Markup:
    """An SVG file made fit to stand inside the page.

    Its ids get `prefix`, so that no two figures share one; its colours for ink, paper and rules
    become the page's; its metadata and its global styles go.

    Args:
        svg: as matplotlib wrote it.
        prefix: unique on the page; letters, digits, hyphens.
        label: the alternative text.
    """
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(svg)  # noqa: S314  written by our own figures stage
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            element.set(key, _attribute(key, value, prefix))
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", visible(label))
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704  escaped by it


def _attribute(key: str, value: str, prefix: str) -> str:
    if key == "id":
        return f"{prefix}-{value}"
    if key in ("href", f"{{{_XLINK}}}href"):
        return re.sub(r"^#", f"#{prefix}-", value)
    value = re.sub(r"url\(#", f"url(#{prefix}-", value)
    if key in ("style", "fill", "stroke"):
        for colour, variable in _COLOURS.items():
            value = value.replace(colour, variable)
    return value


def _finalize(value: object) -> object:
    """What jinja does to every value before escaping it."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _facts(
    summary: pl.DataFrame, manifests: Sequence[Mapping[str, object]]
) -> list[tuple[str, str]]:
    """What the study consists of: (what, how much)."""
    samples = summary.filter(metric="exact_match", intervention="baseline")
    counts = [
        f"{_counts(samples.filter(split=split)['n'])} {split}"
        for split in tables.SPLITS
        if samples.filter(split=split).height
    ]
    tasks = views.tasks(views.benchmarks(summary))
    return [
        ("Models", plural(len(manifests), "model")),
        ("Training seeds", _seeds(_seed_counts(manifests))),
        ("Interventions", _interventions(summary)),
        ("Samples a model", ", ".join(counts) or MISSING),
        ("Benchmarks", ", ".join(tasks) or "none"),
    ]


def _seed_counts(manifests: Sequence[Mapping[str, object]]) -> list[int]:
    """How many seeds each kind of model was trained with; a kind is all but name, seed, files.

    Models that were not trained here have none.
    """
    own = ("name", "seed", "files", "origin")
    seeds: dict[str, set[str]] = {}
    for manifest in (each for each in manifests if each.get("seed") is not None):
        origin = manifest.get("origin")
        recipe = dict(origin.get("recipe") or {}) if isinstance(origin, Mapping) else {}
        recipe.pop("seed", None)
        kind = {word: value for word, value in manifest.items() if word not in own}
        key = json.dumps([kind, recipe], sort_keys=True, default=str)
        seeds.setdefault(key, set()).add(str(manifest.get("seed")))
    return [len(each) for each in seeds.values()]


def _seeds(counts: Sequence[int]) -> str:
    if not counts:
        return "one published checkpoint of each model"
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low if low == high else f'{low} to {high}'} for each kind of model"


def _largest(manifests: Sequence[Mapping[str, object]]) -> str:
    """The number of parameters of the largest model."""
    known = [m["parameters"] for m in manifests if isinstance(m.get("parameters"), int)]
    return f"{max(known):,}" if known else "an unknown number of"  # type: ignore[type-var]


def _interventions(summary: pl.DataFrame) -> str:
    counts = summary.group_by("model").agg(pl.col("intervention").n_unique())["intervention"]
    quarters = summary["intervention"].str.starts_with("quartile-").any()
    return f"{_counts(counts)} a model: none, each block alone" + (
        ", each quarter of the blocks" if quarters else ""
    )


def _counts(column: pl.Series) -> str:
    low, high = min(column), max(column)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _models(
    summary: pl.DataFrame, manifests: Sequence[Mapping[str, object]]
) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of the table of models."""
    whole = views.baseline(summary)
    rows = []
    for manifest in manifests:
        name = str(manifest["name"])
        estimates = [
            views.memorization(whole, "exact_match", split).filter(model=name)
            for split in ("memorized", "control")
        ]
        rows.append(
            [
                name,
                *(_plain(manifest.get(word)) for word in _SIZE),
                *(_estimate(each) for each in estimates),
                *(_plain(manifest.get(word)) for word in _MAKE),
            ]
        )
    heading = [
        "model",
        *_SIZE.values(),
        "exact match, memorized",
        "exact match, control",
        *_MAKE.values(),
    ]
    return heading, rows


def _benchmarks(
    summary: pl.DataFrame, blind: Mapping[str, Mapping[str, float]]
) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of the table of benchmarks: what guessing reaches, and what each model."""
    whole = views.benchmarks(views.baseline(summary))
    models = [name for name, _ in views.models(summary)]
    rows = []
    for task in views.tasks(whole):
        of_task = whole.filter(task=task)
        metric, chance, upwards = of_task.select("metric", "chance", "higher_is_better").row(0)
        shown = percent if upwards else number
        best = max if upwards else min
        blindly = best(blind[task].values()) if task in blind else None
        estimates = [of_task.filter(model=model) for model in models]
        rows.append(
            [
                f"{task}, {metric}",
                shown(chance),
                *([shown(blindly)] if blind else []),
                *(_estimate(each) if upwards else _level(each) for each in estimates),
            ]
        )
    heading = ["benchmark", "chance", *(["best without attention"] if blind else []), *models]
    return heading, rows


def _level(row: pl.DataFrame) -> str:
    """A number without an interval, from a frame of one row or none."""
    return number(row["value"][0]) if row.height else MISSING


def _estimate(row: pl.DataFrame) -> str:
    """A rate with its interval, from a frame of one row or none."""
    if not row.height:
        return MISSING
    return percent_interval(row["value"][0], row["low"][0], row["high"][0])


def _data_table(frame: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of the numbers behind a figure, without columns that are empty."""
    filled = [column for column in frame.columns if frame[column].null_count() < frame.height]
    rows = frame.select(filled).rows()
    return filled, [[_plain(value) for value in row] for row in rows]


def _plain(value: object) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _provenance(provenance: Mapping[str, object]) -> list[tuple[str, list[tuple[str, str]], str]]:
    """(heading, rows of a table, text) for each entry but the commands."""
    entries = []
    for heading, value in provenance.items():
        if heading == "commands":
            continue
        flat = isinstance(value, Mapping) and not any(
            isinstance(v, Mapping | list | tuple) for v in value.values()
        )
        rows = [(str(k), _plain(v)) for k, v in value.items()] if flat else []  # type: ignore[attr-defined]
        text = "" if flat else _lines(value)
        entries.append((heading, rows, text))
    return entries


def _lines(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
