"""The page: one self-contained HTML file that tells the study's story and can be sent on.

It needs no network, and no scripts: those it has add tooltips, sorting, filters and the choice of
an intervention to what is there without them. Everything that comes from data or params is text:
jinja escapes it, `text.visible` spells out what could not be seen, and lines without end are cut.
What is missing is said on the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from pipeline import tables
from pipeline.bypass.interventions import BASELINE
from pipeline.errors import InputError, Problem
from pipeline.files import atomic, write_text
from pipeline.report import colours, tooltips, views
from pipeline.report.browser import Family, Sample, as_json, places, read_browser, shown, wrong
from pipeline.report.findings import Thresholds, findings, in_short
from pipeline.report.generations import Generations, read_generations
from pipeline.report.manifests import read_manifests
from pipeline.report.provenance import collect
from pipeline.report.text import (
    MISSING,
    number,
    percent,
    percent_interval,
    plural,
    slug,
    visible,
)
from pipeline.report.theory import read_theory
from pipeline.report.theory_sections import TheorySection, theory_sections

FIGURES_INDEX = "figures.json"
BLIND_SCORES = "baselines.json"
PROVENANCE = "provenance.json"
CODE_PATH = Path(__file__).parent
SCRIPTS = (
    "vendor/sortable-tablesort-4.1.7.js",  # github.com/tofsjonas/sortable, public domain
    "page.js",
)

LINE_CHARACTERS = 2000
"""Of a longer line only the start is shown."""

SINGLE_POINTS = 500.0
"""A figure of one panel is narrower than this, in points of its file."""

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

# of a stage's sidecar: key -> heading in the table of what it took
_TOOK = {
    "wall_seconds": "wall, s",
    "cpu_seconds": "CPU, s",
    "peak_memory_mib": "memory, MiB",
    "device": "device",
    "processor": "processor",
    "python": "Python",
}
# of what is known of how the report was made, that the page shows elsewhere or leaves to the file
_ELSEWHERE = ("study", "commands", "models", "tables", "citation", "runs")


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
    *,
    show_text: bool = False,
    thresholds: Thresholds | None = None,
    with_theory: bool = False,
) -> None:
    """Write the page, its tables, and ``provenance.json`` beside it.

    Args:
        study: its name.
        models: (name, family) of each, in the order of the report.
        data: the study's folder, ``data/STUDY``.
        tasks: the folder of the benchmark tasks.
        figures: the folder that `figures.write_figures` wrote.
        page: where the page goes, ``reports/STUDY/index.html``.
        csv: becomes a folder with the summary as CSV, ``reports/STUDY/tables``.
        provenance: what determines the study, by heading; see `render`.
        show_text: show samples of real data as text, not as token ids.
        thresholds: when a claim counts as shown.
        with_theory: show what the theory's stages measured, and say so where they did not.

    Raises:
        InputError: the summary is missing or does not fit. What else is missing, the page says.
    """
    summary = tables.read(data / "summary.parquet", tables.SUMMARY)
    manifests, missing = _manifests(data, models)
    missing += _without_results(summary, models, data)
    drawn: list[PageFigure] = []
    try:
        drawn = read_figures(figures)
    except InputError as error:
        missing.append(f"There are no figures: {error.problems[0].got}")
    written: list[Generations] = []
    for name, _ in models:
        try:
            written += read_generations(data, [name], show_text=show_text)
        except InputError as error:
            missing.append(f"What {name} wrote cannot be shown: {error.problems[0].got}")
    samples, unreadable = read_browser(data, models, manifests, show_text=show_text)
    explained: list[TheorySection] = []
    if with_theory:
        theory = read_theory(data, models)
        explained = theory_sections(summary, theory)
        missing += theory.missing
    whole = collect(study, data, manifests, provenance)
    html = render(
        study,
        summary,
        manifests,
        drawn,
        whole,
        read_blind(tasks),
        written,
        samples=samples,
        missing=missing + unreadable,
        thresholds=thresholds,
        theory=explained,
    )
    write_text(page, html)
    # all in ASCII: a name may hold what no file can
    write_text(page.with_name(PROVENANCE), json.dumps(whole, indent=2, default=str) + "\n")
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
    samples: Sequence[Family] = (),
    missing: Sequence[str] = (),
    theory: Sequence[TheorySection] = (),
) -> str:
    """The page as HTML.

    Args:
        study: its name.
        summary: as `aggregate.aggregate` gives it.
        manifests: of every model's checkpoint, in the order of the report.
        figures: in order; the first is shown with the finding, the others by section.
        provenance: how the study was made, by heading, as `provenance.collect` gives it.
            ``commands`` (a list of lines) is shown as the way to make it again; any other mapping
            as a table, anything else as JSON. Its models and tables are left to the file.
        blind: what scorers without attention reach, as `read_blind` reads it; given for a
            generated world alone.
        written: what the models wrote, as `read_generations` reads it.
        thresholds: when a claim counts as shown.
        samples: as `browser.read_browser` reads them.
        missing: what could not be shown and why, as sentences.
        theory: as `theory_sections.theory_sections` makes them.
    """
    limits = thresholds or Thresholds()
    judged = findings(summary, limits)
    script = "\n".join((CODE_PATH / name).read_text(encoding="utf-8") for name in SCRIPTS)
    sections: dict[str, list[tuple[int, PageFigure]]] = {}
    for i, figure in enumerate(figures[1:], start=2):
        sections.setdefault(figure.section, []).append((i, figure))
    for explained in theory:
        sections.setdefault(explained.title, [])
    return template("page.html.jinja").render(
        study=study,
        stylesheet=Markup((CODE_PATH / "page.css").read_text(encoding="utf-8")),  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_hash=_content_hash(script),
        findings=judged,
        in_short=in_short(judged),
        thresholds=limits,
        facts=_facts(summary, manifests, samples),
        lead=figures[0] if figures else None,
        sections=sections,
        theory={explained.title: explained for explained in theory},
        models=_models(summary, manifests),
        benchmarks=_benchmarks(summary, blind or {}),
        without_interval=_without_interval(summary),
        generated=bool(blind),
        written=written,
        inline_svg=inline_svg,
        data_table=_data_table,
        provenance=_provenance(provenance),
        samples=samples,
        samples_data=Markup(as_json(samples)),  # noqa: S704  escaped by it
        lines=_sample_lines,
        tokens=_tokens,
        missing=missing,
        commands=provenance.get("commands", []),
        citation=provenance.get("citation"),
        runs=_runs(provenance.get("runs")),
        took=["stage", *_TOOK.values(), "events"],
        largest=_largest(manifests),
        seeds=_seeds(_seed_counts(manifests)),
        seeds_short=_seeds_short(_seed_counts(manifests)),
        dirty=bool(isinstance(git := provenance.get("git"), Mapping) and git.get("dirty")),
        one_seed=max(_seed_counts(manifests), default=0) <= 1,
        manifests=[(str(m["name"]), _lines(m)) for m in manifests],
    )


def _manifests(
    data: Path, models: Sequence[tuple[str, str]]
) -> tuple[list[dict[str, object]], list[str]]:
    """The manifests in the order of `models`, and what is missing; such a model keeps its name."""
    manifests: list[dict[str, object]] = []
    missing = []
    for name, family in models:
        try:
            manifests += read_manifests(data, [(name, family)])
        except InputError as error:
            manifests.append({"name": name, "family": family})
            missing.append(f"{name} has no checkpoint: {error.problems[0].got}")
    return manifests, missing


def _without_results(
    summary: pl.DataFrame, models: Sequence[tuple[str, str]], data: Path
) -> list[str]:
    """The models and benchmarks that the summary does not have, each with the likely reason."""
    missing = []
    every = set(views.tasks(views.benchmarks(summary)))
    for name, _ in models:
        own = summary.filter(model=name)
        table = data / "memorization" / f"{name}.parquet"
        if not own.height:
            why = (
                "its tables are there, so the summary is older than they are"
                if table.exists()
                else f"{table} is missing, so its stage failed or has not run"
            )
            missing.append(f"{name} has no results: {why}.")
        elif absent := sorted(every - set(own["task"])):
            missing.append(f"{name} has no results of {', '.join(absent)}.")
    return missing


def _without_interval(summary: pl.DataFrame) -> list[str]:
    """The benchmarks that come without a standard error, so without an interval."""
    rows = views.benchmarks(views.baseline(summary)).filter(pl.col("low").is_null())
    return sorted(set(rows["task"]))


def _content_hash(script: str) -> str:
    """What the page's content security policy calls the one script that may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def template(name: str) -> Template:
    """A template of this folder that escapes all that it is given, and fails on what it is not."""
    environment = Environment(
        loader=FileSystemLoader(CODE_PATH),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["slug"] = slug
    environment.filters["single_panel"] = _single_panel
    environment.filters["whole_interval"] = _whole_interval
    return environment.get_template(name)


def _single_panel(svg: str) -> bool:
    """Whether a figure is drawn narrower than the page, so that it must not be blown up to it."""
    width = re.search(r'<svg[^>]* width="([\d.]+)pt"', svg[:2000])
    return width is not None and float(width[1]) < SINGLE_POINTS


def _whole_interval(cell: str) -> str | Markup:
    """A table cell whose interval, if it ends in one, stays on one line."""
    found = re.fullmatch(r"([^\[\]]{1,20}) (\[[^\[\]]{1,40}\])", cell)
    if found is None:
        return cell
    return Markup('{} <span class="interval">{}</span>').format(*map(_clean, found.groups()))


def inline_svg(svg: str, prefix: str, label: str, data: pl.DataFrame | None = None) -> Markup:
    """An SVG file made fit to stand inside the page.

    Its ids get `prefix`, so that no two figures share one; its colours for ink, paper and rules
    become the page's; its metadata and its global styles go.

    Args:
        svg: as matplotlib wrote it.
        prefix: unique on the page; letters, digits, hyphens.
        label: the alternative text.
        data: the numbers drawn; each mark that stands for one gets a title that tells it.
    """
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(svg)  # noqa: S314  written by our own figures stage
    for mark, words in list(tooltips.describe(root, data)) if data is not None else []:
        ElementTree.SubElement(mark, f"{{{_SVG}}}title").text = _clean(words)
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
    root.set("aria-label", _clean(label))
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
    return _clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _clean(text: str) -> str:
    """`text` with what cannot be seen spelled out and lines without end cut."""
    if len(text) <= LINE_CHARACTERS:
        return visible(text)
    return visible(
        "\n".join(
            line
            if len(line) <= LINE_CHARACTERS
            else f"{line[:LINE_CHARACTERS]}… ({len(line):,} characters in all)"
            for line in text.split("\n")
        )
    )


def _word(family: Family, token: int) -> str:
    """A token as it is shown: text where that may be, else its id. The script has the same."""
    return shown(family.words[token]) if token in family.words else str(token)


def _tokens(family: Family, tokens: Sequence[int], marked: Sequence[int] = ()) -> Markup:
    """Tokens in a row, those at the places `marked` in a mark of their own."""
    between = "" if family.words else " "
    own = set(marked)
    words = (_word(family, token) for token in tokens)
    return Markup(between).join(  # noqa: S704  one of two constants
        Markup("<mark>{}</mark>").format(word) if i in own else word for i, word in enumerate(words)
    )


def _sample_lines(family: Family, sample: Sample) -> list[tuple[str, Markup]]:
    """What is shown of a sample without scripts: the first model's baseline and worst block."""
    if not sample.continuations:
        return []
    model = next(iter(sample.continuations))
    lines = []
    for name in dict.fromkeys((BASELINE.name, sample.worst(model))):
        continuation = sample.continuations[model].get(name)
        if continuation is None:
            continue
        at, total = wrong(sample.suffix, continuation), len(sample.suffix)
        result = f"{total - len(at)} of {total} tokens right; wrong: {places(at)}"
        heading = f"{model}, {name}: {result if at else f'all {total} tokens right'}"
        lines.append((heading, _tokens(family, continuation, at)))
    return lines


def _runs(runs: object) -> list[list[str]]:
    """A row for each run of a stage: what it took, and what happened."""
    if not isinstance(runs, Mapping):
        return []
    return [
        [
            f"{stage}, {name}",
            *(_plain(took.get(key)) for key in _TOOK),
            "; ".join(f"{key} {_plain(value)}" for key, value in events.items() if value),
        ]
        for stage, by_name in runs.items()
        for name, took in by_name.items()
        if isinstance(events := took.get("events") or {}, Mapping)
    ]


def _facts(
    summary: pl.DataFrame, manifests: Sequence[Mapping[str, object]], samples: Sequence[Family]
) -> list[tuple[str, str]]:
    """What the study consists of: (what, how much)."""
    completed = summary.filter(metric="exact_match", intervention="baseline")
    counts = [
        f"{_counts(completed.filter(split=split)['n'])} {split}"
        for split in tables.SPLITS
        if completed.filter(split=split).height
    ]
    tasks = views.tasks(views.benchmarks(summary))
    return [
        ("Models", plural(len(manifests), "model")),
        ("Training seeds", _seeds(_seed_counts(manifests))),
        ("Interventions", _interventions(summary)),
        ("Samples a model", ", ".join(counts) or MISSING),
        (
            "Prefix and suffix",
            "; ".join(
                f"{family.name} {prefix} and {suffix} tokens"
                for family in samples
                for prefix, suffix in [family.samples[0].lengths]
            )
            or MISSING,
        ),
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


def _seeds_short(counts: Sequence[int]) -> str:
    if not counts:
        return "as published"
    low, high = min(counts), max(counts)
    return f"{plural(high, 'seed')} each" if low == high else f"{low} to {high} seeds each"


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
            ]
        )
    heading = [
        "model",
        *_SIZE.values(),
        "exact match, memorized",
        "exact match, control",
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
    """A number with its interval if it has one, from a frame of one row or none."""
    if not row.height:
        return MISSING
    value, low, high = row.select("value", "low", "high").row(0)
    return number(value) + (f" [{number(low)}, {number(high)}]" if low is not None else "")


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
    """(heading, rows of a table, text) for each entry that stands under a heading of its own."""
    entries = []
    for heading, value in provenance.items():
        if heading in _ELSEWHERE or value is None:
            continue
        if heading == "git" and isinstance(value, Mapping):
            value = _git_rows(value)
        flat = isinstance(value, Mapping) and not any(
            isinstance(v, Mapping | list | tuple) for v in value.values()
        )
        rows = [(str(k), _plain(v)) for k, v in value.items()] if flat else []  # type: ignore[attr-defined]
        text = "" if flat else _lines(value)
        entries.append((heading, rows, text))
    return entries


def _git_rows(git: Mapping[str, object]) -> dict[str, object]:
    changed = git.get("changed") or []
    assert isinstance(changed, Sequence)  # noqa: S101
    named = ", ".join(str(each) for each in changed[:5])
    more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
    return {
        "commit": git.get("commit"),
        "remote": git.get("remote") or None,
        "differs from it": f"yes: {named}{more}" if git.get("dirty") else "no",
    }


def _lines(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
