"""The link from theory to damage: whether a theorem's quantities predict which blocks matter.

Computes, over the single blocks of a model, the rank correlation between the change that a bypass
makes inside (or a bound on it) and the loss. A model has few blocks, so the intervals are wide; and
neighbouring blocks are alike, so the intervals are still too narrow rather than too wide.
"""

from __future__ import annotations

import math

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.correlation import rank_correlation
from pipeline.analysis.kept import one_block

LOSSES = {
    "exact_match": "loss of exact match",
    "suffix_log_prob": "loss of log probability",
    "benchmarks": "loss of benchmarks",
}
"""Loss -> its label."""

SIGNIFICANT = 0.05


def losses(summary: pl.DataFrame, shares: pl.DataFrame) -> pl.DataFrame:
    """The losses of each model when one block is bypassed.

    ``exact_match`` and ``benchmarks`` (the mean over them) as shares of the baseline, or of its
    lead over chance; ``suffix_log_prob`` in nats per suffix, of memorized samples.

    Args:
        summary: as `aggregate.aggregate` gives it.
        shares: as `kept.kept` gives them, not pooled.

    Returns:
        model, family, block, measure (of `LOSSES`), lost, lost_low, lost_high.
    """
    single = one_block(shares)
    exact = single.filter(measure="exact_match")
    tasks = single.filter(kind="mean")
    lost = [
        part.select(
            "model",
            "family",
            "block",
            "measure",
            (1 - pl.col("kept")).alias("lost"),
            (1 - pl.col("high")).alias("lost_low"),
            (1 - pl.col("low")).alias("lost_high"),
        )
        for part in (exact, tasks.with_columns(measure=pl.lit("benchmarks")))
    ]
    known = views.single_blocks(views.memorization(summary, "suffix_log_prob")).select(
        "model",
        "family",
        "block",
        pl.lit("suffix_log_prob").alias("measure"),
        (-pl.col("difference")).alias("lost"),
        (-pl.col("difference_high")).alias("lost_low"),
        (-pl.col("difference_low")).alias("lost_high"),
    )
    return pl.concat([*lost, known], how="vertical_relaxed")


def pairs(summary: pl.DataFrame, shares: pl.DataFrame, quantities: pl.DataFrame) -> pl.DataFrame:
    """Every quantity beside every loss, block by block.

    Args:
        summary: as `aggregate.aggregate` gives it.
        shares: as `kept.kept` gives them, not pooled.
        quantities: as in `theory.Theory`.

    Returns:
        model, family, block, quantity, mean, low, high, measure, lost, lost_low, lost_high.
    """
    if not quantities.height:
        return quantities
    blocks = losses(summary, shares).with_columns(pl.col("block").cast(pl.UInt16)).drop("family")
    joined = quantities.join(blocks, on=["model", "block"], maintain_order="left")
    return joined.filter(pl.col("mean").is_finite(), pl.col("lost").is_finite())


def correlations(paired: pl.DataFrame, seed: int = 0) -> pl.DataFrame:
    """Rank correlation over the blocks of each model.

    Args:
        paired: as `pairs` gives it.
        seed: of bootstrap and permutations.

    Returns:
        model, quantity, measure, value, low, high, p_value, blocks; without pairs that do not
        vary.
    """
    rows = []
    if paired.height:
        for (model, quantity, measure), part in paired.group_by(
            "model", "quantity", "measure", maintain_order=True
        ):
            found = rank_correlation(part["mean"].to_numpy(), part["lost"].to_numpy(), seed)
            if not math.isnan(found.value):
                rows.append({"model": model, "quantity": quantity, "measure": measure})
                rows[-1] |= {**vars(found), "blocks": part.height}
    numbers = dict.fromkeys(("value", "low", "high", "p_value"), pl.Float64)
    names = dict.fromkeys(("model", "quantity", "measure"), pl.String)
    return pl.DataFrame(rows, schema={**names, **numbers, "blocks": pl.UInt32})


def along(ranks: pl.DataFrame) -> pl.DataFrame:
    """The correlations that are significantly above 0.

    Args:
        ranks: as `correlations` gives them.
    """
    return ranks.filter(pl.col("value") > 0, pl.col("p_value") <= SIGNIFICANT)
