"""The pages of an audit's documents: how much is known, and the text coloured by p_z.

One page for each model, document and intervention, and ``index.html`` with a table of all. If there
is one document, its page under the baseline is part of ``index.html``. Text is escaped, and shown
only where the user says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from pipeline.analysis.statistics import Estimates
from pipeline.analysis.text import visible
from pipeline.interventions.interventions import BASELINE
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


@dataclass(frozen=True)
class Shown:
    """A document as a page shows it.

    Args:
        model, intervention: under which it was read.
        columns: headings of the probabilities of each passage.
        passages: number, cells and text of each.
        parts: the text, with its colours.
        strip: the minimap.
    """

    model: str
    intervention: str
    columns: list[str]
    passages: list[dict[str, Any]]
    parts: list[Markup]
    strip: Markup


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
    numbers, pages = Numbers(), list[dict[str, Any]]()
    rows, differences, strange = [], [], [pl.DataFrame(schema=tables.dtypes(WINDOWS))]
    stranger = None
    if reference:
        stranger = tables.read(windows / f"{reference}.parquet", WINDOWS)
        stranger = stranger.filter(intervention=BASELINE.name, reading=ROLLING)
        strange.append(stranger.filter(~pl.col("reference")).select(*WINDOWS))
    for model in models:
        table = tables.read(windows / f"{model}.parquet", WINDOWS)
        recited = tables.read(windows / f"{model}.recited.parquet", RECITED)
        of_baseline = table.filter(intervention=BASELINE.name)
        strange.append(of_baseline.filter(pl.col("reference"), reading=ROLLING).select(*WINDOWS))
        if both := difference(of_baseline):
            told = {
                what: Number(f"windows/{model}/{what}", value, unit=unit, table=TABLE)
                for (what, value), unit in zip(
                    both._asdict().items(), ("windows", "difference", "nats", SHARE), strict=True
                )
            }
            differences.append((model, told))
        read = table.filter(~pl.col("reference"), reading=ROLLING)
        names = read["intervention"].unique(maintain_order=True).to_list()
        for number, (name, text) in enumerate(texts.items()):
            of = {each: read.filter(document=name, intervention=each) for each in names}
            hrefs = {each: f"{model}-{number:04d}-{each}.html" for each in names}
            for each, these in of.items():
                if these.is_empty():
                    continue
                found = known(these, len(text))
                key = f"windows/{model}/{number}/{each}"
                told = recited.filter(document=name, intervention=each).row(0, named=True)
                at = these.filter(start=told["start"])["first_character"]
                row = _row(key, found, told, int(at[0]))
                keys = {"document": name, "model": model, "intervention": each}
                rows.append({**keys, **row, "keys": keys, "href": hrefs[each]})
                shown = _shown(key, model, each, text, of, found, stranger, name, show_text)
                others = [(other, href) for other, href in hrefs.items() if other != each]
                pages.append({"title": name, "file": hrefs[each], "shown": shown, "others": others})
    unknown = pl.concat(strange)
    positives = None
    if unknown.height:
        positives = _share("windows/false_positives", extractable(unknown))
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
    }
    whole = {
        "title": "What the model knows of the documents" if len(texts) > 1 else next(iter(texts)),
        "rows": rows,
        "totals": [(name, _total(name, rows, texts)) for name in models] if len(texts) > 1 else [],
        "heading": ["document", "model", "intervention", *_HEADING],
        "positives": positives,
        "referred": reference is not None,
        "differences": differences,
        "copies": [] if copies is None else _by_copies(copies),
        "home": False,
    }
    alone: dict[str, Any] = {"shown": None, "others": []}
    if len(texts) == len(models) == 1 and pages:
        alone = {key: pages[0][key] for key in alone}
        rows[0]["href"] = None
        pages[0]["file"] = None
        for page in pages[1:]:
            page["others"] = [
                (n, "index.html" if n == BASELINE.name else href) for n, href in page["others"]
            ]
    pattern = template("document.html.jinja", numbers)
    with atomic(folder, directory=True) as temporary:
        write_text(temporary / "index.html", pattern.render(**common, **whole, **alone))
        for each in pages:
            if each["file"]:
                made = pattern.render(**common, rows=[], home=True, **each)
                write_text(temporary / each["file"], made)
        columns = [{**row["keys"], **row["values"]} for row in rows]
        pl.DataFrame(columns).write_csv(temporary / "documents.csv")
        if copies is not None:
            counted = ("model", "document", "start", "log_prob_top_40", "copies", "near_copies")
            copies.select(counted).write_csv(temporary / "copies.csv")
        numbers.write(temporary / "numbers.json")


_HEADING = (
    *("windows", "known windows", "coverage", "longest run, tokens", "recited from character"),
    *("recited verbatim, tokens", "near-verbatim recall"),
)


def _row(key: str, found: Known, told: Mapping[str, Any], at: int) -> dict[str, Any]:
    """The numbers of one row of the table of documents; `at` is where the recitation begins."""
    values = {
        "windows": found.windows,
        "extractable": found.extractable,
        "coverage": found.coverage,
        "longest": found.longest,
        "recited_from": at,
        "verbatim": told["verbatim"],
        "recall": told["near_verbatim_recall"],
    }
    shares = {"coverage", "recall"}
    cells = [
        Number(f"{key}/{what}", value, unit=SHARE if what in shares else "tokens", table=TABLE)
        for what, value in values.items()
    ]
    return {"cells": cells, "values": values}


def _total(
    model: str, rows: Sequence[Mapping[str, Any]], texts: Mapping[str, str]
) -> dict[str, Number]:
    """How much an unmodified model knows of the documents that are as long as a window."""
    found = {
        row["document"]: row["values"]
        for row in rows
        if (row["model"], row["intervention"]) == (model, BASELINE.name)
    }
    known = sum(each["extractable"] > 0 for each in found.values())
    covered = sum(each["coverage"] * len(texts[name]) for name, each in found.items())
    share = covered / sum(len(texts[name]) for name in found) if found else 0.0
    values = {"known": known, "documents": len(found), "coverage": share}
    return {
        what: Number(
            f"windows/{model}/{what}",
            value,
            unit=SHARE if what == "coverage" else "documents",
            table=TABLE,
        )
        for what, value in values.items()
    }


def _by_copies(windows: pl.DataFrame) -> list[dict[str, Any]]:
    """A row a model and number of copies, in powers of two: known windows, exact and near."""
    made = []
    for (model,), of_model in windows.group_by("model", maintain_order=True):
        bits = {what: of_model[what].log(2).floor() + 1 for what in ("copies", "near_copies")}
        of = {what: each.clip(0) for what, each in bits.items()}
        for level in sorted(set().union(*of.values())):
            first = int(2 ** (level - 1))
            words = str(first) if level <= 1 else f"{first} to {2 * first - 1}"
            cells = []
            for what, levels in of.items():
                rows = of_model.filter(levels == level)
                key = f"windows/{model}/{what}/{first}"
                count = Number(f"{key}/windows", len(rows), unit="windows", table=TABLE)
                known = _share(f"{key}/known", extractable(rows)) if len(rows) else None
                cells.append((count, known))
            made.append({"model": model, "copies": words, "cells": cells})
    return made


def _share(name: str, rate: Estimates) -> Number:
    """The only rate of an estimate."""
    value, low, high = (float(end[0]) for end in (rate.value, rate.low, rate.high))
    return Number(name, value, low, high, SHARE, TABLE)


def _shown(
    key: str,
    model: str,
    intervention: str,
    text: str,
    of: Mapping[str, pl.DataFrame],
    found: Known,
    stranger: pl.DataFrame | None,
    name: str,
    show_text: bool,
) -> Shown:
    """A document under one intervention, with its passages, colours and strip."""
    rows = of[intervention]
    beside = {each: by_character(frame, len(text)) for each, frame in of.items()}
    surest = beside[intervention]
    if stranger is not None:
        beside["reference"] = by_character(stranger.filter(document=name), len(text))
    passages, places = [], {}
    for number, run in enumerate(found.runs[:PASSAGES], start=1):
        first = int(rows["first_character"][run.first])
        end = int(rows["end_character"][run.last])
        cells = [
            Number(f"{key}/passages/{number}/{what}", value, unit="characters", table=TABLE)
            for what, value in (
                ("first", first), ("characters", end - first), ("tokens", run.end - run.start),
            )
        ]  # fmt: skip
        cells += [
            Number(
                f"{key}/passages/{number}/{each}", float(np.exp(of_each[first:end].max())),
                unit="p-value", table=TABLE,
            )
            for each, of_each in beside.items()
        ]  # fmt: skip
        passages.append({"number": str(number), "cells": cells, "text": text[first:end]})
        places[first] = Markup('<a class="n" id="n{0}" href="#passage-{0}">{0}</a>').format(number)
    levels = np.searchsorted(np.log(list(LEVELS)), surest, side="right")
    edges = np.linspace(0, len(text), CELLS + 1).astype(int)
    cells_of = [int(levels[a:b].max(initial=0)) for a, b in pairwise(edges)]
    anchors = {int(edge): Markup('<a class="at" id="c{}"></a>').format(i)
               for i, edge in enumerate(edges[:-1])}  # fmt: skip
    marks = anchors | {at: anchors.get(at, Markup()) + mark for at, mark in places.items()}
    columns = [f"p, {each}" for each in beside]
    parts = list(_parts(text, levels, marks)) if show_text else []
    return Shown(model, intervention, columns, passages, parts, _strip(cells_of, show_text))


def _strip(levels: Sequence[int], linked: bool) -> Markup:
    """The cells of the strip; links where the text is shown."""
    words = ["less than a millionth", *LEVELS.values()]
    cell = (
        '<a href="#c{0}" class="p{1}" aria-label="at {2}%: {3}"></a>'
        if linked
        else '<span class="p{1}" title="at {2}%: {3}"></span>'
    )
    return Markup("\n").join(
        Markup(cell).format(  # noqa: S704  ours
            i, level, round(100 * i / len(levels)), words[level]
        )
        for i, level in enumerate(levels)
    )


def _parts(text: str, levels: NDArray[np.integer], marks: Mapping[int, Markup]) -> Iterator[Markup]:
    """The text in parts that end with a line, each run of one colour in an element.

    Args:
        text: the document.
        levels: (characters,) 0 to 5, the colour of each character.
        marks: what stands before some characters.
    """
    changes = (np.flatnonzero(np.diff(levels)) + 1).tolist()
    cuts = set[int]()
    at = 0
    while at + PART < len(text):
        at = text.find("\n", at + PART) + 1 or len(text)
        cuts.add(at)
    edges = sorted({0, len(text), *changes, *cuts, *marks})
    part = list[Markup]()
    for first, end in pairwise(edges):
        if first in cuts:
            yield Markup().join(part)
            part = []
        words = escape(visible(text[first:end]))
        level = int(levels[first])
        part += [marks.get(first, Markup()), _coloured(level, words)]
    yield Markup().join(part)


def _coloured(level: int, words: Markup) -> Markup:
    return Markup('<i class="p{}">{}</i>').format(level, words) if level else words
