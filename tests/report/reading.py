"""A page as a reader sees it: lines of text and tables, without drawings, scripts and samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise

UNSEEN = ("script", "style", "svg")
LINES = (
    *("caption", "details", "div", "dl", "dt", "figcaption", "h1", "h2", "h3", "header", "li"),
    *("main", "nav", "p", "section", "summary", "table", "title", "tr", "ul"),
)
WRITTEN = ("dl", "written")
"""What models wrote: of it the names of the interventions are read, in one line."""
VOID = ("meta", "link", "br", "img", "input", "hr")
QUOTED = re.compile(r"of which the last are “.*”")
"""The text of a sample in a caption."""
SAMPLE = re.compile(r"(.+), sample (\d+) \(([a-z ]+): (.*)")
"""Family, id, why it is shown, and what is said of it."""

Cells = Sequence[Sequence[str | None]]


@dataclass
class Table:
    """A table; of samples token by token only the names of the rows and the heading.

    Args:
        caption: its text.
        rows: cells, the heading's first.
        tokens: whether it shows a sample.
    """

    caption: str = ""
    rows: list[list[str]] = field(default_factory=list)
    tokens: bool = False


class Reader(HTMLParser):
    """Reads a page into `lines` and `tables`; captions are lines too."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: list[Table] = []
        self._text: list[str] = []
        self._path: list[tuple[str, str]] = []
        self.feed(html)
        lines = (" ".join(line.split()) for line in "".join(self._text).split("\0"))
        self.lines = [QUOTED.sub("", line) for line in lines if line]
        for table in self.tables:
            table.caption = QUOTED.sub("", " ".join(table.caption.split()))
            table.rows = [[" ".join(cell.split()) for cell in row] for row in table.rows]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            return
        if tag == "table":
            around = [classes for _, classes in self._path[-1:]]
            self.tables.append(Table(tokens=any("tokens" in each for each in around)))
        elif tag == "tr":
            self.tables[-1].rows.append([])
        elif tag == "th" or (tag == "td" and not self.tables[-1].tokens):
            self.tables[-1].rows[-1].append("")
        self._path.append((tag, dict(attrs).get("class") or ""))
        starts = tag in LINES and not (tag == "dt" and WRITTEN in self._path)
        self._text.append("\0" if starts else " | " if tag == "dd" else "")

    def handle_endtag(self, tag: str) -> None:
        if self._path and self._path[-1][0] == tag:
            self._path.pop()
        self._text.append("\0" if tag in LINES and tag != "dt" else "")  # a dd goes on

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self._path]
        token = "td" in tags and self.tables[-1].tokens
        samples = "q" in tags or (WRITTEN in self._path and "dd" in tags)
        if token or samples or any(tag in UNSEEN for tag in tags):
            return
        if "td" in tags or "th" in tags:
            self.tables[-1].rows[-1][-1] += data
        else:
            self._text.append(data)
            if "caption" in tags:
                self.tables[-1].caption += data


@dataclass(frozen=True)
class Line:
    """What has to stand in a line of the page.

    Args:
        start: what the line begins with; there is one such line.
        parts: further text in it, in any order.
    """

    start: str
    parts: Sequence[str] = ()


@dataclass(frozen=True)
class Sample:
    """What has to be said of a sample that is shown token by token.

    Args:
        words: the rest of the caption.
        suffix: its tokens.
        interventions: the names of the rows.
    """

    words: str
    suffix: Sequence[str]
    interventions: Sequence[str]


@dataclass(frozen=True)
class Expected:
    """What the numbers of a page have to be.

    Args:
        lines: with numbers that are computed.
        tables: start of a caption -> cells, the heading's first; None: any text without numbers.
        fixed: text whose numbers are the same in every study.
        names: of models, families and interventions, which may have digits.
        texts: model, manner of decoding and interventions of each text that a model wrote.
        sample: from family and id.
        ordered: whether the rows of tables have to be in this order.
    """

    lines: Sequence[Line]
    tables: Mapping[str, Cells]
    fixed: Sequence[str] = ()
    names: Collection[str] = ()
    texts: Sequence[str] = ()
    sample: Callable[[str, int], Sample] | None = None
    ordered: bool = True


def problems(html: str, expected: Expected) -> list[str]:
    """What differs from `expected`, and every text with a number that it does not account for."""
    page = Reader(html)
    texts = [f"{a} {b}" for a, b in pairwise(page.lines) if b.startswith("prompt |")]
    found = [] if texts == list(expected.texts) else [f"texts of {texts}"]
    rest = [line for line in page.lines if not line.startswith("prompt |")]
    for line in expected.lines:
        found += _without(rest, line)
    known = dict(expected.tables)
    for table in page.tables:
        start = next((start for start in known if table.caption.startswith(start)), None)
        told = SAMPLE.fullmatch(table.caption) if table.tokens and expected.sample else None
        cells: Cells = [[None for _ in row] for row in table.rows]
        if told and expected.sample:
            rest.remove(table.caption)
            sample = expected.sample(told[1], int(told[2]))
            if told[4].strip() != sample.words:
                found.append(f"{table.caption!r} does not end in {sample.words!r}")
            shown = [[name] for name in sample.interventions]
            cells = [["true suffix", *sample.suffix], *shown]
        elif start is not None:
            cells = known.pop(start)
            if not expected.ordered:
                cells = [cells[0], *sorted(cells[1:], key=str)]
                table.rows[1:] = sorted(table.rows[1:], key=str)
        found += _differences(table, cells)
        rest += [
            cell
            for row, own in zip(table.rows, cells, strict=False)
            for cell, value in zip(row, own, strict=False)
            if value is None
        ]
    found += [f"no table has a caption that starts with {start!r}" for start in known]
    whole = "\n".join(rest)
    for text in sorted(expected.fixed, key=len, reverse=True):
        whole = whole.replace(text, " ")
    names = "|".join(map(re.escape, sorted(expected.names, key=len, reverse=True)))
    whole = re.sub(rf"(?<![\w-])(?:{names})(?![\w-])", " ", whole) if names else whole
    return found + [line for line in whole.split("\n") if re.search(r"\d", line)]


def _without(rest: list[str], line: Line) -> list[str]:
    """What of `line` is not there; what is, is taken out of `rest`."""
    at = [i for i, text in enumerate(rest) if text.startswith(line.start)]
    if len(at) != 1:
        return [f"{len(at)} lines start with {line.start!r}"]
    text = rest[at[0]].removeprefix(line.start)
    missing = [f"{part!r} is not in {rest[at[0]]!r}" for part in line.parts if part not in text]
    for part in line.parts:
        text = text.replace(part, " ", 1)
    rest[at[0]] = f"\0{text}"
    return missing


def _differences(table: Table, cells: Cells) -> list[str]:
    """Of a table token by token only the heading and the names of the rows are read."""
    if [len(row) for row in table.rows] != [len(row) for row in cells]:
        return [f"{table.caption}: {len(table.rows)} rows, not {len(cells)}, or other columns"]
    return [
        f"{table.caption}: {row[0]}: {cell!r}, not {known!r}"
        for row, own in zip(table.rows, cells, strict=True)
        for cell, known in zip(row, own, strict=True)
        if known is not None and cell.strip() != known
    ]
