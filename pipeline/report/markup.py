"""Writes HTML: templates that escape all their values, and figures embedded in the page."""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from pipeline.analysis.text import slug, visible
from pipeline.report.compact import SVG, compact
from pipeline.report.numbers import Number, Numbers, Sentence, estimate, unclaimed

CODE_PATH = Path(__file__).parent

ASSETS = (
    "vendor/sortable-tablesort-4.1.7.js",  # github.com/tofsjonas/sortable, public domain
    "page.js",
    "page.css",
)

LINE_CHARACTERS = 2000
"""Longer lines are cut to their start."""

SINGLE_POINTS = 500.0
"""A figure of one panel is narrower than this, in points of its file."""


class _Environment(Environment):
    """Compiles a text once for all pages: what differs among them is looked up when it runs."""

    _compiled: ClassVar[dict[tuple[Any, ...], Any]] = {}

    def compile(self, *source: Any) -> Any:
        """The code of a template, from its text, name and file."""
        if source not in self._compiled:
            self._compiled[source] = super().compile(*source)
        return self._compiled[source]


def template(
    name: str, numbers: Numbers | None = None, *, given: bool = False, also: Sequence[str] = ()
) -> Template:
    """A template of this folder that escapes every value, and fails if a variable is missing.

    `numbers` records the numbers that it shows. If `given`, sentences speak of samples, in place of
    memorized samples. Scripts and style sheets of this folder may be added: `also`.
    """
    return _environment(numbers or Numbers(), given, also).get_template(name)


def _environment(shown: Numbers, given: bool = False, also: Sequence[str] = ()) -> Environment:
    environment = _Environment(
        loader=FileSystemLoader(CODE_PATH),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def finalize(value: object) -> object:
        """A value as it is shown: marked if it is a number, cleaned if it is text."""
        if isinstance(value, Number):
            return shown.mark(value, estimate(value))
        if isinstance(value, Sentence):
            text = environment.from_string(value.source).render(value.values)
            return Markup(unclaimed(text) if given else text)  # noqa: S704  escaped by jinja
        if isinstance(value, int | float) and not isinstance(value, bool):
            message = f"a number without a name on a page: {value}; show a Number instead"
            raise TypeError(message)
        return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment.finalize = finalize
    script = _joined(".js", also)
    environment.globals |= {
        "Number": Number,
        "given": given,
        "inline_svg": inline_svg,
        "script": script,
        "script_hash": content_hash(script),
        "stylesheet": _joined(".css", also),
    }
    environment.filters |= shown.filters() | {
        "plain": lambda text: Markup(finalize(text)).striptags(),  # noqa: S704  text again
        "slug": slug,
        "word": lambda token, family: family.word(token),
        "single_panel": _single_panel,
    }
    return environment


@cache
def _joined(ending: str, also: Sequence[str]) -> Markup:
    """The scripts, or the style sheets, of every page and further ones, as one."""
    names = (name for name in (*ASSETS, *also) if name.endswith(ending))
    texts = ((CODE_PATH / name).read_text(encoding="utf-8") for name in names)
    return Markup("\n".join(texts))  # noqa: S704  ours


def content_hash(script: str) -> str:
    """The source by which the page's content security policy allows its one script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def plain(sentence: Sentence | str) -> str:
    """A sentence as text."""
    return str(_environment(Numbers()).filters["plain"](sentence))


def _single_panel(svg: str) -> bool:
    """Whether a figure is drawn narrower than the page, so that it must not be enlarged."""
    width = re.search(r'<svg[^>]* width="([\d.]+)pt"', svg[:2000])
    return width is not None and float(width[1]) < SINGLE_POINTS


def inline_svg(svg: str, prefix: str, label: str) -> Markup:
    """An SVG file, adapted for embedding in the page.

    Its ids get `prefix`, so that no two figures share one; its colours for ink, paper and rules
    become the page's; its metadata and its global styles are removed. The prefix is unique on the
    page: letters, digits, hyphens; the label is the alternative text.
    """
    ElementTree.register_namespace("", SVG.strip("{}"))
    root = ElementTree.fromstring(svg)  # noqa: S314  written by our own figures stage
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{SVG}metadata", f"{SVG}style"):
                parent.remove(child)
    compact(root, prefix)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", clean(label))
    text = ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")
    return Markup(text)  # noqa: S704  escaped by it


def clean(text: str) -> str:
    """`text` with invisible characters spelled out and very long lines cut."""
    lines = (
        line
        if len(line) <= LINE_CHARACTERS
        else f"{line[:LINE_CHARACTERS]}… ({len(line):,} characters in all)"
        for line in text.split("\n")
    )
    return visible("\n".join(lines))
