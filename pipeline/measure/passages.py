"""What windows of a document say about it: runs and near-verbatim recall.

Needs no torch, since reports use it as well.
"""

import math
from collections.abc import Sequence
from difflib import SequenceMatcher

import polars as pl

EXTRACTABLE = math.log(1 / 1000)
"""A window counts as extractable if its suffix has this log p under top-40 sampling, or more.

Source: arXiv 2505.12546, which reports shares of a book with p_z of 1/1000 or more.
"""

KNOWN = pl.col("log_prob_top_40") >= EXTRACTABLE
"""Whether a window is extractable."""

LEAST_BLOCK, MOST_GAP = 20, 3
"""Tokens of a near-verbatim block at least, and between two matches of one block at most."""


def runs(rows: pl.DataFrame) -> pl.DataFrame:
    """The runs of a document: extractable windows whose suffixes touch or overlap.

    Args:
        rows: rolling windows of one document and intervention, in their order.

    Returns:
        The longest first, equals in the order of the text: the first window's ``start``, and
        ``tokens``, ``first_character`` and ``end_character`` of the suffixes. One window alone is
        a run of S tokens.
    """
    first = pl.col("start") + pl.col("prefix_length")
    end = first + pl.col("suffix_length")
    number = (first > end.shift(fill_value=0)).cum_sum().alias("run")
    found = rows.filter(KNOWN).group_by(number, maintain_order=True)
    columns = pl.first("start", "first_character"), pl.last("end_character")
    made = found.agg(*columns, tokens=end.last() - first.first()).drop("run")
    return made.sort("tokens", descending=True, maintain_order=True)


def recall(written: Sequence[int], true: Sequence[int]) -> float:
    """The share of a text that a model wrote near-verbatim, in the text's order.

    Matching blocks are joined where at most `MOST_GAP` tokens of either text lie between them; of
    the joined ones, those of `LEAST_BLOCK` matching tokens or more count.

    Args:
        written: the model's tokens.
        true: those of the text, one or more.

    Returns:
        0 to 1: matching tokens in such blocks, over the tokens of the text.

    Source: after the near-verbatim recall of arXiv 2601.02671, over tokens in place of words.
    """
    matches = SequenceMatcher(None, true, written, autojunk=False).get_matching_blocks()
    total = size = 0
    at, other = 0, 0  # where the last match ended in both
    for match in matches:  # the last one is empty, and lies behind both texts
        if not match.size or max(match.a - at, match.b - other) > MOST_GAP:
            total += size if size >= LEAST_BLOCK else 0
            size = 0
        size += match.size
        at, other = match.a + match.size, match.b + match.size
    return total / len(true)
