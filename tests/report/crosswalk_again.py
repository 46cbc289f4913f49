"""The numbers of our figures, and where each figure of the paper is."""

from __future__ import annotations

from collections.abc import Sequence

from tests.report.verdicts_again import Claim

CROSSWALK = {
    "1, A7–A11: memorization against benchmarks, one point per block": (0, "scatter"),
    "2: completion entropy over samples, memorized or not": (None, "spread"),
    "Eq. 4: token accuracy, beside exact match and over samples": (None, "blocks"),
    "3, A18–A20: each block across model sizes": (4, "blocks"),
    "4: texts written under a bypass": (5, ""),
    "5, A21: Wikitext perplexity by block": (2, "perplexity"),
    "6, A22: relative drop, reasoning or language": (6, "drops"),
    "A12–A17: a quarter of the blocks at once": (7, "quartiles"),
}
"""Figures of the paper -> the claim that goes with them, by its place; our section of figures."""


def labels(sections: Sequence[str]) -> list[str]:
    """The numbers of figures: those of one section share one, and have letters."""
    order = list(dict.fromkeys(sections))
    return [
        str(order.index(each) + 1)
        + (chr(97 + sections[:i].count(each)) if sections.count(each) > 1 else "")
        for i, each in enumerate(sections)
    ]


def crosswalk(judged: Sequence[Claim], sections: Sequence[str]) -> list[list[str | None]]:
    """The table of the paper's figures; the sections are those of our figures, in order."""
    table: list[list[str | None]] = [["figure", "the paper prints", "this study", "its claim is"]]
    for figures, (place, section) in CROSSWALK.items():
        here = [
            label for label, own in zip(labels(sections), sections, strict=True) if own == section
        ]
        figures += (
            f" (here: figure {' to '.join(dict.fromkeys([here[0], here[-1]]))})" if here else ""
        )
        own = judged[place] if place is not None else None
        told = (own.sentence, own.verdict) if own else (None, None)
        table.append([figures, None, *told])
    return table
