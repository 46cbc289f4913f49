"""The link from theory to damage: whether a theorem's quantities predict which blocks matter.

Computes, over the single blocks of a model, the rank correlation between the change that a bypass
makes inside (or a bound on it) and the loss. A model has few blocks, so the intervals are wide; and
neighbouring blocks are alike, so the intervals are still too narrow rather than too wide.
"""

from __future__ import annotations

import math
from dataclasses import astuple, fields

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.correlation import Correlation, rank_correlation
from pipeline.analysis.kept import kept, one_block
from pipeline.interventions.interventions import IDENTITY

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
    single, key = one_block(shares), ("model", "family", "block", "measure")
    tasks = single.filter(kind="mean").with_columns(measure=pl.lit("benchmarks"))
    left = pl.concat([single.filter(measure="exact_match"), tasks])
    ends = {"lost": "kept", "lost_low": "high", "lost_high": "low"}
    shared = left.select(*key, **{name: 1 - pl.col(column) for name, column in ends.items()})
    known = views.single_blocks(views.memorization(summary, "suffix_log_prob"))
    ends = {"lost": "", "lost_low": "_high", "lost_high": "_low"}
    fallen = {name: -pl.col(f"difference{end}") for name, end in ends.items()}
    nats = known.with_columns(measure=pl.lit("suffix_log_prob")).select(*key, **fallen)
    return pl.concat([shared, nats], how="vertical_relaxed")


def pairs(summary: pl.DataFrame, evidence: pl.DataFrame, quantities: pl.DataFrame) -> pl.DataFrame:
    """Every quantity beside every loss, block by block.

    Returns:
        model, family, block, quantity, mean, low, high, measure, lost, lost_low, lost_high,
        displacement (null where unknown).
    """
    if not quantities.height:
        return quantities
    shares = kept(evidence, pooled=False)
    blocks = losses(summary, shares).with_columns(pl.col("block").cast(pl.UInt16)).drop("family")
    moved = evidence.filter(quantity="displacement", kind="block", edit=IDENTITY).select(
        "model", "block", displacement="value"
    )
    key = ["model", "block"]
    joined = quantities.join(blocks, on=key, maintain_order="left").join(
        moved, on=key, how="left", maintain_order="left"
    )
    return joined.filter(pl.col("mean").is_finite(), pl.col("lost").is_finite())


def correlations(paired: pl.DataFrame) -> pl.DataFrame:
    """Rank correlation over the blocks of each model, plain, and beyond depth and displacement.

    Without block 0, whose bypass the paper warns can look spuriously good.

    Returns:
        model, quantity, measure, value, low, high, p_value, blocks, and ``beyond``, ``beyond_low``,
        ``beyond_high``, ``beyond_p_value``: the partial correlation at equal depth (the block's
        number) and displacement, null where displacement is unknown. Without pairs that do not
        vary.
    """
    rows = []
    by = ("model", "quantity", "measure")
    later = paired.filter(pl.col("block") > 0) if paired.height else paired
    for key, part in later.group_by(by, maintain_order=True) if later.height else ():
        given = [part[name].cast(pl.Float64).to_numpy() for name in ("block", "displacement")]
        both = part["mean"].to_numpy(), part["lost"].to_numpy()
        found, beyond = rank_correlation(*both, seed=0), Correlation()
        if not part["displacement"].null_count():
            beyond = rank_correlation(*both, seed=0, given=given)
        if not math.isnan(found.value):
            rows.append((*key, *astuple(found), *astuple(beyond), part.height))
    names = [field.name for field in fields(Correlation)]
    numbers = [*names, "beyond", *(f"beyond_{name}" for name in names[1:])]
    schema = {**dict.fromkeys(by, pl.String), **dict.fromkeys(numbers, pl.Float64)}
    made = pl.DataFrame(rows, schema={**schema, "blocks": pl.UInt32}, orient="row")
    return made.with_columns(pl.col(numbers[len(names) :]).fill_nan(None))


def along(ranks: pl.DataFrame, value: str = "value", sign: int = 1) -> pl.DataFrame:
    """The correlations that are significantly above 0, or below it with a `sign` of -1."""
    p_value = "p_value" if value == "value" else f"{value}_p_value"
    return ranks.filter(sign * pl.col(value) > 0, pl.col(p_value) <= SIGNIFICANT)
