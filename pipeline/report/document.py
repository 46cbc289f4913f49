"""The pages of an audit's documents: how much is known, and the text coloured by p_z.

One page for each model, document and intervention, and ``index.html`` with a table of all. If there
is one document, its page under the baseline is part of ``index.html``. Text is escaped, and shown
only where the user says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup, escape
from numpy.typing import NDArray

from pipeline.analysis.passages import (
    Known,
    by_character,
    difference,
    extractable,
    known,
)
from pipeline.analysis.text import visible
from pipeline.interventions.interventions import BASELINE
from pipeline.measure.passages import EXTRACTABLE
from pipeline.measure.schemas import RECITED, ROLLING, WINDOWS
from pipeline.report.appendices import content_hash, shared
from pipeline.report.markup import CODE_PATH, template
from pipeline.report.numbers import SHARE, Number, Numbers
from pipeline.workflow import tables
from pipeline.workflow.files import atomic, write_text

LEVELS = {1e-6: "a millionth", 1e-3: "1/1000", 1e-2: "1%", 0.1: "10%", 0.5: "50%"}
"""p_z from which the text has each colour, and how it is written."""

PASSAGES, CELLS, PART = 20, 120, 3000
"""Passages that are listed, cells of the strip, and characters of a part of the text, about."""

TABLE = "windows"


_COLUMNS = {
    "windows": ("windows", "windows"),
    "extractable": ("known windows", "windows"),
    "coverage": ("coverage", SHARE),
    "longest": ("longest run, tokens", "tokens"),
    "recited_from": ("recited from character", "characters"),
    "verbatim": ("recited verbatim, tokens", "tokens"),
    "recall": ("near-verbatim recall", SHARE),
}
"""Columns of the table of documents, their headings and units."""


def write_documents(
    study: str,
    windows: Path,
    models: Sequence[str],
    texts: Mapping[str, str],
    folder: Path,
    *,
    copies: pl.DataFrame | None = None,
    reference: str | None = None,
    show_text: bool = False,
) -> None:
    """Write the pages, ``documents.csv`` and ``numbers.json``.

    Args:
        study: its name.
        windows: the folder of the tables of windows.
        models: names of the models that are audited.
        texts: name -> text of each document.
        folder: becomes the folder of the pages.
        copies: windows of the baseline with their copies in a corpus, and a column ``model``; None:
            no corpus was named.
        reference: name of a model that does not know the documents; None: there is none, or
            reference texts are in the tables.
        show_text: show the documents as text.

    Raises:
        InputError: a table is missing or damaged.
    """
    stranger, strange = None, list[pl.DataFrame]()
    if reference:
        stranger = tables.read(windows / f"{reference}.parquet", WINDOWS)
        stranger = stranger.filter(intervention=BASELINE.name, reading=ROLLING, reference=False)
        strange.append(stranger)
    totals, rows, differences, pages = [], [], [], dict[str, dict[str, Any]]({"index.html": {}})
    alone = len(texts) == len(models) == 1
    for model in models:
        table = tables.read(windows / f"{model}.parquet", WINDOWS)
        recited = tables.read(windows / f"{model}.recited.parquet", RECITED)
        of_baseline = table.filter(intervention=BASELINE.name)
        strange.append(of_baseline.filter(reference=True, reading=ROLLING))
        if both := difference(of_baseline):
            units = ("windows", "difference", "nats", SHARE)
            named = zip(both._fields, both, units, strict=True)
            shown = {what: _number(f"{model}/{what}", value, unit) for what, value, unit in named}
            differences.append((model, shown))
        own = table.filter(reference=False, reading=ROLLING)
        long = set(own["document"])
        short = [name for name in texts if name not in long]
        in_all = own.partition_by("intervention", as_dict=True).items()
        edits = [_total(f"{model}/{edit}", edit, these) for (edit,), these in in_all]
        count = _number(f"{model}/short", len(short), "documents")
        totals.append({"model": model, "edits": edits, "count": count, "short": short})
        for number, (name, whole) in enumerate(texts.items()):
            text = whole.replace("\r\n", " \n")  # of equal length
            of = own.filter(document=name).partition_by("intervention", as_dict=True)
            found = {edit: known(these, len(text)) for (edit,), these in of.items()}
            hrefs = {edit: f"{model}-{number:04d}-{edit}.html" for edit in found}
            if alone:
                hrefs[BASELINE.name] = "index.html"
            beside = {edit: each.surest for edit, each in found.items()}
            if stranger is not None:
                beside["reference"] = by_character(stranger.filter(document=name), len(text))
            for (edit,), these in of.items():
                told = recited.filter(document=name, intervention=edit).row(0, named=True)
                start = these.filter(start=told["start"])["first_character"][0]
                recall = told["near_verbatim_recall"]
                values = (*found[edit][:4], int(start), told["verbatim"], recall)
                row = dict(zip(_COLUMNS, values, strict=True))
                key = f"{model}/{number}/{edit}"
                cells = [
                    _number(f"{key}/{what}", value, _COLUMNS[what][1])
                    for what, value in row.items()
                ]
                keys = {"document": name, "model": model, "intervention": edit}
                rows.append({"told": keys | row, "cells": cells, "href": hrefs[edit]})
                page = keys | _shown(key, text, these, found[edit], beside, show_text=show_text)
                others = [(other, href) for other, href in hrefs.items() if other != edit]
                pages[hrefs[edit]] = {"title": name, "shown": page, "others": others}
    script = f"{shared()['script']}\n{(CODE_PATH / 'document.js').read_text(encoding='utf-8')}"
    style = shared()["stylesheet"] + Markup((CODE_PATH / "document.css").read_text("utf-8"))  # noqa: S704  ours
    words = [("", "less")] + [(f"p{i}", f"{w} or more") for i, w in enumerate(LEVELS.values(), 1)]
    common = {
        **shared(),
        "script": Markup(script),  # noqa: S704  ours
        "script_hash": content_hash(script),
        "stylesheet": style,
        "study": study,
        "levels": words,
        "show_text": show_text,
        "title": "What the model knows of the documents" if len(texts) > 1 else next(iter(texts)),
        "totals": [],
        "shown": None,
        "others": [],
    }
    unknown = pl.concat(strange)
    pages["index.html"] |= {
        "totals": totals,
        "rows": rows,
        "heading": [
            "document",
            "model",
            "intervention",
            *(heading for heading, _ in _COLUMNS.values()),
        ],
        "positives": None if unknown.is_empty() else _share("false_positives", unknown),
        "referred": reference is not None,
        "differences": differences,
        "copies": [] if copies is None else _by_copies(copies),
    }
    numbers = Numbers()
    pattern = template("document.html.jinja", numbers)
    with atomic(folder, directory=True) as temporary:
        for file, page in pages.items():
            made = pattern.render(**common | page, home=file != "index.html")
            write_text(temporary / file, made)
        table = pl.DataFrame([row["told"] for row in rows])
        table.write_csv(temporary / "documents.csv")
        if copies is not None:
            counted = ("model", "document", "start", "log_prob_top_40", "copies", "near_copies")
            copies.select(counted).write_csv(temporary / "copies.csv")
        numbers.write(temporary / "numbers.json")


def _number(name: str, value: float, unit: str) -> Number:
    return Number(f"windows/{name}", value, unit=unit, table=TABLE)


def _total(name: str, edit: str, windows: pl.DataFrame) -> dict[str, Any]:
    """How many windows, and documents, are known of all that a model read under one edit."""
    surely = windows.filter(pl.col("log_prob_top_40") >= EXTRACTABLE)
    return {
        "name": edit,
        "known": _number(f"{name}/known", len(surely), "windows"),
        "windows": _number(f"{name}/windows", len(windows), "windows"),
        "share": _share(f"{name}/share", windows),
        "in": _number(f"{name}/in", surely["document"].n_unique(), "documents"),
        "documents": _number(f"{name}/documents", windows["document"].n_unique(), "documents"),
    }


def _share(name: str, windows: pl.DataFrame) -> Number:
    """The share of windows that are known."""
    rate = extractable(windows)
    value, low, high = (float(end[0]) for end in (rate.value, rate.low, rate.high))
    return Number(f"windows/{name}", value, low, high, SHARE, TABLE)


def _by_copies(windows: pl.DataFrame) -> list[dict[str, Any]]:
    """A row a model and number of copies, in powers of two: known windows, exact and near."""
    made = []
    for (model,), of_model in windows.group_by("model", maintain_order=True):
        of = {
            what: (of_model[what].log(2).floor() + 1).clip(0) for what in ("copies", "near_copies")
        }
        for level in sorted(set().union(*of.values())):
            first = int(2 ** (level - 1))
            words = str(first) if level <= 1 else f"{first} to {2 * first - 1}"
            cells = []
            for what, levels in of.items():
                rows, key = of_model.filter(levels == level), f"{model}/{what}/{first}"
                count = _number(f"{key}/windows", len(rows), "windows")
                cells.append((count, _share(f"{key}/known", rows) if len(rows) else None))
            made.append({"model": model, "copies": words, "cells": cells})
    return made


def _shown(
    key: str,
    text: str,
    rows: pl.DataFrame,
    found: Known,
    beside: Mapping[str, NDArray[np.float64]],
    *,
    show_text: bool,
) -> dict[str, Any]:
    """A document under one intervention as its page shows it.

    Args:
        key: the start of its numbers' names.
        text: the document.
        rows: its windows.
        found: what is known of it.
        beside: log p of the surest window over each character, by intervention, and the reference.
        show_text: show the document as text.

    Returns:
        ``columns``, headings of the probabilities of each passage; ``passages``, number, cells and
        text of each; ``parts`` of the text, with its colours; ``strip``, number, place in percent,
        level and its words for each cell of the minimap.
    """
    words, passages, places = ["less than a millionth", *LEVELS.values()], [], {}
    for number, run in enumerate(found.runs[:PASSAGES], start=1):
        first = int(rows["first_character"][run.first])
        end = int(rows["end_character"][run.last])
        place = f"{key}/passages/{number}"
        sizes = {"first": first, "characters": end - first, "tokens": run.end - run.start}
        cells = [
            _number(f"{place}/{what}", size, "tokens" if what == "tokens" else "characters")
            for what, size in sizes.items()
        ]
        cells += [
            _number(f"{place}/{each}", float(np.exp(surest[first:end].max())), "p-value")
            for each, surest in beside.items()
        ]
        passages.append({"number": str(number), "cells": cells, "text": text[first:end]})
        places[first] = Markup('<a class="n" id="n{0}" href="#passage-{0}">{0}</a>').format(number)
    levels = np.searchsorted(np.log(list(LEVELS)), found.surest, side="right")
    edges = np.linspace(0, len(text), CELLS + 1).astype(int).tolist()
    anchors = {edge: Markup('<a class="at" id="c{}"></a>').format(i)
               for i, edge in enumerate(edges[:-1])}  # fmt: skip
    marks = anchors | {at: anchors.get(at, Markup()) + mark for at, mark in places.items()}
    cells_of = [levels[a:b].max(initial=0) for a, b in pairwise(edges)]
    return {
        "columns": [f"p, {each}" for each in beside],
        "passages": passages,
        "parts": list(_parts(text, levels, marks)) if show_text else [],
        "strip": [
            (str(i), str(round(100 * i / CELLS)), str(level), words[level])
            for i, level in enumerate(cells_of)
        ],
    }


def _parts(text: str, levels: NDArray[np.integer], marks: Mapping[int, Markup]) -> Iterator[Markup]:
    """The text in parts, each run of one colour in an element.

    A part ends with a line; in a line longer than a part with a word, or anywhere in a long word.

    Args:
        text: the document.
        levels: (characters,) 0 to 5, the colour of each character.
        marks: what stands before some characters.
    """
    changes = (np.flatnonzero(np.diff(levels)) + 1).tolist()
    cuts = set[int]()
    at = 0
    while at + PART < len(text):
        ends = (text.find(end, at + PART, at + 2 * PART) + 1 for end in "\n ")
        at = min(next(filter(None, ends), at + 2 * PART), len(text))
        cuts.add(at)
    edges = sorted({0, len(text), *changes, *cuts, *marks})
    part = list[Markup]()
    for first, end in pairwise(edges):
        if first in cuts:
            yield Markup().join(part)
            part = []
        words = escape(visible(text[first:end]))
        level = int(levels[first])
        coloured = Markup('<i class="p{}">{}</i>').format(level, words) if level else words
        part += [marks.get(first, Markup()), coloured]
    yield Markup().join(part)
