"""Makes a figure's SVG smaller without a visible change: fewer elements, fewer bytes."""

import re
from collections import Counter
from xml.etree.ElementTree import Element, SubElement

from pipeline.report import colours

SVG = "{http://www.w3.org/2000/svg}"

_XLINK = "{http://www.w3.org/1999/xlink}href"
# the page's own colours take the place of the figures', so that they follow light and dark
_COLOURS = {
    colours.INK: "var(--ink)",
    colours.MUTED: "var(--muted)",
    colours.RULE: "var(--rule)",
    colours.PAPER: "var(--card)",
}
_GEOMETRY = ("d", "x", "y", "transform", "points", "viewBox")
_DECIMAL = re.compile(r"-?\d+\.\d+")
_FONT = re.compile(r"font-family: [^;]*;\s*")
_REFERENCE = re.compile(r"^#([\w-]+)$|url\(#([\w-]+)\)")


def compact(root: Element, prefix: str) -> None:
    """Drop unused ids and groups, shorten ids, round numbers, share styles, name colours.

    Of an SVG as matplotlib wrote it, in place. The prefix, unique on the page, is that of ids and
    of classes.
    """
    _drop_ids(root, prefix)
    _unwrap(root)
    drawn = {id(each) for defs in root.iter(f"{SVG}defs") for each in defs.iter()}
    for element in root.iter():
        digits = 2 if id(element) in drawn else 1  # a marker is small, and drawn often
        for key in _GEOMETRY:
            if key in element.attrib:
                element.set(key, _rounded(element.attrib[key], digits))
        if "d" in element.attrib:  # a letter needs no space, nor does a minus
            element.set("d", re.sub(r" ?([A-Za-z]) ?| (?=-)", r"\1", element.attrib["d"]))
        if _XLINK in element.attrib:
            element.set("href", element.attrib.pop(_XLINK))
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        for key in ("style", "fill", "stroke"):
            for colour, variable in _COLOURS.items() if key in element.attrib else ():
                element.set(key, element.attrib[key].replace(colour, variable))
        if "style" in element.attrib:  # the page has the same font for all figures
            element.set("style", _FONT.sub("", element.attrib["style"]))
    _share_styles(root, prefix)


def _drop_ids(root: Element, prefix: str) -> None:
    """Drop ids that nothing refers to, and shorten the others."""
    used = {
        name
        for element in root.iter()
        for value in element.attrib.values()
        for found in _REFERENCE.findall(value)
        for name in found
    }
    names: dict[str, str] = {}
    for element in root.iter():
        own = element.attrib.pop("id", None)
        if own is not None and own in used:
            names[own] = f"{prefix}i{len(names)}"
            element.set("id", names[own])
        if element.text and not element.text.strip():
            element.text = None
        if element.tail and not element.tail.strip():
            element.tail = None

    def short(found: re.Match[str]) -> str:
        old = found[1] or found[2]
        return found[0].replace(old, names.get(old, old))

    for element in root.iter():
        for key, value in element.attrib.items():
            if "#" in value and key != "id":
                element.set(key, _REFERENCE.sub(short, value))


def _unwrap(root: Element) -> None:
    """Replace each group without attributes by its children, and drop empty groups."""
    for parent in list(root.iter()):
        children: list[Element] = []
        for child in parent:
            children += _inner(child)
        parent[:] = children


def _inner(element: Element) -> list[Element]:
    bare = element.tag in (f"{SVG}g", f"{SVG}defs") and not element.attrib
    if not bare or (element.tag == f"{SVG}defs" and len(element)):
        return [element]
    return [each for child in element for each in _inner(child)]


def _rounded(text: str, digits: int) -> str:
    short = _DECIMAL.sub(lambda found: f"{round(float(found[0]), digits):g}", text)
    return re.sub(r"\s+", " ", short).strip()


def _share_styles(root: Element, prefix: str) -> None:
    """Turn each style that occurs more than once into a class."""
    counts = Counter(each.attrib["style"] for each in root.iter() if "style" in each.attrib)
    names = {
        style: f"{prefix}-{i}"
        for i, (style, count) in enumerate(counts.most_common())
        if count > 1 and "class" not in root.attrib
    }
    for element in root.iter():
        name = names.get(element.get("style", ""))
        if name and "class" not in element.attrib:
            element.set("class", name)
            del element.attrib["style"]
    if names:
        sheet = SubElement(root, f"{SVG}style")
        sheet.text = "".join(f".{name}{{{style}}}" for style, name in names.items())
