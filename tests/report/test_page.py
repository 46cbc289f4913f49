"""The page: whole, self-contained, and safe from whatever stands in the data."""

import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from pipeline.analysis import views
from pipeline.analysis.aggregate import aggregate
from pipeline.analysis.evidence import EVIDENCE, evidence
from pipeline.analysis.kept import kept
from pipeline.analysis.rows import SUMMARY
from pipeline.analysis.spread import quantiles
from pipeline.analysis.text import number, percent_interval, slug, visible
from pipeline.analysis.verdicts import CONTRADICTED, SUPPORTED, UNDECIDED, VERDICTS, verdicts
from pipeline.interventions.interventions import SWEEP, Group
from pipeline.report import appendices, browser, colours, facts, figures, markup, page, style
from pipeline.report.citing import bibtex
from pipeline.report.claims import Finding, findings
from pipeline.report.explorer import choices
from pipeline.report.generations import Generations
from pipeline.report.markup import plain
from pipeline.report.strips import strips
from pipeline.report.theory_sections import TheorySection
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests.analysis import synthetic

PROVENANCE = {
    "commands": ["git clone …", "make run"],
    "params": {"seed": 0, "models": [{"name": "tiny-pythia-8"}]},
    "versions": {"torch": "2.13.0"},
}
SCHEMAS = {"summary": SUMMARY, "evidence": EVIDENCE, "verdicts": VERDICTS}


@pytest.fixture(scope="module")
def pages(written) -> dict[str, str]:
    root, models = written
    page.write_page("tiny", models, root / "data", root / "tasks", root, PROVENANCE)
    names = ("index", "numbers", "theory", "provenance")
    return {name: (root / f"{name}.html").read_text(encoding="utf-8") for name in names}


@pytest.fixture(scope="module")
def html(pages: dict[str, str]) -> str:
    return pages["index"]


@pytest.fixture(scope="module")
def small(written) -> pl.DataFrame:
    """The summary of the study that is written."""
    return tables.read(written[0] / "data" / "summary.parquet", SUMMARY)


class Outline(HTMLParser):
    """Every tag with its attributes, the text, and the tags left open."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.open = "", list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in self.VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_tags_are_balanced_and_ids_unique(html):
    outline = Outline(html)
    assert outline.open == []
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = re.findall(r"url\(#([^)]+)\)", html)
    used += [
        (attributes.get("href") or attributes.get("xlink:href") or "#")[1:]
        for tag, attributes in outline.tags
        if tag == "use"
    ]
    assert used
    assert set(used) <= set(ids)


def test_links_lead_to_what_is_there(pages, written):
    root, _ = written
    outlines = {f"{name}.html": Outline(text) for name, text in pages.items()}
    ids = {name: {a.get("id") for _, a in each.tags} for name, each in outlines.items()}
    links = [str(a["href"]) for tag, a in outlines["index.html"].tags if tag == "a"]
    assert len(links) > 50
    for link in links:
        file, _, anchor = link.partition("#")
        assert (root / (file or "index.html")).exists(), link
        assert not anchor or anchor in ids[file or "index.html"], link


def test_headings_are_unique_and_navigate_and_tables_have_captions(pages):
    for text in (pages["index"], pages["numbers"], pages["provenance"]):
        headings = re.findall(r"<h[1-3][^>]*>(.*?)</h[1-3]>", text)
        assert len(headings) == len(set(headings))
        assert text.count("<table") == text.count("<caption>")
    html = pages["index"]
    headings = [a["id"] for tag, a in Outline(html).tags if tag == "h2"]
    links = re.findall(r'href="([^"]*)"', html[html.index("<nav") : html.index("</nav>")])
    assert links == [f"#{heading}" for heading in headings]


def test_the_crosswalk_names_every_figure_of_the_paper(html):
    section = html[html.index('id="crosswalk"') : html.index('id="limits"')]
    headings = re.findall(r'<th scope="row">(.*?):', section)
    figures_of_paper = [each for each in headings if not each.startswith("Eq.")]
    parts = ", ".join(figures_of_paper).replace("A", "").split(", ")
    ends = [part.partition("–")[::2] for part in parts]
    named = {i for first, last in ends for i in range(int(first), int(last or first) + 1)}
    assert named == set(range(1, 23))


def test_only_the_pages_own_script_may_run(html):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    assert "default-src 'none'" in policy[1]
    running = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(running) == 1
    assert f"script-src '{markup.content_hash(running[0])}';" in policy[1]
    assert html.count("<script") == 1 + html.count('<script type="application/json"')
    assert "innerHTML" not in running[0]
    for word in ("fetch(", "XMLHttpRequest", "import(", "WebSocket", "eval("):
        assert word not in running[0]


def judged(rows: pl.DataFrame) -> list[Finding]:
    return findings(verdicts(rows), rows)


def test_all_sentences_figures_and_tables_are_there(pages, written, small):
    data, outline = written[0] / "data", Outline(pages["index"])
    evidence = tables.read(data / "evidence.parquet", EVIDENCE)
    for finding in judged(evidence):
        for words in (*(quantity for quantity, _ in finding.ranges), finding.verdict):
            assert markup.plain(words) in outline.text
    plots = figures.plots(small, evidence, over_samples=quantiles(small, data))
    drawn = [a["aria-label"] for tag, a in outline.tags if tag == "svg" and "xmlns" in a]
    assert [markup.plain(plot.words()["alt"]) for plot in plots] == drawn
    labelled, _ = page.numbered(page.read_figures(written[0] / "figures"), [])
    numbers = Outline(pages["numbers"]).text
    for (label, _), plot in zip(labelled, plots, strict=True):
        assert f"The numbers behind figure {label} ({plot.data.height} rows)" in numbers
        assert f"Figure {label}. " in outline.text
    baseline = small.filter(metric="exact_match", split="memorized", intervention="baseline")
    cell = percent_interval(*baseline.select("value", "low", "high").row(0))
    estimate, interval = cell.split(" ", 1)
    assert f'>{estimate} <span class="interval">{interval}</span></data></td>' in pages["index"]
    for text in ("git checkout", "make run", "2.13.0", "preferred-citation"):
        assert text in Outline(pages["provenance"]).text
    for text in (
        "1 for each configuration",
        "Dependence, not storage",
        "lm-eval gives no standard error: tiny_wikitext.",
    ):
        assert text in outline.text


def test_figures_count_without_a_jump():
    """Those of one section, of which the page shows one at a time, share a number."""

    def labels(*sections: str) -> list[list[str]]:
        shown = [appendices.PageFigure("f", each, *[""] * 6, pl.DataFrame()) for each in sections]
        parts = page.numbered(shown, [TheorySection("theory", [], [])])
        return [[label for label, _ in part] for part in parts]

    own, theirs = labels("lead", "one", "one", "two", "theory", "theory")
    assert (own, theirs) == (["1", "2a", "2b", "3"], ["4", "5"])
    assert labels(*["many"] * 28)[0][-3:] == ["1z", "1aa", "1bb"]


@pytest.mark.usefixtures("pages")
def test_the_table_of_numbers(written, small):
    schema = {**small.schema, "blocks": pl.String}
    saved = pl.read_csv(written[0] / "tables" / "summary.csv", schema=schema)
    blocks = pl.col("blocks").fill_null("").str.split(" ").list.filter(pl.element() != "")
    assert saved.with_columns(blocks.cast(pl.List(pl.UInt16))).equals(small)


HOSTILE = "</script><script>alert(1)</script>&\"'\u202e\u0007$x_1$\N{CJK UNIFIED IDEOGRAPH-4E2D}"


def _line(intervention: str, text: str) -> dict[str, object]:
    """One continuation."""
    numbers = {"baseline_perplexity": 1.5, "distinct_bigrams": 0.5}
    return {"intervention": intervention, "same": text, "other": text, **numbers}


def test_hostile_content_stays_text(tmp_path):
    study = synthetic.study(
        models={HOSTILE: (HOSTILE, 4)}, accuracies={HOSTILE: (0.25, 0.7)}, per_copies=8
    )
    summary, rows = aggregate(study.models), evidence(study.models)
    drawn = []
    for plot in figures.plots(summary, rows)[:3]:
        placed = style.save(figures.figure(plot), tmp_path, plot.name)
        svg = (tmp_path / f"{plot.name}.svg").read_text(encoding="utf-8")
        shown = {"svg": svg, "data": plot.data, "marks": placed}
        drawn.append(page.PageFigure(**plot.words(), **shown))
    provenance = {
        HOSTILE: {HOSTILE: HOSTILE + "\ud800"},
        "commands": [HOSTILE],
        "x": [HOSTILE],
        "git": {"commit": HOSTILE, "remote": HOSTILE, "dirty": True, "changed": [HOSTILE] * 9},
        "runs": {HOSTILE: {HOSTILE: {"device": HOSTILE, "events": {HOSTILE: HOSTILE}}}},
        "citation": HOSTILE,
    }
    manifests = list(study.manifests.values())
    own = {"baseline": [5, 6], "block-00": [6, 6]}
    of_model = {HOSTILE: {name: browser.row([5, 6], tokens) for name, tokens in own.items()}}
    split = ("memorized", 2, [4, 5], [5, 6], (2, 2), {HOSTILE: (1, 1)}, of_model)
    sample = browser.Sample(1, HOSTILE, *split)
    words = {4: HOSTILE, 5: "\n\ud800", 6: "y" * 10**6}
    samples = [browser.Family(HOSTILE, [sample], {HOSTILE: list(own)}, words)]
    written = [Generations(HOSTILE, HOSTILE, HOSTILE, [_line(HOSTILE, HOSTILE)])]
    results = page.Results(HOSTILE, summary, manifests, drawn, written=written, samples=samples)
    html = page.render(replace(results, missing=[HOSTILE]))
    numbered = [(str(i), each) for i, each in enumerate(drawn, 1)]
    made_of = appendices.render_provenance(HOSTILE, provenance, manifests)
    numbers = appendices.render_numbers(HOSTILE, summary, rows, judged(rows), numbered)
    for made in (html, made_of, numbers):
        scripts = made.count('<script type="application/json"')
        assert made.count("<script>") == 1
        assert made.count("<script") == made.count("</script>") == 1 + scripts
        assert not re.search("[\u202e\u0007\ud800]", made)
        assert Outline(made).open == []
    assert "\\ud800" in Outline(made_of).text
    assert visible(HOSTILE) in Outline(html).text
    assert "↵" in html, "the end of a line within a token"
    assert len(html) < 10**6


def test_lines_without_end_are_cut(summary):
    endless = "x" * 2**20
    provenance = {"commands": [endless], endless: endless, "p": {endless: endless}, "q": [endless]}
    written = [Generations(endless, endless, "greedy", [_line("baseline", endless)])]
    for html in (
        page.render(page.Results(endless, summary, written=written, missing=[endless])),
        appendices.render_provenance(endless, provenance, []),
    ):
        assert len(html) < 500_000
        assert "… (1,048,576 characters in all)" in html
    several = "\n".join(["short", endless, "y" * markup.LINE_CHARACTERS])
    cut = markup.clean(several).split("\n")
    assert cut[0] == "short"
    assert len(cut[1]) < markup.LINE_CHARACTERS + 50
    assert cut[2] == "y" * markup.LINE_CHARACTERS


def copied(written, folder: Path, **changed: pl.DataFrame) -> Path:
    """The data of the study, of which these tables changed, below `folder`."""
    before, data = written[0] / "data", folder / "data"
    for name in ("samples", "checkpoints"):
        shutil.copytree(before / name, data / name)
    for name, schema in SCHEMAS.items():
        if name in changed:
            tables.write(changed[name], data / f"{name}.parquet", schema, {})
        else:
            shutil.copy(before / f"{name}.parquet", data)
    return data


def test_what_is_missing_is_said(tmp_path, written, small):
    """A model without anything, tables that are gone or damaged: still a page."""
    data = copied(written, tmp_path)
    partial = {"stale": ["memorization@lost-nowhere"]}
    tables.write(small, data / "summary.parquet", SUMMARY, partial)
    (data / "samples" / "lost.parquet").write_bytes(b"PAR1 and no more")
    (data / "generations").mkdir()
    (data / "generations" / "tiny-neo-8.parquet").write_bytes(b"")
    models = [*written[1], ("nowhere", "lost")]
    page.write_page("tiny", models, data, tmp_path / "tasks", tmp_path, {})
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    text = Outline(html).text
    for sentence in (
        "Not all of the study is here.",
        "so the page shows their earlier results: memorization@lost-nowhere.",
        "nowhere has no checkpoint: ",
        "nowhere has no results: ",
        "nowhere.parquet is missing, so its stage failed or has not run.",
        "There are no figures: ",
        "The texts of tiny-neo-8 cannot be shown: ",
        "The samples of lost cannot be shown: ",
        "tiny-neo-8 has no continuations to show: ",
    ):
        assert sentence in text
    assert '<th scope="row">nowhere</th>' in html
    with pytest.raises(InputError, match="run the figures stage again"):
        page.read_figures(tmp_path)


SWAPPED = {"low": pl.col("high"), "high": pl.col("low")}
REVERSED = {"least": pl.col("most"), "most": pl.col("least")}
NAN = pl.lit(float("nan"))

ALTERED: dict[str, tuple[str, dict[str, pl.Expr], str]] = {
    "ends of the summary": ("summary", SWAPPED, "the interval holds the value"),
    "an end of the summary": ("summary", {"low": NAN}, "the interval holds the value"),
    "values of the summary": ("summary", {"value": NAN}, "the value is a number"),
    "limits of the evidence": ("evidence", REVERSED, "the limits are in order"),
    "errors of the evidence": ("evidence", {"stderr": NAN}, "the standard error is finite"),
    "ends of the verdicts": ("verdicts", SWAPPED, "the interval holds the estimate"),
    "no summary": ("summary", {}, "no row"),
    "no evidence on a model": ("evidence", {}, "without tiny-neo-8"),
}


@pytest.mark.parametrize("case", ALTERED)
def test_numbers_that_cannot_be_make_no_page(tmp_path, written, case):
    name, change, refused = ALTERED[case]
    frame = tables.read(written[0] / "data" / f"{name}.parquet", SCHEMAS[name])
    frame = frame.with_columns(**change) if change else frame.clear()
    data = copied(written, tmp_path, **{name: frame})
    with pytest.raises(InputError, match=refused):
        page.write_page("tiny", written[1], data, tmp_path / "tasks", tmp_path, {})
    assert not (tmp_path / "index.html").exists()


def test_a_model_without_one_benchmark_is_named(written, small):
    root, models = written
    assert page._without_results(small, models, root / "data") == []
    other = small.filter(task="memorization").with_columns(model=pl.lit("other"))
    both = pl.concat([small, other])
    said = page._without_results(both, [*models, ("other", "gpt-neo")], root / "data")
    assert said == ["other has no results of tiny_piqa, tiny_wikitext."]


def test_seeds_are_counted(summary):
    kinds = [{"family": "f", "n_blocks": n, "seed": seed} for n in (8, 12) for seed in (0, 1, 2)]
    for manifests, ends in ((kinds, (3, 3)), (kinds[:4], (1, 3))):
        counted = facts.seeds(manifests)
        assert counted is not None
        assert (counted.low, counted.high) == ends
    not_trained_here = {"name": "m", "family": "pythia", "n_blocks": 6, "seed": None}
    assert facts.seeds([not_trained_here]) is None
    text = Outline(page.render(page.Results("s", summary, [not_trained_here]))).text
    assert "one checkpoint of each model" in text
    assert "one checkpoint each" in text


def test_inline_svg_renames_ids_drops_what_leaks_and_follows_light_and_dark(html):
    drawn = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    for colour in (colours.INK, colours.MUTED, colours.RULE):
        assert not any(colour in svg for svg in drawn)
    assert any("var(--ink)" in svg for svg in drawn)
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        'width="9" height="9"><metadata>x</metadata><style>*{}</style>'
        '<path id="p" style="fill: #1c2127; clip-path: url(#c)"/>'
        '<use href="#p" clip-path="url(#c)"/></svg>'
    )
    assert markup.inline_svg(svg, "f1", 'a "label"') == (
        '<svg xmlns="http://www.w3.org/2000/svg" '
        'role="img" aria-label="a &quot;label&quot;"><path '
        'style="fill: var(--ink); clip-path: url(#c)" id="f1i0"/>'
        '<use href="#f1i0" clip-path="url(#c)"/></svg>'
    )


def test_an_edit_of_ones_own_is_called_by_its_name():
    """And a study may lack the bypass altogether."""
    groups = [Group("each"), Group("each", "zero")]
    [model] = synthetic.study(models={"m": ("gpt-neo", 4)}, per_copies=8, groups=groups).models
    own = "edits/mine.py:halve"
    for edit in (None, "zero"):
        rows = {"summary": aggregate([model]), "evidence": evidence([model])}
        if edit:
            rows = {
                n: of.filter(pl.col("edit").is_null() | (pl.col("edit") == edit))
                for n, of in rows.items()
            }
        rows = {n: of.with_columns(pl.col("edit").replace("zero", own)) for n, of in rows.items()}
        text = Outline(page.render(page.Results("s", **rows))).text
        told = [plain(plot.words()["caption"]) for plot in figures.plots(**rows)]
        assert any(f"{own}: with {own}" in each for each in told) == (not edit)
        assert own in text
        assert ("No block was bypassed alone" in text) == bool(edit)


def test_numbers_and_names_as_text():
    numbers = {1234.5: "1,234", 0.012346: "0.01235", 2.5e7: "2.5e+07", None: "–", 8.0: "8"}
    assert {value: number(value) for value in numbers} == numbers
    assert percent_interval(0.984, 0.945, 0.996) == "98.4% [94.5, 99.6]"
    assert percent_interval(0.984, None, None) == "98.4%"
    assert visible("plain ünïcödé 中") == "plain ünïcödé 中"
    assert visible("a\u202eb\x00c\ud800\n") == "a\\u202eb\\u0000c\\ud800\n"
    assert slug("GPT-Neo 1.3B / <x>") == "gpt-neo-1-3b-x"
    assert slug("中") == "x"


def test_benchmarks_if_any_stand_beside_what_reading_no_context_reaches(small):
    stated = pl.when(task="tiny_piqa").then(0.2512).otherwise(pl.col("chance"))
    blind = {"tiny_piqa": {"unigram": 0.2512, "longest": 0.2467}}
    with_it = page.render(page.Results("s", small.with_columns(chance=stated), blind=blind))
    assert "best without attention" in with_it
    assert "25.1%" in with_it
    assert "best without attention" not in page.render(page.Results("s", small))
    bare = small.filter(task="memorization")  # neither figures nor benchmarks
    html = page.render(page.Results("bare", bare, [{"name": "tiny-pythia-8"}]))
    assert 'id="claims"' not in html, "no table of claims where none is measured"
    assert Outline(html).open == []


def test_the_kind_of_text_is_that_of_the_models_that_are_there(written):
    """A model without a manifest changes neither the badge nor the limitations."""
    data = written[0] / "data"
    results = page.read_results("s", written[1], data, data, data)
    missing = {"name": "lost", "family": "gpt-neo"}
    hub = {"name": "hub", "family": "pythia", "n_blocks": 6, "seed": None, "origin": {"hub": "x"}}
    for more, badge in (([], "generated"), ([missing], "generated"), ([hub], "real")):
        html = page.render(replace(results, manifests=[*results.manifests, *more]))
        assert f'<li class="text">{badge} text</li>' in html
        assert ("A world made for this." in html) == (badge == "generated")
    assert "text unknown" in page.render(replace(results, manifests=[missing]))


def test_the_page_says_which_interventions_ran_and_what_was_decoded():
    groups = [*SWEEP, Group("each", "zero"), Group("heads", "heads")]
    study = synthetic.study(models={"m": ("gpt-neo", 4)}, per_copies=8, groups=groups)
    summary = aggregate(study.models)
    text = Outline(page.render(page.Results("s", summary))).text
    assert (
        "21 per model: baseline, each block alone, each quarter of the blocks, zero of each, "
        "heads of heads"
    ) in text
    assert "Continuations decoded to the end" not in text
    some = pl.when(metric="token_accuracy", split="memorized").then(5).otherwise("n")
    fewer = summary.remove(metric="token_accuracy", split="control").with_columns(n=some)
    text = " ".join(Outline(page.render(page.Results("s", fewer))).text.split())
    assert "Continuations decoded to the end5 memorized, no control samples" in text


def test_a_judged_condition_is_a_mark_of_its_verdict_in_the_zone_if_it_counts(evidence_of_paper):
    """A mark inside the zone has a value that meets its threshold, and no other has."""
    found = judged(evidence_of_paper)
    said = [[(plain(c.says), c) for c in finding.conditions] for finding in found]
    drawn = [(some, s) for some, each in zip(said, found, strict=True) for s in strips(each)]
    seen = 0
    for some, strip in drawn:
        cells = [c for label, c in some if label == strip.label]
        for verdict, name in ((SUPPORTED, "yes"), (CONTRADICTED, "no"), (UNDECIDED, "open")):
            count = sum(cell.row["verdict"] == verdict for cell in cells)
            assert strip.paths[name].count("M") == count
        marks = json.loads(strip.marks)["marks"]
        written = [f"{each.written}: {each.row['verdict']}" for each in cells]
        assert sorted(mark[4] for mark in marks) == sorted(written)
        seen += len(cells)
        places = {mark[4]: mark[5] for mark in marks}
        zone = re.match(r"M([\d.]+) \d+H([\d.]+)", strip.paths["zone"])
        assert zone
        left, right = float(zone[1]), float(zone[2])
        for cell, name in zip(cells, written, strict=True):
            if not math.isfinite(cell.value):
                continue
            x, (low, high) = places[name], cell.zone
            if abs(x - left) > 0.2 and abs(x - right) > 0.2:
                assert (left < x < right) == (low <= cell.value <= high)
            if cell.row["low"] is not None and cell.row["verdict"] == SUPPORTED:
                assert low <= cell.row["low"]
                assert cell.row["high"] <= high
    assert seen > 50
    # a claim that cannot be judged has no strip
    unmeasured = [each for each in judged(evidence([])) if not each.cases]
    assert unmeasured
    assert all(strips(each) == [] for each in unmeasured)


def test_an_entry_for_the_paper_the_software_and_each_figure():
    figure = page.PageFigure("kept", "100% & {more}", "a_b", *[""] * 5, pl.DataFrame())
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


def test_models_edits_and_blocks_can_be_chosen(summary, evidence_of_paper):
    shares = kept(evidence_of_paper, pooled=False)
    assert choices(summary.filter(pl.col("group") != "each"), shares) == []  # no single blocks
    found = choices(summary, shares)
    assert [(each["name"], each["family"]) for each in found] == views.models(summary)
    for each in found:
        rows = views.memorization(summary, "exact_match").filter(model=each["name"])
        single = views.single_blocks(rows)
        blocks = dict(single.select("block", "intervention").iter_rows())
        assert each["edits"] == {"identity": blocks}
        values = dict(single.select("block", "value").iter_rows())
        lowest = min(value for block, value in values.items() if block > 0)
        assert each["start"] == max(b for b, v in values.items() if v == lowest and b > 0)
        assert each["said"]["identity"][3].startswith("exact match ")
        assert f"→ {values[3]:.0%}" in each["said"]["identity"][3]
        assert list(each["said"]["identity"]) == sorted(blocks), "each time in the same order"
        assert len(each["quartiles"]) == len(blocks)
        assert each["quartiles"][0] == "quartile-1"
        assert each["quartiles"][max(blocks)] == "quartile-4"
        assert each["drawn"] == each["name"]


def test_each_edit_of_a_block_says_what_it_leaves():
    groups = [Group("each", "zero"), Group("each", "noise", draws=3), Group("each")]
    [model] = synthetic.study(models={"m": ("pythia", 4)}, per_copies=8, groups=groups).models
    summary = aggregate([model])
    [found] = choices(summary, kept(evidence([model]), pooled=False))
    rows = views.memorization(summary, "exact_match").filter(block=2)
    for edit, value in rows.select("edit", "value").iter_rows():
        if edit != "noise":
            assert f"→ {value:.0%}" in found["said"][edit][2]
    assert list(found["edits"]) == ["identity", "zero", "noise"], (
        "the bypass is what is shown first"
    )
    drawn = rows.filter(intervention="block-02.noise-draw-1")["value"][0]
    assert found["edits"]["noise"][2] == "block-02.noise-draw-1", "the draw that the evidence has"
    assert f"→ {drawn:.0%}" in found["said"]["noise"][2]
