"""Formats names and numbers for readers, in the figures and on the page."""

import math
import re
from typing import TypeGuard

MISSING = "–"


def visible(text: str) -> str:
    r"""`text` with every invisible character spelled out.

    Control characters, right-to-left marks, lone surrogates and the like become ``\u202e``; they
    could break an SVG file or turn a line around. Line feeds and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}" for c in text)


def slug(text: str) -> str:
    """`text` in lower-case letters, digits and hyphens, for file names and ids; never empty."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def percent(value: float | None) -> str:
    """A share as a percentage with one decimal: 0.984 is ``98.4%``."""
    return f"{100 * value:.1f}%" if _known(value) else MISSING


def number(value: float | None) -> str:
    """Four significant digits, thousands apart: 1234.5 is ``1,234``, 0.01234 is ``0.01234``."""
    if not _known(value):
        return MISSING
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent_interval(value: float | None, low: float | None, high: float | None) -> str:
    """``98.4% [94.5, 99.6]``; without an interval just ``98.4%``."""
    if _known(low) and _known(high):
        return f"{percent(value)} [{100 * low:.1f}, {100 * high:.1f}]"
    return percent(value)


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and not math.isnan(value)
