"""Combines the tables of the theory's stages for the figures and the page.

A table that is missing or does not fit its schema is named in `Theory.missing`; the rest is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis import statistics
from pipeline.samples.schemas import read_samples
from pipeline.theory import columns
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError

THEOREMS_TITLE = "The theorems, measured"
ATTENTION_ONLY_TITLE = "Attention-only transformers"
"""The headings of the page's two sections on theory."""

MEASURED = {1: "change", 2: "next_change"}
"""Theorem -> the column of the quantity that it bounds."""

BOUNDS = {
    1: {"printed": "printed", "coarse": "bound_a1", "corrected": "bound"},
    2: {"printed": "next_printed", "coarse": "next_bound_coarse", "corrected": "next_bound"},
}
"""Theorem -> name of a bound -> its column."""

VIOLATED = {
    1: {"printed": "printed_violated", "corrected": "violated"},
    2: {"printed": "next_printed_violated", "corrected": "next_violated"},
}

QUANTITIES = {
    "printed": "Theorem 1, bound as printed",
    "bound": "Theorem 1, corrected bound",
    "after_block": "change right after the block",
    "logits": "change of the logits",
    "kl": "KL divergence of the logits",
}
"""Quantity that may predict which blocks matter -> its label."""

EXPERIMENTS = {
    "associative": columns.ASSOCIATIVE,
    "lookup": columns.LOOKUP,
    "low_rank": columns.LOW_RANK,
    "constructive": columns.CONSTRUCTIVE,
    "attention_only": columns.ATTENTION_ONLY,
}
"""Table of `data/STUDY/theory` -> its schema."""


@dataclass(frozen=True)
class Theory:
    """The theory's tables, cut to what is shown; frames without rows have no columns either.

    Args:
        triangle: a row for each model, split, bypassed block, and block after which is measured:
            model, family, split, block, after (n_blocks: the logits), n_blocks, relative (the
            median), low and high (the quartiles), kl (the median, of the logits), n.
        quantities: mean of each of `QUANTITIES` over the memorized samples: model, family, block,
            quantity, mean, low, high.
        bounds: of every sample, all splits: model, family, and the columns of
            `columns.DIVERGENCE_BOUNDS`.
        experiments: the tables of `EXPERIMENTS` that exist.
        missing: the missing tables, as sentences.
    """

    triangle: pl.DataFrame
    quantities: pl.DataFrame
    bounds: pl.DataFrame
    experiments: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    missing: Sequence[str] = ()


def read_theory(
    data: Path,
    models: Sequence[tuple[str, str]],
    seed: int = 0,
    experiments: Collection[str] = tuple(EXPERIMENTS),
) -> Theory:
    """Read the theory's tables of a study.

    Args:
        data: the study's folder, ``data/STUDY``.
        models: (name, family) of each on which the theorems were measured, in the order of the
            report.
        seed: of the bootstrap.
        experiments: the study's selection of `EXPERIMENTS`.
    """
    triangles, quantities, bounds, missing = [], [], [], []
    for name, family in models:
        try:
            triangle = tables.read(
                data / "divergence" / f"{name}.parquet", columns.DIVERGENCE_TRIANGLE
            )
            bound = tables.read(
                data / "divergence" / f"{name}.bounds.parquet", columns.DIVERGENCE_BOUNDS
            )
            samples = read_samples(data, family)
        except InputError as error:
            missing.append(f"The theorems were not measured on {name}: {error.problems[0].got}")
            continue
        model = pl.lit(name).alias("model"), pl.lit(family).alias("family")
        triangles.append(_median_changes(triangle).select(*model, pl.all()))
        quantities.append(_quantities(triangle, bound, samples, seed).select(*model, pl.all()))
        bounds.append(bound.select(*model, pl.all()))
    found = {}
    for experiment, schema in EXPERIMENTS.items():
        if experiment not in experiments:
            continue
        try:
            found[experiment] = tables.read(data / "theory" / f"{experiment}.parquet", schema)
        except InputError as error:
            what = experiment.replace("_", " ")
            missing.append(f"There is no table of the {what} experiment: {error.problems[0].got}")
    whole = [
        pl.concat(each) if each else pl.DataFrame() for each in (triangles, quantities, bounds)
    ]
    return Theory(whole[0], whole[1], whole[2], found, missing)


def per_block(bounds: pl.DataFrame, theorem: int) -> pl.DataFrame:
    """The quantity that a theorem bounds, and its bounds, block by block.

    Args:
        bounds: as in `Theory`.
        theorem: 1 or 2.

    Returns:
        model, family, block, change (the median), low and high (the quartiles), the medians of
        printed, coarse and corrected, printed_violated and corrected_violated (numbers of
        samples), n.
    """
    if not bounds.height:
        return bounds
    measured = pl.col(MEASURED[theorem])
    return (
        bounds.filter(measured.is_not_null())
        .group_by("model", "family", "block", maintain_order=True)
        .agg(
            measured.median().alias("change"),
            measured.quantile(0.25, "linear").alias("low"),
            measured.quantile(0.75, "linear").alias("high"),
            *(pl.col(column).median().alias(name) for name, column in BOUNDS[theorem].items()),
            *(
                pl.col(column).sum().cast(pl.UInt32).alias(f"{name}_violated")
                for name, column in VIOLATED[theorem].items()
            ),
            pl.len().cast(pl.UInt32).alias("n"),
        )
    )


def over_seeds(
    rows: pl.DataFrame, *by: str, share: bool = False, log: bool = False
) -> pl.DataFrame:
    """Means over seeds with t intervals, for each `by`.

    Args:
        rows: of one quantity: `by`, seed, value, bound (which is averaged).
        *by: the columns that identify an estimate.
        share: the value is a share, so its interval is limited to 0 and 1.
        log: compute mean and interval on the logarithms, for numbers that differ by factors.

    Returns:
        `by`, value, low, high (null for one seed), bound, seeds.
    """
    value = pl.col("value").log() if log else pl.col("value")
    grouped = rows.group_by(by, maintain_order=True).agg(
        value, pl.col("bound").mean(), pl.len().cast(pl.UInt32).alias("seeds")
    )
    ends = [statistics.student(np.array(values)) for values in grouped["value"]]
    low, high = zip(*ends, strict=True) if ends else ((), ())
    estimates = grouped.with_columns(
        pl.col("value").list.mean(),
        pl.Series("low", low, pl.Float64).fill_nan(None),
        pl.Series("high", high, pl.Float64).fill_nan(None),
    ).select(*by, "value", "low", "high", "bound", "seeds")
    if log:
        return estimates.with_columns(pl.col("value", "low", "high").exp())
    return estimates.with_columns(pl.col("low", "high").clip(0, 1)) if share else estimates


def _median_changes(triangle: pl.DataFrame) -> pl.DataFrame:
    relative = pl.col("relative")
    return (
        triangle.group_by("split", "block", "after")
        .agg(
            relative.median(),
            relative.quantile(0.25, "linear").alias("low"),
            relative.quantile(0.75, "linear").alias("high"),
            pl.col("kl").median(),
            pl.len().cast(pl.UInt32).alias("n"),
        )
        .with_columns(pl.col("after").max().alias("n_blocks"))
        .select("split", "block", "after", "n_blocks", "relative", "low", "high", "kl", "n")
        .sort("split", "block", "after", descending=[True, False, False])
    )


def _quantities(
    triangle: pl.DataFrame, bounds: pl.DataFrame, samples: pl.DataFrame, seed: int
) -> pl.DataFrame:
    """Means over the memorized samples; samples of one suffix are drawn together."""
    memorized = triangle.filter(split="memorized")
    logits = memorized.filter(pl.col("after") == triangle["after"].max())
    bounds = bounds.filter(split="memorized")
    sources = {
        "printed": (bounds, "printed"),
        "bound": (bounds, "bound"),
        "after_block": (memorized.filter(pl.col("after") == pl.col("block")), "relative"),
        "logits": (logits, "relative"),
        "kl": (logits, "kl"),
    }
    groups = samples.select("sample_id", "suffix_group")
    return pl.concat(
        _means(rows.select("sample_id", "block", pl.col(column).alias("value")), groups, seed)
        .with_columns(pl.lit(quantity).alias("quantity"))
        .select("block", "quantity", "mean", "low", "high")
        for quantity, (rows, column) in sources.items()
    )


def _means(rows: pl.DataFrame, groups: pl.DataFrame, seed: int) -> pl.DataFrame:
    """block, mean, low, high, from sample_id, block, value."""
    wide = rows.pivot("block", index="sample_id", values="value").join(
        groups, on="sample_id", how="left", maintain_order="left"
    )
    blocks = sorted(rows["block"].unique())
    empty: NDArray[np.float64] = np.empty(0)
    estimates = statistics.Estimates(empty, empty, empty)
    if blocks:
        values = wide.select(str(block) for block in blocks).to_numpy()
        estimates = statistics.clustered_means(values, wide["suffix_group"].to_numpy())
    ends = (pl.Series("low", estimates.low), pl.Series("high", estimates.high))
    return pl.DataFrame(
        {"block": pl.Series(blocks, dtype=pl.UInt16), "mean": estimates.value}
    ).with_columns(each.cast(pl.Float64).fill_nan(None) for each in ends)
