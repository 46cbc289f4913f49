"""The page in a real browser: with and without scripts, light and dark, narrow, printed."""

import json
import re
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import polars as pl
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page
from tokenizers import Tokenizer, decoders, models

from pipeline.analysis import aggregate
from pipeline.interventions.interventions import Group
from pipeline.measure import metrics
from pipeline.report import figures
from pipeline.report import page as report
from pipeline.workflow import tables
from tests.analysis import synthetic, synthetic_theory
from tests.report.conftest import visit

WIDE, NARROW = {"width": 1366, "height": 768}, {"width": 390, "height": 800}
SHORT = {"width": 1366, "height": 600}


@pytest.fixture(scope="module")
def address(written, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the page of a generated study whose broken continuations have wrong tokens."""
    root, named = written
    folder = tmp_path_factory.mktemp("page")
    for name in ("data", "figures"):
        shutil.copytree(root / name, folder / name)
    for name, _ in named:
        path = folder / "data" / "memorization" / f"{name}.parquet"
        frame = tables.read(path, metrics.MEMORIZATION)
        right = pl.col("continuation")
        mended = pl.when("exact_match").then(right).otherwise(right.list.reverse())
        tables.write(frame.with_columns(mended), path, metrics.MEMORIZATION, {})
    sidecar = folder / "data" / "cost" / "memorization" / f"{named[0][0]}.json"
    sidecar.parent.mkdir(parents=True)
    sidecar.write_text(json.dumps({"wall_seconds": 1.5, "device": "cpu", "events": {"n": 2}}))
    return _published(folder, named)


@pytest.fixture(scope="module")
def four(study: synthetic.Study, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the page of a study as large as `tiny`: four models, theory, texts as tokens."""
    root = tmp_path_factory.mktemp("four")
    named = study.write(root / "data")
    synthetic_theory.write(root / "data", synthetic.MODELS)
    aggregate.write_summary("tiny", named, root / "data")
    figures.write_figures(root / "data", root / "figures")
    return _published(root, named)


def _published(root: Path, named: list[tuple[str, str]]) -> str:
    """The address of the page of the study below `root`; it could stumble over some words."""
    words = [f" w{i}" for i in range(640)]
    words[:4] = ["<script>alert(1)</script>", "\u202e", "\n", "</script><b>"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, words[0]))
    tokenizer.decoder = decoders.Fuse()
    for name, _ in named:
        tokenizer.save(str(root / "data" / "checkpoints" / name / "tokenizer.json"))
    made = {"commands": ["make run"], "versions": {"torch": "2.13.0"}}
    report.write_page("tiny", named, root / "data", root / "tasks", root, made)
    return (root / "index.html").as_uri()


def _beside(address: str, name: str) -> str:
    """The address of a page beside the main one."""
    return address.replace("index.html", f"{name}.html")


@pytest.fixture
def page(chromium: Browser, address: str) -> Iterator[Page]:
    """The page as it is opened."""
    with visit(chromium, address) as opened:
        yield opened


def _numbers_behind(page: Page, figure: int) -> tuple[Locator, Locator]:
    """The opened table of a figure's data, and the tools above it."""
    region = page.locator(f"[aria-label='The numbers behind figure {figure}']")
    region.locator("xpath=ancestor::details").evaluate("details => { details.open = true; }")
    return region, region.locator("xpath=preceding-sibling::div[1]")


def test_tables_sort_and_filter(chromium, address):
    """Intervals by their estimate, and missing numbers last."""
    with visit(chromium, _beside(address, "numbers")) as page:
        keys = {"98.4% [94.5, 99.6]": "98.4", "1,234": "1234", "–": "", "-0.5": "-0.5"}
        keys |= {"2.5e+07": "2.5e+07", "block-03": "block-03", "tiny": "tiny"}
        assert {text: page.evaluate("text => sortKey(text)", text) for text in keys} == keys
        region, _ = _numbers_behind(page, 1)
        header = region.get_by_role("columnheader", name="kept")
        column = header.evaluate("header => header.cellIndex")
        count = (
            "window.sorts = 0; document.addEventListener('sort-end', () => { window.sorts += 1; })"
        )
        page.evaluate(count)
        for number, direction in enumerate(("ascending", "descending"), start=1):
            header.get_by_role("button").click()
            page.wait_for_function("number => window.sorts === number", arg=number)
            assert header.get_attribute("aria-sort") == direction
            cells = region.locator(f"tbody tr > :nth-child({column + 1})").all_text_contents()
            values = [float(cell) for cell in cells]
            assert values == sorted(values, reverse=direction == "descending")
            assert len(set(values)) > 5
        region, tools = _numbers_behind(page, 2)
        tools.get_by_label("Rows with").fill("block-03 acc")
        rows = region.locator("tbody tr:visible")
        assert rows.count() == 1
        assert "block-03" in rows.first.inner_text()
        assert re.fullmatch(r"1 of \d+ rows", tools.locator("output").inner_text())
        tools.get_by_label("Rows with").fill("")
        assert rows.count() > 9
        # rows of the lead figure by their intervention, which no other column has
        region, tools = _numbers_behind(page, 1)
        tools.get_by_label("Rows with").fill("block-05")
        found = region.locator("tbody tr:visible").all_inner_texts()
        assert found
        assert all("block-05" in row for row in found)


def test_marks_have_tooltips(page):
    drawn = page.locator("#figure-1 .plot > svg")
    drawn.scroll_into_view_if_needed()
    # scrolling hides tooltips, in the next frame
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    mark = drawn.evaluate(
        """svg => {
          const name = "block 3, tiny-neo-8, exact match:";
          const found = gather(svg).find((mark) => mark.words.startsWith(name));
          const { x, y } = new DOMPoint(found.x, found.y).matrixTransform(svg.getScreenCTM());
          return { words: found.words, x, y };
        }"""
    )
    tip = page.locator(".tip")
    assert tip.is_hidden()
    page.mouse.move(mark["x"] + 6, mark["y"] - 2)  # beside it is near enough
    assert mark["words"] in tip.inner_text().split("\n")
    assert re.search(r"%( \[|$)", mark["words"])
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_the_chosen_block_is_marked_everywhere_and_kept_in_the_address(chromium, address):
    with visit(chromium, address) as page:
        explorer = page.locator("#explorer")
        explorer.get_by_label("Block").focus()
        explorer.get_by_label("Block").select_option("6")
        assert "block=6" in page.url
        assert "→" in explorer.locator("output").inner_text()
        lit = page.locator(".heat:visible tr.at")
        assert lit.locator("th").all_inner_texts() == ["block 6"]
        for i in (1, 2, 3):
            shape = page.locator(f"#figure-{i} .at")
            assert shape.count() == 1, i
            expected = page.locator(f"#figure-{i} svg").evaluate(
                "svg => gather(svg).filter((m) => m.what === 6 && m.model === choice.model).length"
            )
            assert (shape.get_attribute("d") or "").count("M") == expected > 0
        assert page.locator("#grid tr.at th").inner_text() == "block-06"
        assert page.locator(".strip > svg").count() > 8
        assert page.locator(".strip > svg .at").count() > 2
        address_of_choice = page.url
    with visit(chromium, address_of_choice) as page:
        assert page.locator("#explorer").get_by_label("Block").input_value() == "6"
        assert page.locator("#figure-1 .at").count() == 1


@pytest.mark.slow
def test_one_model_is_chosen_for_the_whole_page_and_all_are_there_without_scripts(chromium, four):
    beside = "section[aria-labelledby=memorization-against-benchmarks]"
    with visit(chromium, four) as page:
        explorer, section = page.locator("#explorer"), page.locator(beside)
        for choose in (
            lambda: section.get_by_label("Show").select_option(label="tiny-neo-12"),
            lambda: explorer.get_by_label("Model").select_option("tiny-pythia-12"),
            lambda: explorer.get_by_label("Model").select_option("tiny-neo-12"),
        ):
            choose()
            chosen = explorer.get_by_label("Model").input_value()
            assert f"model={chosen}" in page.url
            assert section.locator("figure:visible").count() == 1
            assert chosen in section.locator("figcaption:visible").inner_text()
            assert (section.locator("svg:visible").bounding_box() or {"height": 0})["height"] > 100
            assert page.locator(".heat:visible").get_attribute("data-name") == chosen
            assert page.locator(".heat tbody:visible tr").count() == 13
            assert chosen in page.locator("#grid output").inner_text()
        heat = page.locator("section[aria-labelledby=overview]")
        heat.locator(".switch select").select_option(label="tiny-pythia-12")
        assert "model=tiny-pythia-12" in page.url
        explorer.get_by_label("Block").select_option("10")
        assert "no block" not in explorer.locator("output").inner_text()
        explorer.get_by_label("Model").select_option("tiny-pythia-8")
        assert "tiny-pythia-8 has no block 10" in explorer.locator("output").inner_text()
    with visit(chromium, four, java_script_enabled=False) as page:
        assert page.locator(beside).locator("figure:visible").count() == 4
        assert page.locator(".heat:visible").count() == 4


@pytest.mark.slow
def test_the_page_is_small_and_its_navigation_fits_a_short_screen(chromium, four):
    with visit(chromium, four) as page:
        assert page.evaluate("document.documentElement.scrollHeight") <= 12_500
        assert page.evaluate("document.querySelectorAll('*').length") < 8_000
        page.set_viewport_size(SHORT)
        page.evaluate("window.scrollTo(0, 3000)")
        box = page.get_by_role("navigation").bounding_box()
        assert box
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= SHORT["height"]
    assert Path(four.removeprefix("file://")).stat().st_size < 1_000_000


def test_tokens_by_intervention(page):
    grid = page.locator("#grid")
    assert grid.get_by_role("combobox").locator("option").first.inner_text().startswith("most ")
    grid.get_by_role("combobox").select_option(index=1)
    assert "sample=" in page.url
    assert re.match(
        r"gpt-neo, sample \d+, .*, continued by tiny-neo-8\.", grid.locator("caption").inner_text()
    )
    names = grid.locator("tbody th").all_inner_texts()
    assert names[0] == "baseline"
    assert {"block-00", "block-07", "quartile-4"} <= set(names)
    cells = grid.locator("tbody tr").first.locator("td")
    assert cells.count() == 16
    assert {cells.nth(i).get_attribute("class") for i in range(16)} == {"right"}
    broken = grid.locator("td.first-error").first
    row = broken.locator("xpath=..")
    classes = [cell.get_attribute("class") for cell in row.locator("td").all()]
    assert classes.count("first-error") == 1
    at = classes.index("first-error")
    assert set(classes[:at]) <= {"right"}
    assert set(classes[at + 1 :]) <= {"wrong", "right-again"}
    broken.click()
    told = grid.locator(".told")
    assert f"token {at + 1} of 16" in told.inner_text()
    assert "first error" in told.inner_text()
    number = r"[\d.]+( or more)?"
    tokens = rf"log p −{number} nats, rank {number}, the likeliest leads by {number}"
    assert re.search(tokens, told.inner_text())
    marked = told.locator("mark").count()
    assert marked == sum(each in ("first-error", "wrong") for each in classes)
    name = row.locator("th").inner_text()
    if name.startswith("block-"):
        assert f"block={int(name.removeprefix('block-'))}" in page.url


def test_the_tokens_are_one_tab_stop_with_arrow_keys_and_rows_have_labels(page):
    grid = page.locator("#grid")
    current = grid.locator("td[aria-current]")
    assert grid.locator("td[tabindex='0']").count() == 1
    grid.locator("tbody tr").first.locator("td").nth(2).click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert current.get_attribute("data-name") == "block-00"
    assert current.get_attribute("data-at") == "3"
    assert "token 4 of 16 under block-00" in grid.locator(".told").inner_text()
    assert "block=0" in page.url
    assert page.evaluate("document.activeElement.dataset.at") == "3"
    grid.locator("tbody th", has_text="block-02").click()
    assert "block=2" in page.url
    assert grid.locator("tr.at th").inner_text() == "block-02"
    assert "under block-02" in grid.locator(".told").inner_text()
    assert current.get_attribute("data-name") == "block-02"


def test_the_block_that_harms_a_sample_most_is_named(page, written):
    grid = page.locator("#grid")
    path = written[0] / "data" / "memorization" / f"{written[1][0][0]}.parquet"
    sample = int(grid.get_by_role("combobox").input_value())
    rows = tables.read(path, metrics.MEMORIZATION).filter(sample_id=sample)
    single = rows.filter(pl.col("intervention").str.contains("^block-0[1-9]$"))
    least = single.filter(pl.col("suffix_log_prob") == pl.col("suffix_log_prob").min())
    named = rf"; ({'|'.join(least['intervention'])}) harms it most"
    assert re.search(named, grid.locator("output").inner_text())


@pytest.mark.slow
def test_samples_are_shown_where_no_block_was_edited_alone(chromium, tmp_path):
    groups = [Group("quartiles")]
    made = synthetic.study(models={"m": ("pythia", 4)}, per_copies=8, groups=groups)
    named = made.write(tmp_path / "data")
    aggregate.write_summary("tiny", named, tmp_path / "data")
    figures.write_figures(tmp_path / "data", tmp_path / "figures")
    with visit(chromium, _published(tmp_path, named)) as page:
        grid = page.locator("#grid")
        rows = grid.locator("tbody th").all_inner_texts()
        assert rows == ["baseline", *(f"quartile-{i}" for i in range(1, 5))]
        caption = grid.locator("caption").inner_text()
        grid.get_by_role("combobox").select_option(index=1)
        assert grid.locator("caption").inner_text() != caption
        grid.locator("tbody th", has_text="quartile-2").click()
        assert "under quartile-2" in grid.locator(".told").inner_text()


@pytest.mark.slow
def test_the_files_of_a_figure_are_downloaded(chromium, four):
    """Each says which models it holds. From disk no file is saved; a new tab opens."""
    handler = partial(SimpleHTTPRequestHandler, directory=Path(four.removeprefix("file://")).parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page = chromium.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        for kind in ("svg", "png", "pdf", "csv"):
            link = page.locator(f"#figure-1 .files a[href$='kept.{kind}']")
            assert link.get_attribute("target") == "_blank"
            assert "all 4 models: tiny-pythia-8," in (link.get_attribute("title") or "")
            with page.expect_download() as started:
                link.click()
            assert started.value.suggested_filename == f"kept.{kind}"
        single = page.locator("#figure-2a .files a[href$='.svg']")
        assert single.get_attribute("title") == "tiny-pythia-8"
        assert "/index.html" in page.url
        page.close()
        server.shutdown()


@pytest.mark.slow
def test_the_labels_of_strips_can_be_read(chromium, four):
    """At least 7 points, and none is cut off."""
    with visit(chromium, four) as page:
        for width in (390, 700, 1100, 1366):
            page.set_viewport_size({"width": width, "height": 800})
            sizes = page.locator(".strip > svg").evaluate_all(
                """each => each.map(svg => svg.getScreenCTM().a * parseFloat(
                  getComputedStyle(svg.querySelector("text")).fontSize))"""
            )
            assert len(sizes) > 8
            assert min(sizes) >= 7 * 96 / 72
            cut = page.locator(".strip > svg").evaluate_all(
                """each => each.flatMap(svg => [...svg.querySelectorAll("text")].filter(text => {
                  const [own, whole] = [text, svg].map(item => item.getBoundingClientRect());
                  return own.right > whole.right + 1 || own.left < whole.left - 1;
                }).map(text => text.textContent))"""
            )
            assert cut == []


@pytest.mark.slow
def test_a_phone_shows_legends_and_captions_whole(chromium, four):
    with visit(chromium, four, viewport=NARROW) as page:
        for label in page.locator("section .tools select").all():
            if label.is_visible() and label.locator("option").count() > 1:
                label.select_option(index=1)
        beyond = """each => each.filter(item => item.checkVisibility()).filter(item =>
          item.getBoundingClientRect().right >
          item.closest(".scroll, figure, body").getBoundingClientRect().right + 1)
          .map(item => item.closest("figure, table").textContent.slice(0, 80))"""
        labels = "teacher-forced accuracy|exact match|benchmarks|one block|chance|reasoning|control"
        labels += "|language understanding|first 16 tokens|whole suffix|last quarter"
        legends = page.locator("svg text").filter(has_text=re.compile(f"^({labels})$"))
        for found, least in ((legends, 12), (page.locator("caption, figcaption"), 12)):
            assert found.count() >= least
            assert found.evaluate_all(beyond) == []


def test_all_is_there_without_scripts(chromium, address, written):
    tables = "table:not(.tokens table) tbody"
    with visit(chromium, address) as page:
        words = [table.text_content() for table in page.locator(tables).all()]
        sample = page.evaluate("choice.sample ?? document.querySelector('#grid select').value")
        cells = page.locator("#grid tbody td").all_text_contents()
    with visit(chromium, address, java_script_enabled=False) as page:
        assert [table.text_content() for table in page.locator(tables).all()] == words
        assert page.locator(".tools").first.is_hidden()
        assert page.locator("#explorer").is_hidden()
        assert page.locator("th button").count() == 0
        assert page.locator(".plot > svg").first.is_visible()
        marks = page.locator("figure > script").all_text_contents()
        static = page.locator(".tokens:visible").first
        assert f"sample {sample} " in static.locator("caption").inner_text()
        # the script says what the page said without
        assert static.locator("td").all_text_contents() == cells
    # every figure of blocks has its marks
    expected = [len(each.marks) for each in report.read_figures(written[0] / "figures")]
    assert [len(json.loads(each)["marks"]) for each in marks] == [n for n in expected if n]
    assert len(marks) > 5


@pytest.mark.parametrize("viewport", [pytest.param(WIDE, marks=pytest.mark.slow), NARROW])
def test_light_and_dark_pages_are_accessible_and_never_scroll_sideways(chromium, address, viewport):
    shades = {}
    for scheme in ("light", "dark"):
        with visit(chromium, address, color_scheme=scheme, viewport=viewport) as page:
            page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
            found = Axe().run(page).response
            assert "color-contrast" in [rule["id"] for rule in found["passes"]]
            _without_violation(found)
            colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
            shades[scheme] = [int(part) for part in re.findall(r"\d+", colour)]
    assert min(shades["light"]) > 230
    assert max(shades["dark"]) < 90


@pytest.mark.slow
@pytest.mark.parametrize("name", ["theory", "numbers", "provenance"])
def test_axe_finds_nothing_beside(chromium, four, name):
    with visit(chromium, _beside(four, name), viewport=NARROW) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
        _without_violation(Axe().run(page).response)


def _without_violation(found: dict[str, Any]) -> None:
    violations = found["violations"]
    assert [(v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in violations] == []


def test_it_prints(page, tmp_path):
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    assert page.locator(".tools").first.is_hidden()
    assert page.locator("figure svg").first.is_visible()
    printed = page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert printed.startswith(b"%PDF")
    assert len(printed) > 50_000
