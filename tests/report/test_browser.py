"""The page in a real browser: with and without scripts, light and dark, narrow, printed.

Skipped where no Chromium is installed: ``apt-get install chromium``.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, Route, sync_playwright
from tokenizers import Tokenizer, decoders, models

from pipeline.analysis import aggregate
from pipeline.interventions.interventions import BASELINE
from pipeline.measure import metrics
from pipeline.report import figures
from pipeline.report import page as report
from pipeline.workflow import tables
from tests.analysis import synthetic, synthetic_theory

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"
)

WRITTEN = tuple[Path, list[tuple[str, str]]]
WIDE, NARROW = {"width": 1366, "height": 768}, {"width": 390, "height": 800}
SHORT = {"width": 1366, "height": 600}
BESIDE = ("theory", "numbers", "provenance")
SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(written: WRITTEN, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the page of a generated study whose broken continuations have wrong tokens."""
    root, named = written
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(root / "data", folder / "data")
    for name, _ in named:
        path = folder / "data" / "memorization" / f"{name}.parquet"
        frame = tables.read(path, metrics.MEMORIZATION)
        right = pl.col("continuation")
        mended = pl.when("exact_match").then(right).otherwise(right.list.reverse())
        tables.write(frame.with_columns(mended), path, metrics.MEMORIZATION, {})
    for name, _ in named:
        _tokenizer().save(str(folder / "data" / "checkpoints" / name / "tokenizer.json"))
    sidecar = _parent(folder / "data" / "cost" / "memorization" / f"{named[0][0]}.json")
    sidecar.write_text(json.dumps({"wall_seconds": 1.5, "device": "cpu", "events": {"n": 2}}))
    report.write_page(
        "tiny",
        named,
        folder / "data",
        folder / "tasks",
        root / "figures",
        folder / "index.html",
        folder / "tables",
        {"commands": ["make run"], "versions": {"torch": "2.13.0"}},
    )
    return (folder / "index.html").as_uri()


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the page of a study as large as `tiny`: four models, theory, texts as tokens."""
    root = tmp_path_factory.mktemp("four")
    made = synthetic.study()
    named = made.write(root / "data")
    synthetic_theory.write(root / "data", synthetic.MODELS)
    for name, _ in named:
        _tokenizer().save(str(root / "data" / "checkpoints" / name / "tokenizer.json"))
    summary = root / "data" / "summary.parquet"
    aggregate.write_summary("tiny", named, root / "data", summary)
    experiments = list(synthetic_theory.experiments())
    theory: dict[str, Any] = {"divergence": True, "experiments": experiments}
    figures.write_figures(summary, root / "figures", root / "data", **theory)
    report.write_page(
        "tiny",
        named,
        root / "data",
        root / "tasks",
        root / "figures",
        root / "index.html",
        root / "tables",
        {"commands": ["make run"], "versions": {"torch": "2.13.0"}},
        **theory,
    )
    return (root / "index.html").as_uri()


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    return path


def _tokenizer() -> Tokenizer:
    """One word a token, some of which a page could stumble over."""
    words = [f" w{i}" for i in range(640)]
    words[:4] = ["<script>alert(1)</script>", "\u202e", "\n", "</script><b>"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, words[0]))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


class Visit:
    """A page with all that it said and asked for."""

    def __init__(self, browser: Browser, address: str, **context: object) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(**{"viewport": WIDE, **context})
        self.context.set_default_timeout(10_000)
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.route("**/*", self._request)
        self.page.goto(address)

    def _request(self, route: Route) -> None:
        self.requests.append(route.request.url)
        route.continue_()

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.complaints == []
        assert len(self.requests) == 1, self.requests


def _beside(address: str, name: str) -> str:
    """The address of a page beside the main one."""
    return address.replace("index.html", f"{name}.html")


@pytest.fixture(scope="module")
def numbers(chromium: Browser, address: str) -> Iterator[Page]:
    """The page of numbers, for tests that do not mind one another."""
    with Visit(chromium, _beside(address, "numbers")) as page:
        yield page


@pytest.fixture(scope="module")
def seen(chromium: Browser, address: str) -> Iterator[Page]:
    """The page with its scripts, for tests that do not mind one another."""
    with Visit(chromium, address) as page:
        yield page


def _numbers_behind(page: Page, figure: int) -> Locator:
    """The opened table of a figure's data."""
    region = page.locator(f"[aria-label='The numbers behind figure {figure}']")
    region.locator("xpath=ancestor::details").evaluate("details => { details.open = true; }")
    return region


def test_tables_sort(numbers: Page) -> None:
    region = _numbers_behind(numbers, 1)
    header = region.get_by_role("columnheader", name="kept")
    column = header.evaluate("header => header.cellIndex")
    for direction in ("ascending", "descending"):
        header.get_by_role("button").click()
        region.locator(f"th[aria-sort={direction}]").wait_for()
        numbers.wait_for_timeout(50)  # the library sorts a moment after it marks the column
        cells = region.locator(f"tbody tr > :nth-child({column + 1})").all_text_contents()
        values = [float(cell) for cell in cells]
        assert values == sorted(values, reverse=direction == "descending")
        assert len(set(values)) > 5


def test_intervals_sort_by_their_estimate_and_missing_last(seen: Page) -> None:
    keys = {"98.4% [94.5, 99.6]": "98.4", "1,234": "1234", "–": "", "-0.5": "-0.5"}
    keys |= {"2.5e+07": "2.5e+07", "block-03": "block-03", "tiny": "tiny"}
    assert {text: seen.evaluate("text => sortKey(text)", text) for text in keys} == keys


def test_tables_filter(numbers: Page) -> None:
    region = _numbers_behind(numbers, 2)
    tools = region.locator("xpath=preceding-sibling::div[1]")
    tools.get_by_label("Rows with").fill("block-03 acc")
    rows = region.locator("tbody tr:visible")
    assert rows.count() == 1
    assert "block-03" in rows.first.inner_text()
    assert re.fullmatch(r"1 of \d+ rows", tools.locator("output").inner_text())
    tools.get_by_label("Rows with").fill("")
    assert rows.count() > 9


def test_the_lead_figures_rows_are_found_by_their_intervention(numbers: Page) -> None:
    region = _numbers_behind(numbers, 1)
    region.locator("xpath=preceding-sibling::div[1]").get_by_label("Rows with").fill("block-05")
    found = region.locator("tbody tr:visible").all_inner_texts()
    assert found
    assert all("block-05" in row for row in found)


def test_marks_have_tooltips(chromium: Browser, address: str) -> None:
    with Visit(chromium, address) as page:
        drawn = page.locator(".plot > svg").first
        drawn.scroll_into_view_if_needed()
        page.wait_for_timeout(200)  # scrolling hides tooltips
        mark = drawn.locator("title").filter(has_text="block 3, tiny-neo-8, exact match:")
        words = mark.first.text_content()
        box = mark.first.locator("xpath=..").bounding_box()
        assert words
        assert box
        tip = page.locator(".tip")
        assert tip.is_hidden()
        page.mouse.move(box["x"] + 6, box["y"] - 2)  # beside it is near enough
        assert tip.inner_text() == words
        page.keyboard.press("Escape")
        assert tip.is_hidden()


def test_every_figure_names_its_marks(chromium: Browser, address: str, written: WRITTEN) -> None:
    with Visit(chromium, address, java_script_enabled=False) as page:
        drawn = page.locator(".plot > svg")
        counts = [drawn.nth(i).locator("title").count() for i in range(drawn.count())]
    expected = len(report.read_figures(written[0] / "figures"))
    assert len([count for count in counts if count > 4]) == expected


@pytest.mark.slow
def test_one_model_at_a_time_and_all_without_scripts(chromium: Browser, four: str) -> None:
    with Visit(chromium, four) as page:
        section = page.locator("section[aria-labelledby=memorization-against-benchmarks]")
        assert section.locator("figure:visible").count() == 1
        section.get_by_label("Model or family").select_option(label="tiny-neo-12")
        assert section.locator("figure:visible").count() == 1
        assert "tiny-neo-12" in section.locator("figcaption:visible").inner_text()
        drawn = section.locator("svg:visible")
        box = drawn.bounding_box()
        assert box
        assert box["height"] > 100
        heat = page.locator("section[aria-labelledby=overview]")
        heat.locator(".tools select").first.select_option(label="tiny-pythia-12")
        assert heat.locator(".heat tbody:visible tr").count() == 13
    with Visit(chromium, four, java_script_enabled=False) as page:
        section = page.locator("section[aria-labelledby=memorization-against-benchmarks]")
        assert section.locator("figure:visible").count() == 4
        assert page.locator(".heat:visible").count() == 4


def test_a_choice_that_a_model_does_not_have_is_said_to_be_reset(
    chromium: Browser, four: str
) -> None:
    with Visit(chromium, four) as page:
        tools = page.locator("[data-family]").first
        tools.get_by_label("Model").select_option(label="tiny-pythia-12")
        tools.get_by_label("Bypassed").select_option("block-10")
        assert "no block-10" not in tools.locator("output").inner_text()
        tools.get_by_label("Model").select_option(label="tiny-pythia-8")
        assert "tiny-pythia-8 has no block-10" in tools.locator("output").inner_text()


def test_the_page_is_small(chromium: Browser, four: str) -> None:
    with Visit(chromium, four) as page:
        assert page.evaluate("document.documentElement.scrollHeight") <= 12_000
        assert page.evaluate("document.querySelectorAll('*').length") < 8_000
    assert Path(four.removeprefix("file://")).stat().st_size < 1_000_000


def test_navigation_fits_a_short_screen(chromium: Browser, four: str) -> None:
    with Visit(chromium, four, viewport=SHORT) as page:
        page.evaluate("window.scrollTo(0, 3000)")
        box = page.get_by_role("navigation").bounding_box()
        assert box
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= SHORT["height"]


def test_samples_under_a_chosen_intervention(chromium: Browser, address: str) -> None:
    with Visit(chromium, address) as page:
        section = page.locator("section[aria-labelledby=samples]")
        sample = section.locator("details.sample").first
        sample.locator("summary").click()
        lines = sample.locator(".continuation")
        before = lines.nth(1).inner_html()
        assert "tiny-neo-8, baseline: all 16 tokens right" in lines.first.inner_text()
        assert page.evaluate("getComputedStyle(document.querySelector('mark')).textDecorationLine")
        section.get_by_label("Bypassed").select_option("quartile-1")
        heading, tokens = lines.nth(1).inner_text().split("\n", 1)
        right = re.match(r"tiny-neo-8, quartile-1: (\d+) of 16 tokens right; wrong: ", heading)
        assert right
        assert lines.nth(1).locator("mark").count() == 16 - int(right[1])
        assert " w" in tokens
        section.get_by_label("Bypassed").select_option("")
        assert lines.nth(1).inner_html() == before  # the script says what the page said without
        section.locator("details.more > summary").last.click()
        control = section.locator("details.sample", has_text="control").last
        control.locator("summary").click()
        said = control.locator(".continuation").nth(1).inner_text()
        assert "block-" in said.split(":")[0], "though no block makes it worse than it is"
        assert "of 12 memorized" in section.locator(".tools output").inner_text()


def test_all_is_there_without_scripts(chromium: Browser, address: str) -> None:
    with Visit(chromium, address) as page:
        words = [table.text_content() for table in page.locator("table tbody").all()]
    with Visit(chromium, address, java_script_enabled=False) as page:
        assert [table.text_content() for table in page.locator("table tbody").all()] == words
        assert page.locator(".tools").first.is_hidden()
        assert page.locator("th button").count() == 0
        assert page.locator(".plot > svg").first.is_visible()
        page.locator("details.sample summary").first.click()
        assert page.locator("details.sample mark").first.is_visible()
        assert page.locator(".plot use > title").count() > 50


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_axe_finds_nothing(
    chromium: Browser, address: str, scheme: str, viewport: dict[str, int]
) -> None:
    with Visit(chromium, address, color_scheme=scheme, viewport=viewport) as page:
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        found = Axe().run(page).response
        assert "color-contrast" in [rule["id"] for rule in found["passes"]]
        _without_violation(found)


@pytest.mark.parametrize("name", BESIDE)
def test_axe_finds_nothing_beside(chromium: Browser, four: str, name: str) -> None:
    with Visit(chromium, _beside(four, name), viewport=NARROW) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
        _without_violation(Axe().run(page).response)


def _without_violation(found: dict[str, Any]) -> None:
    violations = found["violations"]
    assert [(v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in violations] == []


def test_light_and_dark_differ_and_both_have_contrast(chromium: Browser, address: str) -> None:
    pictures, lightness = {}, {}
    for scheme in SCHEMES:
        with Visit(chromium, address, color_scheme=scheme) as page:
            pictures[scheme] = page.screenshot()
            colour = "name => getComputedStyle(document.body).getPropertyValue(name).trim()"
            palette = {
                name: _luminance(page.evaluate(colour, f"--{name}"))
                for name in ("page", "card", "ink", "muted", "accent", "shown", "partly", "not")
            }
            backs = {n: _luminance(page.evaluate(colour, f"--{n}-back")) for n in ("partly",)}
            lightness[scheme] = palette["page"]
            for name in ("ink", "muted", "accent", "shown", "partly", "not"):
                for back in (palette["page"], palette["card"]):
                    assert _contrast(palette[name], back) >= 4.5, (scheme, name)
            assert _contrast(palette["ink"], backs["partly"]) >= 4.5
    assert pictures["light"] != pictures["dark"]
    assert lightness["light"] > 0.8
    assert lightness["dark"] < 0.1


def _luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it, of ``#rrggbb``."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def test_a_narrow_page_does_not_scroll_sideways(chromium: Browser, address: str) -> None:
    with Visit(chromium, address, viewport=NARROW) as page:
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_it_prints(chromium: Browser, address: str, tmp_path: Path) -> None:
    with Visit(chromium, address) as page:
        page.emulate_media(media="print")
        assert page.locator("nav").is_hidden()
        assert page.locator(".tools").first.is_hidden()
        assert page.locator("figure svg").first.is_visible()
        printed = page.pdf(path=tmp_path / "page.pdf", format="A4")
        assert printed.startswith(b"%PDF")
        assert len(printed) > 50_000


def test_headings_navigate(seen: Page) -> None:
    seen.get_by_role("navigation").get_by_role("link", name="Sample by sample").click()
    assert seen.url.endswith("#samples")
    assert seen.locator("h2#samples").is_visible()
    assert BASELINE.name in (seen.locator("section[aria-labelledby=samples]").text_content() or "")
