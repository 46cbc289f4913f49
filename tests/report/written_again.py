"""How the page rounds, written once more."""

from __future__ import annotations

import polars as pl


def number(value: float | None) -> str:
    """Four significant digits, thousands apart."""
    if value is None:
        return "–"
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def plain(value: object) -> str:
    """A cell of the data of a figure."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return value if isinstance(value, str) else number(value)


def shares(value: float | None, low: float | None, high: float | None) -> str:
    """``98.4% [94.5, 99.6]``."""
    told = "–" if value is None else f"{100 * value:.1f}%"
    return told if low is None or high is None else f"{told} [{100 * low:.1f}, {100 * high:.1f}]"


def level(value: float, low: float | None, high: float | None) -> str:
    """``4.31 [4.091, 4.56]``."""
    told = number(value)
    return told if low is None else f"{told} [{number(low)}, {number(high)}]"


def share_range(column: pl.Series) -> str:
    """``40–75%``."""
    ends = dict.fromkeys(f"{100 * end:.0f}" for end in (column.min(), column.max()))
    return f"{'–'.join(ends)}%"


def numbers(column: pl.Series) -> str:
    """``3.2 to 17``."""
    return " to ".join(dict.fromkeys(number(end) for end in (column.min(), column.max())))


def counts(column: pl.Series) -> str:
    """``13 to 17``, thousands apart."""
    return " to ".join(dict.fromkeys(f"{end:,}" for end in (column.min(), column.max())))


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
