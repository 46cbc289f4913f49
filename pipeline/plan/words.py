"""Formats amounts and durations for readers."""

from __future__ import annotations

import math


def amount(value: float, unit: str) -> str:
    """Such as ``1.2 GB``; NaN is ``unknown``."""
    if math.isnan(value):
        return "unknown"
    power = min(6, max(0, math.floor(math.log10(max(value, 1) * 1.0005) / 3)))
    return f"{value / 1000**power:.3g} {' kMGTPE'[power].strip()}{unit}"


def duration(value: float) -> str:
    """Seconds in a readable unit, such as ``3.5 h``; NaN is ``unknown``."""
    if math.isnan(value):
        return "unknown"
    for limit, size, unit in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if value < limit:
            return f"{value / size:.2g} {unit}"
    if value < 1000 * 86_400:
        return f"{value / 86_400:.3g} days"
    return f"{value / 86_400 / 365:,.0f} years"
