"""The pages of documents: their numbers, their text, and how they are read."""

import json
import math
import random
import re
from html import unescape

import numpy as np
import polars as pl
import pytest

from pipeline.measure.schemas import RECITED, WINDOWS
from pipeline.report import document
from pipeline.report.document import write_documents
from pipeline.workflow import tables
from tests.report.conftest import visit

P, S, STRIDE, SIZE = 20, 10, 5, 4
KNOWN = range(300, 420)
"""Tokens of the passage that the model knows; a token has four characters."""


def text_of(tokens, seed=0):
    letters = random.Random(seed).choices("ab<&é\u202e\"'\n    cdefgh", k=tokens * SIZE)
    return "".join(letters)


def windows_of(name, tokens, known, intervention="baseline", shift=0.0):
    frames = []
    for reading, step in (("rolling", STRIDE), ("exact", 100)):
        suffix = np.arange(P, tokens - S + 1, step)
        sure = np.isin(suffix, list(known)) & np.isin(suffix + S - 1, list(known))
        log_prob = np.where(sure, -0.5 - suffix % 1000 / 1000, -40.0)
        of = {
            "start": suffix - P,
            "log_prob": log_prob - 1 + shift * (reading == "rolling"),
            "log_prob_top_40": np.where(sure, log_prob, -np.inf),
            "first_character": suffix * SIZE,
            "end_character": (suffix + S) * SIZE,
        }
        names = {"intervention": intervention, "document": name, "reading": reading}
        numbers = {"prefix_length": P, "suffix_length": S, "context": P, "reference": False}
        columns = {key: pl.lit(value) for key, value in (names | numbers).items()}
        frames.append(pl.DataFrame(of).with_columns(**columns))
    return tables.cast(pl.concat(frames), WINDOWS)


def written(
    folder, texts, *, edits=("baseline",), reference=None, known=KNOWN, corpus=None, show_text=True
):
    data, out = folder / "windows", folder / "out"
    counts = {name: len(text) // SIZE for name, text in texts.items()}
    frames = [
        windows_of(name, counts[name], known if edit == "baseline" else (), edit, 0.25)
        for edit in edits
        for name in texts
    ]
    tables.write(pl.concat(frames), data / "m.parquet", WINDOWS, {})
    rows = [(edit, name, 280, P, 100, 7, 0.25, "x") for name in texts for edit in edits]
    recited = pl.DataFrame(rows, tables.dtypes(RECITED), orient="row")
    tables.write(recited, data / "m.recited.parquet", RECITED, {})
    more = {"corpus": corpus, "reference": None, "show_text": show_text}
    if reference is not None:
        other = pl.concat([windows_of(n, c, reference) for n, c in counts.items()])
        tables.write(other, data / "reference.parquet", WINDOWS, {})
        more["reference"] = "reference"
    write_documents("audit-x", data, ["m"], texts, out, **more)
    return out


def parts_of(page):
    """The text of each part of a document, without the numbers of passages."""
    parts = re.findall(r'<div class="part">(.*?)</div>', page, flags=re.DOTALL)
    return [re.sub(r"<a [^>]*>[^<]*</a>", "", part) for part in parts]


def bare(html):
    return unescape(re.sub(r"<[^>]*>", "", html))


def numbers(folder):
    return {row["name"]: row for row in json.loads((folder / "numbers.json").read_text())}


def test_the_numbers_follow_from_the_windows(tmp_path):
    text = text_of(1000)
    out = written(tmp_path, {"book": text}, reference=range(600, 625), edits=("baseline", "b"))
    found = numbers(out)
    suffixes = [s for s in range(P, 1000 - S + 1, STRIDE) if s in KNOWN and s + S - 1 in KNOWN]
    every = len(range(0, 1000 - P - S + 1, STRIDE))
    covered = {c for s in suffixes for c in range(s * SIZE, (s + S) * SIZE)}
    of = "windows/m/0/baseline"
    assert found[f"{of}/windows"]["value"] == every
    assert found[f"{of}/extractable"]["value"] == len(suffixes)
    assert found[f"{of}/coverage"]["value"] == pytest.approx(len(covered) / len(text))
    assert found[f"{of}/longest"]["value"] == max(suffixes) + S - min(suffixes)
    assert found[f"{of}/verbatim"]["value"] == 7
    assert found[f"{of}/recall"]["value"] == 0.25
    assert found[f"{of}/recited_from"]["value"] == (280 + P) * SIZE
    assert found[f"{of}/passages/1/first"]["value"] == min(suffixes) * SIZE
    surest = math.exp(-0.5 - min(suffixes) / 1000)
    assert found[f"{of}/passages/1/baseline"]["value"] == pytest.approx(surest)
    assert found[f"{of}/passages/1/b"]["value"] == 0
    assert found["windows/m/0/b/coverage"]["value"] == 0
    strange = [s for s in range(P, 1000 - S + 1, STRIDE) if s >= 600 and s + S <= 625]
    rate = found["windows/false_positives"]
    assert rate["value"] == pytest.approx(len(strange) / every)
    assert 0 < rate["low"] < rate["value"] < rate["high"] < 0.2
    assert found["windows/m/windows"]["value"] == 10
    assert found["windows/m/median"]["value"] == found["windows/m/largest"]["value"] == 0.25
    assert found["windows/m/agree"]["value"] == 1
    rows = pl.read_csv(out / "documents.csv")
    assert rows["intervention"].to_list() == ["baseline", "b"]
    assert rows["coverage"][0] == pytest.approx(len(covered) / len(text))


def test_known_windows_are_counted_by_copies(tmp_path, monkeypatch):
    rows = windows_of("book", 1000, KNOWN).filter(reading="rolling")
    copies = pl.Series([0, 1, 3, 5] * len(rows))[: len(rows)]

    def counted(texts, corpus, windows):
        assert (list(texts), corpus) == (["book"], ["corpus"])
        return windows.with_columns(copies=copies, near_copies=copies * 0 + 2)

    monkeypatch.setattr(document, "counted", counted)
    out = written(tmp_path, {"book": text_of(1000)}, corpus=["corpus"])
    found = numbers(out)
    surely = rows["log_prob_top_40"].to_numpy() > -9
    for first, several in ((0, [0]), (1, [1]), (2, [3]), (4, [5])):
        these = surely[copies.is_in(several).to_numpy()]
        assert found[f"windows/m/copies/{first}/windows"]["value"] == len(these)
        rate = found[f"windows/m/copies/{first}/known"]
        assert rate["value"] == pytest.approx(these.mean())
        assert rate["low"] < rate["value"] < rate["high"]
    assert found["windows/m/near_copies/2/known"]["value"] == pytest.approx(surely.mean())
    assert found["windows/m/near_copies/1/windows"]["value"] == 0
    page = (out / "index.html").read_text()
    levels = re.findall(r'<th scope="row">([^<]*)</th><td>m</td>', page)
    assert levels[-4:] == ["0", "1", "2 to 3", "4 to 7"]
    assert page.count("<meter ") == 5
    assert pl.read_csv(out / "copies.csv")["copies"].equals(copies)


def test_the_text_is_whole_escaped_and_coloured_where_it_is_known(tmp_path):
    text = text_of(1000)
    out = written(tmp_path, {"book": text})
    page = (out / "index.html").read_text()
    html, shown = "".join(parts_of(page)), text.replace("\u202e", "\\u202e")
    assert bare(html) == shown
    surely = unescape("".join(re.findall(r'<i class="p[345]">(.*?)</i>', html, re.DOTALL)))
    inside = text[KNOWN.start * SIZE : KNOWN.stop * SIZE].replace("\u202e", "\\u202e")
    assert surely == inside
    assert page.count('id="n1"') == page.count('id="passage-1"') == 1
    assert {f'id="c{i}"' in page for i in range(120)} == {True}


def test_text_is_shown_only_where_the_user_says_so(tmp_path):
    text = "secret words " * 400
    out = written(tmp_path, {"book": text}, show_text=False, edits=("baseline", "b"))
    for file in out.iterdir():
        assert "secret" not in file.read_text()
    assert "--show-text" in (out / "index.html").read_text()


def test_a_folder_gives_a_table_and_a_page_each(tmp_path):
    texts = {f"<{i}>.txt": text_of(500 + i, i) for i in range(3)} | {"short": "a b"}
    out = written(tmp_path, texts, edits=("baseline", "b"))
    page = (out / "index.html").read_text()
    assert 'class="sortable' in page
    links = re.findall(r'<th scope="row"><a href="([^"]*)">(.*?)</a>', page)
    assert [unescape(name) for _, name in links] == [f"<{i}>.txt" for i in range(3) for _ in "ab"]
    for href, _ in links:
        assert (out / href).is_file()
    assert 'class="part"' not in page
    found = numbers(out)
    whole = sum(found[f"windows/m/{i}/baseline/extractable"]["value"] for i in range(3))
    assert found["windows/m/baseline/known"]["value"] == whole > 0
    share = found["windows/m/baseline/share"]
    assert share["low"] < share["value"] < share["high"]
    assert (found["windows/m/b/known"]["value"], found["windows/m/b/in"]["value"]) == (0, 0)
    words = " ".join(bare(page).split())
    assert "in 3 of 3 documents" in words
    assert "1 document shorter than a window of m is left out: short" in words
    out = written(tmp_path / "other", {"a": "short", "b": ""})  # no window at all
    assert numbers(out)["windows/m/short"]["value"] == 2
    assert "are left out: a, b" in (out / "index.html").read_text()


def test_a_long_line_is_cut_and_the_ends_of_lines_of_windows_are_no_characters(tmp_path):
    text = "one line of words " * 3000 + "\r\n" * 10 + "letters" * 3000
    page = (written(tmp_path, {"book": text}) / "index.html").read_text()
    parts = list(map(bare, parts_of(page)))
    assert "".join(parts) == text.replace("\r\n", " \n")
    assert max(map(len, parts)) <= 6000
    assert all(part.endswith((" ", "\n")) for part in parts[:15])


def test_a_megabyte_makes_a_page_below_five(tmp_path):
    starts = np.random.default_rng(0).integers(0, 250_000, (4000, 1))
    text = ("The quick brown fox, & others.\n" * 40_000)[:1_000_000]
    out = written(tmp_path, {"book": text}, known=(starts + np.arange(30)).ravel())
    assert 1_000_000 < (out / "index.html").stat().st_size < 5_000_000


def test_the_page_is_read_on_a_phone_and_by_keyboard(tmp_path, chromium):
    out = written(tmp_path, {"book": text_of(20_000)}, known=range(15_000, 15_100))
    for width in (390, 1280):
        size = {"width": width, "height": 800}
        with visit(chromium, (out / "index.html").as_uri(), viewport=size) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.focus("#strip a")
            assert page.locator('#strip a[tabindex="0"]').count() == 1
            for _ in range(90):  # 75% of the document, where the passage is
                page.keyboard.press("ArrowDown")
            assert "50%" in page.evaluate("document.activeElement.getAttribute('aria-label')")
            top = "const { top } = document.querySelector('#n1').getBoundingClientRect();"
            page.keyboard.press("Enter")
            page.wait_for_function(f"() => {{ {top} return -800 < top && top < 1600; }}")
            page.click("a[href='#n1']")
            page.wait_for_function(f"() => {{ {top} return 0 <= top && top < 800; }}")
