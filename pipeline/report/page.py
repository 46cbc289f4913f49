"""The page: one self-contained HTML file with the results of a study.

It needs no network and works without scripts; its scripts only add tooltips, sorting, filters and
the choice of an intervention. Theory, the numbers behind the figures, and how the study was made
have their own pages beside it; see `appendices`. Everything that comes from data or params is text:
jinja escapes it, `text.visible` spells out invisible characters, and very long lines are cut. The
page lists all that is missing.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.evidence import gathered
from pipeline.analysis.kept import kept
from pipeline.analysis.manifests import pretrained, read_manifest, trained_here
from pipeline.analysis.results import read_numbers
from pipeline.analysis.schema import Thresholds
from pipeline.analysis.theory import read_theory
from pipeline.analysis.verdicts import SUPPORTED, VALUES, verdicts
from pipeline.report import facts, overview
from pipeline.report.appendices import (
    Numbered,
    PageFigure,
    render_numbers,
    render_provenance,
    render_theory,
)
from pipeline.report.browser import OPEN, SIGNS, Family, states
from pipeline.report.choosing import read_browser
from pipeline.report.citing import bibtex
from pipeline.report.claims import Finding, crosswalk, findings
from pipeline.report.explorer import choices
from pipeline.report.generations import Generations, collapse, read_generations
from pipeline.report.localization import SECTION as LOCALIZATION
from pipeline.report.localization import Localized, read_localized
from pipeline.report.marks import embedded
from pipeline.report.markup import template
from pipeline.report.numbers import SHARE, Number, Numbers, from_json, unclaimed
from pipeline.report.plots.plot import EDITS_IN_WORDS, FIGURES_INDEX
from pipeline.report.provenance import collect
from pipeline.report.strips import strips
from pipeline.report.texts import Texts, are_given, read_texts
from pipeline.report.theory_sections import TheorySection, theory_sections
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError, bad_input
from pipeline.workflow.files import atomic, write_text


@dataclass(frozen=True)
class Results:
    """What the page is made from; a section whose table is empty is left out.

    Args:
        study: its name.
        summary, evidence, verdicts: as `results.read_numbers` gives them.
        manifests: of every model's checkpoint, in the order of the report; of a model without one
            only ``name`` and ``family``.
        figures: in order; the first is shown with the finding, the others by section.
        thresholds: with which the claims were judged.
        blind: scores of the scorers without attention: task -> scorer -> score; empty for tasks
            without such scores, such as lm-eval's own.
        written: the models' texts, as `read_generations` reads them.
        samples: as `choosing.read_browser` reads them.
        by_token: the results that only single tokens show, as sentences.
        theory: as `theory_sections.theory_sections` makes them.
        graded: the scorers' results where the memorizing block is known.
        missing: what could not be shown and why, as sentences.
        mitigated: whether there is a page of mitigations, `mitigations.html`.
        texts: those of users' files, under each model.
        given: whether there are no other samples, and none that is said to be memorized.
    """

    study: str
    summary: pl.DataFrame
    manifests: Sequence[Mapping[str, object]] = ()
    figures: Sequence[PageFigure] = ()
    evidence: pl.DataFrame = field(default_factory=lambda: gathered([]))
    verdicts: pl.DataFrame = field(default_factory=lambda: verdicts(gathered([])))
    thresholds: Thresholds = field(default_factory=Thresholds)
    blind: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    written: Sequence[Generations] = ()
    samples: Sequence[Family] = ()
    by_token: Sequence[Any] = ()
    theory: Sequence[TheorySection] = ()
    graded: Localized | None = None
    missing: Sequence[str] = ()
    mitigated: bool = False
    texts: Sequence[Texts] = ()
    given: bool = False

    @property
    def judged(self) -> list[Finding]:
        """The claims in the order of the page."""
        return findings(self.verdicts, self.evidence, self.thresholds)

    @property
    def shown(self) -> list[Finding]:
        """Those of the page: of users' texts, only the measured ones; none if none is."""
        measured = [finding for finding in self.judged if finding.cases]
        return measured if self.given or not measured else self.judged


def read_results(
    study: str,
    models: Sequence[tuple[str, str]],
    data: Path,
    tasks: Path,
    figures: Path,
    *,
    show_text: bool = False,
    thresholds: Thresholds | None = None,
) -> Results:
    """Read everything that the page shows; what is damaged or absent is listed as missing.

    Of the models, (name, family), in the order of the report; from the study's folder
    ``data/STUDY``, the folder of the benchmark tasks, and that which `figures.write_figures` wrote.
    With `show_text` samples of real data are shown as text, not as token ids.

    Raises:
        InputError: the summary, the evidence or the verdicts are missing, do not fit, or hold what
            cannot be; see `results.read_numbers`.
    """
    summary, evidence, judged = read_numbers(data, "verdicts")
    missing = list[str]()

    def attempt(what: str, otherwise: Any, read: Callable[..., Any], *of: Any, **how: Any) -> Any:
        try:
            return read(*of, **how)
        except InputError as error:
            missing.append(f"{what}: {error.problems[0].got}")
            return otherwise

    manifests = list[Mapping[str, object]]()
    for name, family in models:
        named = {"name": name, "family": family}
        lost = f"{name} has no checkpoint"
        manifests.append(attempt(lost, named, read_manifest, data, name))
    stale: Any = tables.provenance(data / "summary.parquet").get("stale")
    if stale:
        missing.append(
            "These stages failed, or have not run since the study was changed, so the page shows "
            f"their earlier results: {', '.join(stale)}."
        )
    missing += _without_results(summary, models, data)
    drawn = attempt("There are no figures", [], read_figures, figures)
    written, texts = list[Generations](), list[Texts]()
    for manifest in manifests:
        lost = f"The texts of {manifest['name']} cannot be shown"
        written += attempt(lost, [], read_generations, data, [manifest], show_text=show_text)
        lost = f"The texts that {manifest['name']} was asked for cannot be listed"
        texts += attempt(lost, [], read_texts, data, manifest, summary, show_text=show_text)
    samples, by_token, unreadable = read_browser(data, models, manifests, show_text=show_text)
    theory = read_theory(data, models)
    lost, scored = "The scorers' results cannot be shown", (data / "localization.parquet").exists()
    graded = attempt(lost, None, read_localized, data) if scored else None
    blind = tasks / "baselines.json"
    return Results(
        study,
        summary,
        manifests,
        drawn,
        evidence,
        judged,
        thresholds or Thresholds(),
        json.loads(blind.read_text(encoding="utf-8")) if blind.exists() else {},
        written,
        samples,
        by_token,
        theory_sections(summary, evidence, theory),
        graded,
        [*missing, *theory.missing, *unreadable],
        (data / "mitigations.parquet").exists(),
        texts,
        attempt("Samples cannot be read", False, are_given, data, [of for _, of in models]),
    )


def write_page(
    study: str,
    models: Sequence[tuple[str, str]],
    data: Path,
    tasks: Path,
    reports: Path,
    provenance: Mapping[str, object],
    **shown: Any,
) -> None:
    """Write the page, its appendices, ``numbers.json``, ``provenance.json`` and CSV tables.

    They are written into `reports`, ``reports/STUDY``, with the folder ``figures`` that
    `figures.write_figures` wrote. `provenance` is what determines the study, by heading; see
    `provenance.collect`. All else is as for `read_results`.

    Raises:
        InputError: the summary, the evidence or the verdicts are missing or do not fit. The page
            lists whatever else is missing.
    """
    results = read_results(study, models, data, tasks, reports / "figures", **shown)
    made = collect(study, data, results.manifests, provenance)
    numbers = Numbers()
    main, of_theory = numbered(results.figures, results.theory)
    figures = [*main, *of_theory]
    tables_read = results.summary, results.evidence, results.judged
    for name, html in (  # in the order in which numbers.json lists them
        ("index.html", render(results, numbers)),
        ("theory.html", render_theory(study, results.theory, of_theory, numbers)),
        ("numbers.html", render_numbers(study, *tables_read, figures, numbers)),
        ("provenance.html", render_provenance(study, made, results.manifests)),
    ):
        write_text(reports / name, html)
    numbers.write(reports / "numbers.json")
    # all in ASCII: a name may hold characters that a file cannot
    write_text(reports / "provenance.json", json.dumps(made, indent=2, default=str) + "\n")
    with atomic(reports / "tables", directory=True) as temporary:
        blocks = pl.col("blocks").cast(pl.List(pl.String)).list.join(" ")  # CSV has no lists
        results.summary.with_columns(blocks).write_csv(temporary / "summary.csv")
        results.evidence.write_csv(temporary / "evidence.csv")
        results.verdicts.write_csv(temporary / "verdicts.csv")
        write_text(temporary / "figures.bib", bibtex(study, figures, made["git"]))
        if results.texts:
            named = [t.frame.with_columns(model=pl.lit(t.model)) for t in results.texts]
            pl.concat(named, how="diagonal").write_csv(temporary / "texts.csv")


def render(results: Results, numbers: Numbers | None = None) -> str:
    """The page as HTML; `numbers` records the numbers that it shows."""
    summary, manifests, judged = results.summary, results.manifests, results.judged
    given, modelled = results.given, facts.models(summary, manifests, results.evidence)
    shares, pooled = kept(results.evidence, pooled=False), kept(results.evidence)
    main, _ = numbered(results.figures, results.theory)
    sections = dict[str, list[tuple[str, PageFigure]]]()
    for label, figure in main[1:]:
        sections.setdefault(figure.section, []).append((label, figure))
    located = sections.pop(LOCALIZATION, [])
    labels = {section: [label for label, _ in figures] for section, figures in sections.items()}
    return template("page.html.jinja", numbers, given=given).render(
        memorized="samples" if given else "memorized samples",
        controls="control" in summary["split"],
        **vars(results),
        finding=overview.finding(summary, pooled, results.evidence),
        paper=_paper(judged, results.graded),
        text=_text(manifests),
        facts=facts.overview(summary, manifests, results.samples),
        seeds=facts.seeds(manifests),
        heatmaps=overview.heatmaps(summary, pooled),
        shades=[str(shade) for shade in range(overview.SHADES + 1)],
        models=([unclaimed(head) if given else head for head in modelled[0]], modelled[1]),
        benchmarks=facts.benchmarks(summary, results.blind),
        categorized=summary["category"].count() > 0,
        without_interval=facts.without_interval(summary),
        findings=results.shown,
        strips=strips,
        confidence=Number("claims/confidence", 1 - results.thresholds.significance, unit=SHARE),
        lead=main[0] if main else None,
        sections=sections,
        located=located,
        localization=LOCALIZATION,
        edits=EDITS_IN_WORDS,
        crosswalk=crosswalk(judged, labels) if results.shown else [],
        collapsed=collapse(results.written),
        samples_data=embedded([family.data() for family in results.samples]),
        open=OPEN,
        states=states,
        signs=SIGNS,
        explorer=embedded(choices(summary, shares)),
    )


def _text(manifests: Sequence[Mapping[str, object]]) -> str:
    """The kind of text that the models learned: generated, planted, real or unknown.

    A model whose manifest is missing says nothing of it; the others decide.
    """
    known = [manifest for manifest in manifests if manifest.keys() > {"name", "family"}]
    if not known:
        return "unknown"
    if any(map(pretrained, known)):
        return "planted"
    return "generated" if all(map(trained_here, known)) else "real"


def _paper(judged: Sequence[Finding], graded: Localized | None) -> dict[str, Any]:
    """How the paper's claims fared: the first of them, and the counts of the verdicts on all.

    Empty for a study that localizes and judges no claim of the paper.
    """
    of_paper = [finding for finding in judged if finding.of_paper]
    words = [finding.word for finding in of_paper]
    if graded and set(words) == {"not measured"}:
        return {}
    undecided = [finding for finding in of_paper if finding.word == "undecided"]
    hopeless = [finding for finding in undecided if finding.short or finding.lacks]

    def claims(name: str, count: int) -> Number:
        return Number(f"claims/{name}", count, unit="claims", table="verdicts")

    return {
        "first": judged[0],
        "survives": [
            edits
            for edits, (verdict, _) in judged[0].edits.items()
            if SUPPORTED in dict(verdict.values["counts"])
        ],
        "perplexity": any(c.row["condition"] == "perplexity_growth" for c in judged[0].conditions),
        "hopeless": claims("hopeless", len(hopeless)),
        "claims": claims("paper", len(words)),
        "counts": [
            (claims(f"paper/{word}", words.count(word)), word)
            for word in (*VALUES, "not measured")
            if word in words
        ],
    }


def numbered(
    figures: Sequence[PageFigure], theory: Sequence[TheorySection]
) -> tuple[Numbered, Numbered]:
    """The figures of the main page and those of the theory, each with its number.

    Figures of one section of the main page, of which it shows one at a time, share a number and
    differ by a letter: 2a, 2b; after z come aa, bb, ….
    """
    titles = {section.title for section in theory}
    by_section = dict[str, list[PageFigure]]()
    of_theory = list[PageFigure]()
    for figure in figures:
        if figure.section in titles:
            of_theory.append(figure)
        else:
            by_section.setdefault(figure.section, []).append(figure)
    labelled = list[tuple[str, PageFigure]]()
    for number, members in enumerate(by_section.values(), start=1):
        for i, figure in enumerate(members):
            letter = ascii_lowercase[i % 26] * (1 + i // 26) if len(members) > 1 else ""
            labelled.append((f"{number}{letter}", figure))
    return labelled, [(str(i), f) for i, f in enumerate(of_theory, start=len(by_section) + 1)]


def read_figures(folder: Path) -> list[PageFigure]:
    """The figures of a folder in the order of its index.

    Raises:
        InputError: the index or a file that it names is not there.
    """
    try:
        told = (folder / FIGURES_INDEX).read_text(encoding="utf-8")
        return [
            PageFigure(
                **words,
                svg=(folder / f"{words['name']}.svg").read_text(encoding="utf-8"),
                data=pl.read_csv(folder / f"{words['name']}.csv", infer_schema_length=None),
            )
            for words in json.loads(told, object_hook=from_json)
        ]
    except OSError as error:
        raise bad_input(
            what=str(folder),
            got=str(error),
            expected=f"the figures that {FIGURES_INDEX} names, as SVG and CSV",
            remedy="run the figures stage again",
        ) from error


def _without_results(
    summary: pl.DataFrame, models: Sequence[tuple[str, str]], data: Path
) -> list[str]:
    """The models and benchmarks that the summary does not have, each with the likely reason."""
    missing = []
    tasks = set(views.tasks(views.benchmarks(summary)))
    for name, _ in models:
        rows = summary.filter(model=name)
        table = data / "memorization" / f"{name}.parquet"
        if not rows.height:
            why = (
                "its tables are there, so the summary is older than they are, or left them out"
                if table.exists()
                else f"{table} is missing, so its stage failed or has not run"
            )
            missing.append(f"{name} has no results: {why}.")
        elif absent := sorted(tasks - set(rows["task"])):
            missing.append(f"{name} has no results of {', '.join(absent)}.")
    return missing
