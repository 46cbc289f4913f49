"""Where the page shows each figure of the paper, and whether this study agrees with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.report.claims import Finding


@dataclass(frozen=True)
class _Entry:
    """One figure of the paper, or several that show the same of other models.

    Args:
        figures: their numbers.
        shows: what they show.
        section: of our figures; empty: elsewhere.
        anchor: where it is, if it is no figure of ours.
        printed: the number that the paper prints for it, or what it says instead.
    """

    figures: str
    shows: str
    section: str
    printed: str
    anchor: str = ""


_ENTRIES = (
    _Entry(
        "1, A7–A11",
        "memorization against benchmarks, one point per block",
        "Memorization against benchmarks",
        "no number; a significant drop in the last quarter at negligible cost",
    ),
    _Entry(
        "2",
        "completion entropy over samples, memorized or not",
        "Spread over the samples",
        "no number; it is significantly lower on memorized samples",
    ),
    _Entry(
        "Eq. 4",
        "token accuracy, beside exact match and over samples",
        "Block by block, across scales",
        "a definition; no figure of it",
    ),
    _Entry(
        "3, A18–A20",
        "each block across model sizes",
        "Block by block, across scales",
        "no number; the same trend in all four sizes",
    ),
    _Entry(
        "4",
        "texts written under a bypass",
        "",
        "no number; early blocks break the text",
        "written",
    ),
    _Entry(
        "5, A21",
        "Wikitext perplexity by block",
        "Perplexity",
        "no number; late blocks cost little",
    ),
    _Entry(
        "6, A22",
        "relative drop, reasoning or language",
        "Reasoning and language understanding",
        "no number; reasoning is more resistant",
    ),
    _Entry(
        "A12–A17",
        "a quarter of the blocks at once",
        "A quarter of the blocks at once",
        "no number; memorization is near zero",
    ),
)
"""Source: arXiv 2501.05078, whose figures of results print curves and no numbers."""


def crosswalk(
    judged: Sequence[Finding], sections: Mapping[str, Sequence[str]]
) -> list[tuple[_Entry, str, Finding | None]]:
    """Each entry with the numbers of our figures, and the claim that it illustrates.

    Args:
        judged: as `claims.findings` gives them.
        sections: heading -> the numbers of this page's figures below it.
    """
    by_figure = {finding.figures: finding for finding in judged if finding.figures}
    rows = []
    for entry in _ENTRIES:
        labels = sections.get(entry.section, ())
        here = " to ".join(dict.fromkeys([labels[0], labels[-1]])) if labels else ""
        first = entry.figures.split(",")[0].split("–")[0]
        rows.append((entry, here, by_figure.get(first)))
    return rows
