"""The link from theory to damage: whether a theorem's quantities predict which blocks matter.

Computes, over the single blocks of a model, the rank correlation between the change that a bypass
makes inside (or a bound on it) and the loss. A model has few blocks, so the intervals are wide; and
neighbouring blocks are alike, so the intervals are still too narrow rather than too wide.

Shapes: N pairs.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from pipeline.analysis import views
from pipeline.analysis.kept import kept, one_block
from pipeline.analysis.statistics import DRAWS, GRAIN, LEVEL
from pipeline.interventions.interventions import IDENTITY

_Floats = NDArray[np.float64]

LOSSES = {
    "exact_match": "loss of exact match",
    "suffix_log_prob": "loss of log probability",
    "benchmarks": "loss of benchmarks",
}
"""Loss -> its label."""


class Correlation(NamedTuple):
    """A rank correlation, -1 to 1, with its 95% interval and p-value.

    Args:
        value: Spearman's; NaN where one of the two does not vary.
        low, high: ends of the interval; likewise.
        p_value: of no relation, two-sided; likewise.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan


def losses(summary: pl.DataFrame, shares: pl.DataFrame) -> pl.DataFrame:
    """The losses of each model when one block is bypassed.

    ``exact_match`` and ``benchmarks`` (the mean over them) as shares of the baseline, or of its
    lead over chance; ``suffix_log_prob`` in nats per suffix, of memorized samples. The shares are
    those of `kept.kept`, not pooled.

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
    return pl.concat([shared, nats])


def pairs(summary: pl.DataFrame, evidence: pl.DataFrame, quantities: pl.DataFrame) -> pl.DataFrame:
    """Every quantity beside every loss, block by block.

    Returns:
        model, family, block, quantity, mean, low, high, measure, lost, lost_low, lost_high,
        displacement (null where unknown).
    """
    if not quantities.height:
        return quantities
    lost = losses(summary, kept(evidence, pooled=False)).drop("family")
    moved = evidence.filter(quantity="displacement", kind="block", edit=IDENTITY)
    moved, key = moved.select("model", "block", displacement="value"), ["model", "block"]
    joined = quantities.join(lost, on=key, maintain_order="left")
    joined = joined.join(moved, on=key, how="left", maintain_order="left")
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
    rows, by = [], ("model", "quantity", "measure")
    later = paired.filter(pl.col("block") > 0) if paired.height else paired
    for key, part in later.group_by(by, maintain_order=True) if later.height else ():
        given = [part[name].cast(pl.Float64).to_numpy() for name in ("block", "displacement")]
        both = part["mean"].to_numpy(), part["lost"].to_numpy()
        found, beyond = rank_correlation(*both, seed=0), Correlation()
        if not part["displacement"].null_count():
            beyond = rank_correlation(*both, seed=0, given=given)
        if not math.isnan(found.value):
            rows.append((*key, *found, *beyond, part.height))
    own, less = Correlation._fields, ("beyond", "beyond_low", "beyond_high", "beyond_p_value")
    schema = {**dict.fromkeys(by, pl.String), **dict.fromkeys(own + less, pl.Float64)}
    made = pl.DataFrame(rows, schema={**schema, "blocks": pl.UInt32}, orient="row")
    return made.with_columns(pl.col(less).fill_nan(None))


def along(ranks: pl.DataFrame, value: str = "value", sign: int = 1) -> pl.DataFrame:
    """The correlations that are significantly above 0, or below it with a `sign` of -1."""
    p_value = "p_value" if value == "value" else f"{value}_p_value"
    return ranks.filter(sign * pl.col(value) > 0, pl.col(p_value) <= 1 - LEVEL)


def rank_correlation(
    one: _Floats, other: _Floats, seed: int, draws: int = DRAWS, given: Sequence[_Floats] = ()
) -> Correlation:
    """Spearman's rank correlation, also partial, with an interval and a permutation test.

    With `given` it is the correlation of the residuals of the ranks after linear regression on the
    ranks of the others, and the test permutes the residuals of `other`. That test rejects slightly
    too often where both follow a given variable closely, since ranks follow along a curve: for
    unrelated normal variables that correlate with it by 0.9, one test in 13 is below 0.05.

    All are (N,), finite and in one order; there are K given ones and as many permutations as draws.

    Returns:
        The correlation; NaN with fewer than 3 + K pairs.

    Source: Freedman and Lane (1983), J. Business and Economic Statistics 1, 292-298; for the
    interval see `_interval`.
    """
    count = len(one)
    if count < 3 + len(given):
        return Correlation()
    ranks = [stats.rankdata(each) for each in (one, other, *given)]
    centred = [each - each.mean() for each in ranks]
    basis = np.zeros((count, 0))
    if given:
        directions, sizes, _ = np.linalg.svd(np.stack(centred[2:], axis=1), full_matrices=False)
        basis = directions[:, sizes > GRAIN]
    left, right = (each - basis @ (basis.T @ each) for each in centred[:2])
    size = math.sqrt((left @ left) * (right @ right))
    if size < GRAIN:
        return Correlation()
    value = min(1.0, max(-1.0, float(left @ right) / size))
    shuffled = np.random.default_rng(seed).permuted(np.tile(right, (draws, 1)), axis=1)
    # permuted residuals are regressed on the given ranks again, as the ranks were
    shuffled -= (shuffled @ basis) @ basis.T
    by_chance = shuffled @ left / (np.linalg.norm(shuffled, axis=1) * np.linalg.norm(left) + GRAIN)
    beyond = int((np.abs(by_chance) >= abs(value) * (1 - GRAIN) - GRAIN).sum())
    low, high = _interval(value, count, len(given))
    return Correlation(value, low, high, (1 + beyond) / (1 + draws))


def _interval(value: float, count: int, given: int) -> tuple[float, float]:
    """The 95% interval of a rank correlation of N pairs, given K others.

    Fisher's transformation with the variance of Bonett and Wright. A perfect correlation is taken
    as half a step of Spearman's coefficient away from it, so that few pairs do not make it certain.

    Source: Bonett and Wright (2000), Psychometrika 65, 23-28.
    """
    free = count - 3 - given
    if free <= 0:
        return -1.0, 1.0
    nearest = 1 - 6 / (count * (count**2 - 1))
    centre = math.atanh(min(nearest, max(-nearest, value)))
    half = stats.norm.ppf((1 + LEVEL) / 2) * math.sqrt((1 + value**2 / 2) / free)
    return min(value, math.tanh(centre - half)), max(value, math.tanh(centre + half))
