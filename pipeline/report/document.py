"""The pages of an audit's documents: how much is known, and the text coloured by p_z.

One page for each model, document and intervention, and ``index.html`` with a table of all. If there
is one document, its page under the baseline is part of ``index.html``. Text is escaped, and shown
only where the user says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup, escape
from numpy.typing import NDArray

from pipeline.analysis.passages import Known, by_character, difference, extractable, known
from pipeline.analysis.text import visible
from pipeline.interventions.interventions import BASELINE
from pipeline.measure.passages import KNOWN
from pipeline.measure.schemas import RECITED, ROLLING, WINDOWS
from pipeline.report.markup import clean, template
from pipeline.report.numbers import SHARE, Number, Numbers
from pipeline.samples.copies import counted
from pipeline.workflow import tables
from pipeline.workflow.files import atomic, write_text

LEVELS = {1e-6: "a millionth", 1e-3: "1/1000", 1e-2: "1%", 0.1: "10%", 0.5: "50%"}
"""p_z from which the text has each colour, and how it is written."""

PASSAGES, CELLS, PART = 20, 120, 3000
"""Passages that are listed, cells of the strip, and characters of a part of the text, about."""

_UNITS = {
    **dict.fromkeys(("windows", "known", "extractable"), "windows"),
    **dict.fromkeys(("documents", "in", "short"), "documents"),
    **dict.fromkeys(("characters", "first", "recited_from"), "characters"),
    **dict.fromkeys(("tokens", "longest", "verbatim"), "tokens"),
    **dict.fromkeys(("coverage", "recall", "agree"), SHARE),
    **{"median": "difference", "largest": "nats"},
}
"""The last part of a number's name -> its unit; the names of interventions have p-values."""


def write_documents(
    study: str,
    windows: Path,
    models: Sequence[str],
    texts: Mapping[str, str],
    folder: Path,
    *,
    corpus: Sequence[str] | None = None,
    reference: str | None = None,
    show_text: bool = False,
) -> None:
    """Write the pages, ``documents.csv``, ``numbers.json``, and ``copies.csv`` for a corpus.

    They become the folder. `windows` is that of the tables of windows, of the models that are
    audited; `texts` has the text of each document by name. Copies of the windows are counted in the
    texts of a corpus, if one was named. The reference is a model that does not know the documents;
    there is none where reference texts are in the tables. With `show_text` the documents are shown.

    Raises:
        InputError: a table is missing or damaged.
    """
    stranger = tables.empty(WINDOWS)
    if reference:
        stranger = tables.read(windows / f"{reference}.parquet", WINDOWS)
        stranger = stranger.filter(intervention=BASELINE.name, reading=ROLLING, reference=False)
    strange = [stranger]
    totals, listed, rows, differences, copied = [], [], [], [], []
    pages = dict[str, dict[str, Any]]({"index.html": {}})
    for model in models:
        table = tables.read(windows / f"{model}.parquet", WINDOWS)
        of_baseline = table.filter(intervention=BASELINE.name)
        strange.append(of_baseline.filter(reference=True, reading=ROLLING))
        if both := difference(of_baseline):
            differences.append((model, _numbers(model, both)))
        own = table.filter(reference=False, reading=ROLLING)
        if corpus is not None:
            of_model = own.filter(intervention=BASELINE.name).with_columns(model=pl.lit(model))
            copied.append(counted(texts, corpus, of_model))
        long, in_all = set(own["document"]), own.partition_by("intervention", as_dict=True)
        short = [name for name in texts if name not in long]
        count = _number(f"{model}/short", len(short))
        edits = [_total(f"{model}/{edit}", edit, these) for (edit,), these in in_all.items()]
        totals.append({"model": model, "edits": edits, "count": count, "short": short})
        recited = tables.read(windows / f"{model}.recited.parquet", RECITED)
        key = ["document", "intervention"]
        renamed = {"first_character": "recited_from", "near_verbatim_recall": "recall"}
        joined = recited.join(own, on=[*key, "start"]).rename(renamed)
        told = joined.select(*key, "recited_from", "verbatim", "recall")
        seeds = told.rows_by_key(key, named=True, unique=True)
        for number, (name, whole) in enumerate(texts.items()):
            text = whole.replace("\r\n", " \n")  # of equal length
            of = own.filter(document=name).partition_by("intervention", as_dict=True)
            found = {edit: known(these, len(text)) for (edit,), these in of.items()}
            hrefs = {edit: f"{model}-{number:04d}-{edit}.html" for edit in found}
            if len(texts) == len(models) == 1:
                hrefs[BASELINE.name] = "index.html"
            beside = {edit: each.surest for edit, each in found.items()}
            if reference:
                beside["reference"] = by_character(stranger.filter(document=name), len(text))
            for edit, of_edit in found.items():
                values = of_edit.numbers | seeds[name, edit]
                keys = {"document": name, "model": model, "intervention": edit}
                listed.append(keys | values)
                link = Markup('<a href="{}">{}</a>').format(hrefs[edit], clean(name))
                place = f"{model}/{number}/{edit}"
                cells = _numbers(place, values).values()
                rows.append([name if hrefs[edit] == "index.html" else link, model, edit, *cells])
                page = keys | _shown(place, text, of_edit, beside, show_text=show_text)
                others = [(other, href) for other, href in hrefs.items() if other != edit]
                pages[hrefs[edit]] = {"title": name, "shown": page, "others": others}
    common = {
        "study": study,
        "levels": list(LEVELS.values()),
        "show_text": show_text,
        "title": "What the model knows of the documents" if len(texts) > 1 else next(iter(texts)),
    }
    unknown = pl.concat(strange)
    pages["index.html"] |= {
        "totals": totals,
        "rows": rows,
        "positives": None if unknown.is_empty() else _share("false_positives", unknown),
        "referred": reference is not None,
        "differences": differences,
        "copies": [row for each in copied for row in _by_copies(each)],
    }
    numbers = Numbers()
    pattern = template("document.html.jinja", numbers, also=("document.js", "document.css"))
    with atomic(folder, directory=True) as temporary:
        for file, page in pages.items():
            made = pattern.render(**common | page, home=file != "index.html")
            write_text(temporary / file, made)
        pl.DataFrame(listed).write_csv(temporary / "documents.csv")
        if copied:
            columns = ("model", "document", "start", "log_prob_top_40", "copies", "near_copies")
            pl.concat(copied).select(columns).write_csv(temporary / "copies.csv")
        numbers.write(temporary / "numbers.json")


def _number(name: str, value: float) -> Number:
    unit = _UNITS.get(name.rpartition("/")[2], "p-value")
    return Number(f"windows/{name}", value, unit=unit, table="windows")


def _numbers(key: str, values: Mapping[str, float]) -> dict[str, Number]:
    return {name: _number(f"{key}/{name}", value) for name, value in values.items()}


def _total(key: str, edit: str, windows: pl.DataFrame) -> dict[str, Any]:
    """How many windows, and documents, are known of all that a model read under one edit."""
    known, share = windows.filter(KNOWN), _share(f"{key}/share", windows)
    counts = {"known": len(known), "windows": len(windows)}
    counts |= {"in": known["document"].n_unique(), "documents": windows["document"].n_unique()}
    return {"name": edit, "share": share, **_numbers(key, counts)}


def _share(name: str, windows: pl.DataFrame) -> Number:
    """The share of windows that are known."""
    return Number(f"windows/{name}", *extractable(windows), SHARE, "windows")


def _by_copies(windows: pl.DataFrame) -> list[list[Any]]:
    """A row a number of copies, in powers of two: windows of a model, and those known of them."""
    model, rows = windows["model"][0], []
    of = {what: (windows[what].log(2).floor() + 1).clip(0) for what in ("copies", "near_copies")}
    for level in sorted(set().union(*of.values())):
        first = int(2 ** (level - 1))
        row = [str(first) if level <= 1 else f"{first} to {2 * first - 1}", model]
        for what, levels in of.items():
            these, key = windows.filter(levels == level), f"{model}/{what}/{first}"
            row += [_number(f"{key}/windows", len(these)), "–", ""]
            if len(these):
                share = _share(f"{key}/known", these)
                meter = Markup('<meter value="{}" aria-hidden="true"></meter>')
                row[-2:] = share, meter.format(share.value)
        rows.append(row)
    return rows


def _shown(
    key: str,
    text: str,
    found: Known,
    beside: Mapping[str, NDArray[np.float64]],
    *,
    show_text: bool,
) -> dict[str, Any]:
    """A document under one intervention as its page shows it.

    `beside` has log p of the surest window over each character, by intervention, and the reference.
    The numbers' names begin with `key`.

    Returns:
        ``columns`` and ``passages``, the table of passages; ``parts`` of the text, coloured;
        ``strip``, the colour of each cell of the minimap.
    """
    passages = []
    edges = np.linspace(0, len(text), min(CELLS, len(text)) + 1).astype(int).tolist()
    anchor = Markup('<a class="at" id="c{}"></a>')
    marks = {edge: anchor.format(i) for i, edge in enumerate(edges[:-1])}
    for number, run in enumerate(found.runs[:PASSAGES].iter_rows(named=True), start=1):
        first, end = run["first_character"], run["end_character"]
        values = {"first": first, "characters": end - first, "tokens": run["tokens"]}
        values |= {name: float(np.exp(each[first:end].max())) for name, each in beside.items()}
        cells = _numbers(f"{key}/passages/{number}", values).values()
        link = Markup('<a id="passage-{0}" href="#n{0}">{0}</a>').format(number)
        told = Markup('<div class="passage">{}</div>').format(clean(text[first:end]))
        passages.append([link, *cells, told] if show_text else [str(number), *cells])
        mark = Markup('<a class="n" id="n{0}" href="#passage-{0}">{0}</a>').format(number)
        marks[first] = marks.get(first, Markup()) + mark
    levels = np.searchsorted(np.log(list(LEVELS)), found.surest, side="right")
    return {
        "columns": [f"p, {each}" for each in beside] + ["text"] * show_text,
        "passages": passages,
        "parts": list(_parts(text, levels, marks)) if show_text else [],
        "strip": [int(levels[a:b].max(initial=0)) for a, b in pairwise(edges)],
    }


def _parts(text: str, levels: NDArray[np.integer], marks: Mapping[int, Markup]) -> Iterator[Markup]:
    """The text in parts, each run of one colour, 0 to 5, in an element.

    A part ends with a line; in a line longer than a part with a word, or anywhere in a long word.
    `marks` stand before some characters.
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
