"""The page: one self-contained HTML file with the results of a study.

It needs no network and works without scripts; its scripts only add tooltips, sorting, filters and
the choice of an intervention. Theory, the numbers behind the figures, and how the study was made
have their own pages beside it; see `appendices`. Everything that comes from data or params is text:
jinja escapes it, `text.visible` spells out invisible characters, and very long lines are cut. The
page lists all that is missing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.evidence import EVIDENCE, gathered
from pipeline.analysis.manifests import pretrained, read_manifests, trained_here
from pipeline.analysis.schema import Thresholds
from pipeline.analysis.theory import read_theory
from pipeline.analysis.verdicts import VALUES, VERDICTS, VERDICTS_FILE, verdicts
from pipeline.report import facts, overview
from pipeline.report.appendices import (
    Numbered,
    PageFigure,
    render_numbers,
    render_provenance,
    render_theory,
    shared,
)
from pipeline.report.browser import OPEN, SIGNS, Family, states
from pipeline.report.choosing import read_browser
from pipeline.report.citing import bibtex
from pipeline.report.claims import OURS, Finding, findings
from pipeline.report.crosswalk import crosswalk
from pipeline.report.explorer import choices
from pipeline.report.generations import Generations, collapse, read_generations
from pipeline.report.localization import SECTION as LOCALIZATION
from pipeline.report.localization import Localized, localized
from pipeline.report.marks import embedded
from pipeline.report.markup import template
from pipeline.report.provenance import collect
from pipeline.report.strips import strips
from pipeline.report.theory_sections import TheorySection, theory_sections
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError, Problem
from pipeline.workflow.files import atomic, write_text

FIGURES_INDEX = "figures.json"
BLIND_SCORES = "baselines.json"
PROVENANCE = "provenance.json"
BIBTEX = "figures.bib"
THEORY, NUMBERS, MADE = "theory.html", "numbers.html", "provenance.html"


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
    generations: bool = True,
    divergence: bool = False,
    experiments: Collection[str] = (),
    localization: bool = False,
) -> None:
    """Write the page, its appendices, its tables, and ``provenance.json`` beside it.

    Args:
        study: its name.
        models: (name, family) of each, in the order of the report.
        data: the study's folder, ``data/STUDY``.
        tasks: the folder of the benchmark tasks.
        figures: the folder that `figures.write_figures` wrote.
        page: where the page goes, ``reports/STUDY/index.html``.
        csv: becomes a folder with the summary and the evidence as CSV, ``reports/STUDY/tables``.
        provenance: what determines the study, by heading; see `render`.
        show_text: show samples of real data as text, not as token ids.
        thresholds: when a claim counts as shown.
        generations: whether the study has the models write; the page lists missing texts.
        divergence: whether the study measures the theorems on the models, likewise.
        experiments: the experiments on attention-only transformers that the study runs, likewise.
        localization: whether the study grades scorers on models whose memorizing block is known,
            likewise.

    Raises:
        InputError: the summary or the evidence is missing or does not fit. The page lists
            whatever else is missing.
    """
    summary = tables.read(data / "summary.parquet", tables.SUMMARY)
    evidence = tables.read(data / EVIDENCE, tables.EVIDENCE)
    manifests, missing = _manifests(data, models)
    if stale := tables.provenance(data / "summary.parquet").get("stale"):
        assert isinstance(stale, list)  # noqa: S101
        missing.append(
            "These stages failed, or have not run since the study was changed, so the page shows "
            f"their earlier results: {', '.join(stale)}."
        )
    missing += _without_results(summary, models, data)
    drawn: list[PageFigure] = []
    try:
        drawn = read_figures(figures)
    except InputError as error:
        missing.append(f"There are no figures: {error.problems[0].got}")
    written: list[Generations] = []
    for manifest in manifests if generations else ():
        try:
            written += read_generations(data, [manifest], show_text=show_text)
        except InputError as error:
            missing.append(
                f"The texts of {manifest['name']} cannot be shown: {error.problems[0].got}"
            )
    samples, by_token, unreadable = read_browser(data, models, manifests, show_text=show_text)
    explained: list[TheorySection] = []
    if divergence or experiments:
        theory = read_theory(data, models if divergence else [], experiments=experiments)
        explained = theory_sections(summary, theory)
        missing += theory.missing
    graded: Localized | None = None
    if localization:
        try:
            path = data / "localization.parquet"
            graded = localized(tables.read(path, tables.LOCALIZATION))
        except InputError as error:
            missing.append(f"The scorers' results cannot be shown: {error.problems[0].got}")
    whole = collect(study, data, manifests, provenance)
    judged = findings(tables.read(data / VERDICTS_FILE, VERDICTS), evidence, thresholds)
    html = render(
        study,
        summary,
        manifests,
        drawn,
        read_blind(tasks),
        written,
        samples=samples,
        by_token=by_token,
        missing=missing + unreadable,
        thresholds=thresholds,
        theory=explained,
        evidence=evidence,
        judged=judged,
        graded=graded,
    )
    write_text(page, html)
    own, theirs = numbered(drawn, explained)
    write_text(page.with_name(THEORY), render_theory(study, explained, theirs))
    write_text(page.with_name(NUMBERS), render_numbers(study, evidence, judged, [*own, *theirs]))
    write_text(page.with_name(MADE), render_provenance(study, whole, manifests))
    # all in ASCII: a name may hold characters that a file cannot
    write_text(page.with_name(PROVENANCE), json.dumps(whole, indent=2, default=str) + "\n")
    with atomic(csv, directory=True) as temporary:
        blocks = pl.col("blocks").cast(pl.List(pl.String)).list.join(" ")  # CSV has no lists
        summary.with_columns(blocks).write_csv(temporary / "summary.csv")
        evidence.write_csv(temporary / "evidence.csv")
        write_text(temporary / BIBTEX, bibtex(study, [*own, *theirs], whole["git"]))


def numbered(
    figures: Sequence[PageFigure], theory: Sequence[TheorySection]
) -> tuple[Numbered, Numbered]:
    """The figures of the main page and those of the theory, each with its number.

    Figures of one section of the main page, of which it shows one at a time, share a number and
    differ by a letter: 2a, 2b.
    """
    titles = {each.title for each in theory}
    own = dict[str, list[PageFigure]]()
    theirs = list[PageFigure]()
    for figure in figures:
        if figure.section in titles:
            theirs.append(figure)
        else:
            own.setdefault(figure.section, []).append(figure)
    labelled = [
        (f"{number}{_letter(i)}" if len(members) > 1 else str(number), figure)
        for number, members in enumerate(own.values(), start=1)
        for i, figure in enumerate(members)
    ]
    return labelled, [(str(i), each) for i, each in enumerate(theirs, start=len(own) + 1)]


def _letter(index: int) -> str:
    """A to z, then aa, bb, …"""
    return ascii_lowercase[index % 26] * (1 + index // 26)


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
    """Scores of the scorers without attention: task -> scorer -> score, from the corpus stage.

    Empty for tasks without such scores, such as lm-eval's own.
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
    blind: Mapping[str, Mapping[str, float]] | None = None,
    written: Sequence[Generations] = (),
    thresholds: Thresholds | None = None,
    samples: Sequence[Family] = (),
    by_token: Sequence[str] = (),
    missing: Sequence[str] = (),
    theory: Sequence[TheorySection] = (),
    evidence: pl.DataFrame | None = None,
    judged: Sequence[Finding] | None = None,
    graded: Localized | None = None,
) -> str:
    """The page as HTML.

    Args:
        study: its name.
        summary: as `aggregate.aggregate` gives it.
        manifests: of every model's checkpoint, in the order of the report.
        figures: in order; the first is shown with the finding, the others by section.
        blind: scores of the scorers without attention, as `read_blind` reads them; given where
            the benchmarks come with the corpus.
        written: the models' texts, as `read_generations` reads them.
        thresholds: when a claim counts as shown.
        samples: as `choosing.read_browser` reads them.
        by_token: the results that only single tokens show, as sentences.
        missing: what could not be shown and why, as sentences.
        theory: as `theory_sections.theory_sections` makes them.
        evidence: of the verdicts, schema `tables.EVIDENCE`; None: nothing can be judged.
        judged: the claims as `claims.findings` gives them; None: they are judged here.
        graded: the scorers' results where the memorizing block is known, as
            `localization.localized` gives them.
    """
    limits = thresholds or Thresholds()
    if evidence is None:
        evidence = gathered([])
    if judged is None:
        judged = findings(verdicts(evidence, limits), evidence, limits)
    planted = any(map(pretrained, manifests))
    generated = bool(manifests) and all(map(trained_here, manifests)) and not planted
    learned = (
        "generated text" if generated else "generated text, planted" if planted else "real text"
    )
    sections: dict[str, Numbered] = {}
    own, _ = numbered(figures, theory)
    lead = own[0] if own else None
    for i, figure in own[1:]:
        sections[figure.section] = [*sections.get(figure.section, ()), (i, figure)]
    located = sections.pop(LOCALIZATION, ())
    return template("page.html.jinja").render(
        **shared(),
        study=study,
        found=_opening(summary, judged, graded),
        paper=_in_short(judged, graded),
        badges=overview.badges(summary, manifests, learned),
        heatmaps=overview.heatmaps(views.over_seeds(summary)),
        shades=overview.SHADES,
        crosswalk=crosswalk(judged, _labels(sections)),
        findings=judged,
        strips=strips,
        thresholds=limits,
        facts=facts.overview(summary, manifests, samples),
        lead=lead,
        sections=sections,
        graded=graded,
        located=located,
        localization=LOCALIZATION,
        theory=theory,
        models=facts.models(summary, manifests, evidence),
        benchmarks=facts.benchmarks(summary, blind or {}),
        without_interval=_without_interval(summary),
        blind=bool(blind),
        generated=generated,
        planted=planted,
        famous="famous" in summary["split"],
        written=written,
        collapsed=collapse(written),
        samples=samples,
        by_token=by_token,
        samples_data=embedded([family.data() for family in samples]),
        open=OPEN,
        states=states,
        signs=SIGNS,
        explorer=embedded(choices(summary)),
        missing=missing,
        largest=facts.largest(manifests),
        seeds=facts.seeds(facts.seed_counts(manifests)),
        seeds_short=facts.seeds_short(facts.seed_counts(manifests)),
        one_seed=max(facts.seed_counts(manifests), default=0) <= 1,
    )


def _labels(sections: Mapping[str, Numbered]) -> dict[str, list[str]]:
    """Heading -> the numbers of its figures."""
    return {section: [label for label, _ in figures] for section, figures in sections.items()}


def _opening(
    summary: pl.DataFrame, judged: Sequence[Finding], graded: Localized | None
) -> list[str]:
    """The finding in sentences. A study that localizes and judges no claim has only one result."""
    localized = [graded.opening] if graded and graded.opening else []
    return localized if _only_localized(judged, graded) else [*localized, *overview.found(summary)]


def _in_short(judged: Sequence[Finding], graded: Localized | None) -> dict[str, object]:
    """How the paper's claims fared: the first one, and the counts of verdicts of all."""
    if _only_localized(judged, graded):
        return {}
    words = [finding.word for finding in judged if finding.source != OURS]
    counts = [(words.count(word), word) for word in (*VALUES, "not measured") if word in words]
    return {"first": judged[0].verdict, "claims": len(words), "counts": counts}


def _only_localized(judged: Sequence[Finding], graded: Localized | None) -> bool:
    words = {finding.word for finding in judged if finding.source != OURS}
    return bool(graded and graded.opening) and words == {"not measured"}


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
                "its tables are there, so the summary is older than they are, or left them out"
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
