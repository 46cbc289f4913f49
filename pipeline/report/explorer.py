"""The choices on the page: a model, an edit and a block, with the effect of its bypass."""

from typing import Any

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.kept import one_block
from pipeline.analysis.text import visible
from pipeline.interventions.interventions import EACH, edit_order


def choices(summary: pl.DataFrame, shares: pl.DataFrame) -> list[dict[str, Any]]:
    """The models in the order of the report, each with its edits and blocks; no seeds are pooled.

    Returns:
        For each model of which some block was edited alone: ``name``, ``family``, ``drawn`` (its
        name in figures that pool seeds), ``edits`` (edit -> block -> intervention), ``quartiles``
        (block -> intervention of the quarter that it lies in), ``start`` (the block other than 0
        whose bypass lowers exact match most; the last of several), ``said`` (edit -> block -> what
        it leaves, in a sentence).
    """
    single = summary.filter(pl.col("group") == EACH, pl.col("block").is_not_null())
    seeds = dict(single.group_by("recipe").agg(pl.col("model").n_unique()).iter_rows())
    exact = views.memorization(summary, "exact_match")
    found = []
    for (name, family, recipe), rows in single.group_by(
        "model", "family", "recipe", maintain_order=True
    ):
        edits: dict[str, dict[int, str]] = {}
        each = rows.select("edit", "block", "intervention").unique(maintain_order=True).iter_rows()
        for edit, block, intervention in sorted(each, key=lambda of: (edit_order(of[0]), of[1])):
            edits.setdefault(edit, {}).setdefault(block, intervention)  # the first of several draws
        own = exact.filter(model=name)
        left = views.single_blocks(own).drop_nulls("value")
        harmed = left.sort(pl.col("block") == 0, "value", -pl.col("block").cast(pl.Int32))
        quarters = views.quartiles(own).select("blocks", "intervention").iter_rows()
        n = seeds[recipe]
        found.append(
            {
                "name": visible(str(name)),
                "family": visible(str(family)),
                "drawn": visible(views.seeds_name(str(recipe), n) if n > 1 else str(name)),
                "edits": edits,
                "quartiles": {b: quarter for blocks, quarter in quarters for b in blocks},
                "start": harmed["block"][0] if harmed.height else min(next(iter(edits.values()))),
                "said": {edit: _said(own, shares.filter(model=name), edit) for edit in edits},
            }
        )
    return found


def _said(exact: pl.DataFrame, shares: pl.DataFrame, edit: str) -> dict[int, str]:
    """Block -> what one edit of it leaves, of one model."""
    before = next(iter(views.baseline(exact)["value"]), None)
    if not before:  # not measured, or nothing is recited
        return {}
    single = exact.filter(group=EACH, edit=edit).drop_nulls("value")
    means = one_block(shares, edit).filter(kind="mean")
    ability = dict(means.select("block", "kept").drop_nulls().iter_rows())
    told = {}
    first = single.unique("block", keep="first", maintain_order=True)
    for block, value in first.select("block", "value").iter_rows():
        told[block] = f"exact match {before:.0%} → {value:.0%}"
        if block in ability:
            told[block] += f"; benchmarks keep {ability[block]:.0%} of their lead over chance"
    return told
