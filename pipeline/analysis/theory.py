"""Combines the tables of the theory's stages for the figures and the page.

A table that does not fit its schema is named in `Theory.missing`; the rest is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from pipeline.analysis import statistics
from pipeline.samples.schemas import read_samples
from pipeline.theory import columns
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError

THEOREMS_TITLE = "The theorems, measured"
ATTENTION_ONLY_TITLE = "Attention-only transformers"
"""The headings of the page's two sections on theory."""

QUANTITIES = {
    "printed": "Theorem 1, bound as printed",
    "bound": "Theorem 1, corrected bound",
    "after_block": "change right after the block",
    "logits": "change of the logits",
    "kl": "KL divergence of the logits",
}
"""Quantity that may predict which blocks matter -> its label."""


_NOTHING = (pl.DataFrame(),) * 3


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
        experiments: the tables of `columns.EXPERIMENTS` that exist.
        missing: the tables that cannot be read, as sentences.
    """

    triangle: pl.DataFrame
    quantities: pl.DataFrame
    bounds: pl.DataFrame
    experiments: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    missing: Sequence[str] = ()


def read_theory(data: Path, models: Sequence[tuple[str, str]]) -> Theory:
    """Read those of the theory's tables that a study has in its folder, ``data/STUDY``.

    If the theorems were measured on one of the models, (name, family), they should be on all.
    """
    parts, missing = list[list[pl.DataFrame]](), list[str]()
    experiments: dict[str, pl.DataFrame] = {}
    for name, family in models if any((data / "divergence").glob("*.parquet")) else ():
        path = data / "divergence" / f"{name}.parquet"
        try:
            triangle = tables.read(path, columns.DIVERGENCE_TRIANGLE)
            bounds = tables.read(path.with_suffix(".bounds.parquet"), columns.DIVERGENCE_BOUNDS)
            samples = read_samples(data, family)
        except InputError as error:
            missing.append(f"The theorems were not measured on {name}: {error.problems[0].got}")
            continue
        model = pl.lit(name).alias("model"), pl.lit(family).alias("family")
        made = _median_changes(triangle), _quantities(triangle, bounds, samples), bounds
        parts.append([each.select(*model, pl.all()) for each in made])
    for experiment, schema in columns.EXPERIMENTS.items():
        path = data / "theory" / f"{experiment}.parquet"
        try:
            if path.exists():
                experiments[experiment] = tables.read(path, schema)
        except InputError as error:
            what = experiment.replace("_", " ")
            missing.append(f"There is no table of the {what} experiment: {error.problems[0].got}")
    triangle, quantities, bounds = map(pl.concat, zip(*parts, strict=True)) if parts else _NOTHING
    return Theory(triangle, quantities, bounds, experiments, missing)


def per_block(bounds: pl.DataFrame, theorem: int) -> pl.DataFrame:
    """The quantity that a theorem bounds, and its bounds, block by block.

    Returns:
        model, family, block, change (the median), low and high (the quartiles), the medians of
        printed, coarse and corrected, printed_violated and corrected_violated (numbers of
        samples), n.
    """
    if not bounds.height:
        return bounds
    start, coarse = {1: ("", "bound_a1"), 2: ("next_", "next_bound_coarse")}[theorem]
    own = {name: f"{start}{name}" for name in ("change", "printed", "printed_violated")}
    ours = {"corrected": f"{start}bound", "corrected_violated": f"{start}violated"}
    rows = bounds.select("model", "family", "block", coarse=coarse, **own, **ours)
    rows = rows.drop_nulls("change")
    return rows.group_by("model", "family", "block", maintain_order=True).agg(
        *_quartiles("change"),
        pl.median("printed", "coarse", "corrected"),
        pl.sum("printed_violated", "corrected_violated"),
        n=pl.len(),
    )


def over_seeds(
    rows: pl.DataFrame, *by: str, share: bool = False, log: bool = False
) -> pl.DataFrame:
    """Means over seeds with t intervals, for each `by`, the columns that identify an estimate.

    The rows have `by`, seed, value, and bound, which is averaged. The interval of a `share` is
    limited to 0 and 1. With `log`, for numbers that differ by factors, mean and interval are
    computed on the logarithms.

    Returns:
        `by`, value, low, high (null for one seed), bound, seeds.
    """
    value = pl.col("value").log() if log else pl.col("value")
    grouped = rows.group_by(by, maintain_order=True).agg(value, pl.mean("bound"), seeds=pl.len())
    ends = [statistics.student(np.array(values)) for values in grouped["value"]]
    low_high = pl.DataFrame(ends, {"low": pl.Float64, "high": pl.Float64}, orient="row")
    estimates = grouped.select(*by, pl.col("value").list.mean()).hstack(low_high.fill_nan(None))
    if log:
        estimates = estimates.with_columns(pl.col("value", "low", "high").exp())
    elif share:
        estimates = estimates.with_columns(pl.col("low", "high").clip(0, 1))
    return estimates.hstack(grouped.select("bound", "seeds"))


def stored_in(rows: pl.DataFrame) -> pl.DataFrame:
    """The models of the experiment ``routing``, and where each stores its table.

    Returns:
        The accuracies among them, with stored_in: heads, mlp, or frozen head.
    """
    behind = pl.when(pl.col("hidden") > 0).then(pl.lit("mlp")).otherwise(pl.lit("frozen head"))
    place = pl.when(architecture="attention-only").then(pl.lit("heads")).otherwise(behind)
    accuracies = rows.filter(pl.col("quantity").str.ends_with("accuracy"), experiment="routing")
    return accuracies.with_columns(stored_in=place)


def _quartiles(column: str) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
    """The median, under the column's own name, and the quartiles as low and high."""
    low, high = (pl.col(column).quantile(share, "linear") for share in (0.25, 0.75))
    return pl.median(column), low.alias("low"), high.alias("high")


def _median_changes(triangle: pl.DataFrame) -> pl.DataFrame:
    key = ["split", "block", "after"]
    counted = triangle.with_columns(n_blocks=pl.max("after"))
    made = counted.group_by(key).agg(
        pl.first("n_blocks"), *_quartiles("relative"), pl.median("kl"), n=pl.len()
    )
    return made.sort(key, descending=[True, False, False])


def _quantities(
    triangle: pl.DataFrame, bounds: pl.DataFrame, samples: pl.DataFrame
) -> pl.DataFrame:
    """Means over the memorized samples; samples of one suffix are drawn together."""
    logits = triangle.filter(pl.col("after") == pl.col("after").max())
    sources = {
        "printed": (bounds, "printed"),
        "bound": (bounds, "bound"),
        "after_block": (triangle.filter(pl.col("after") == pl.col("block")), "relative"),
        "logits": (logits, "relative"),
        "kl": (logits, "kl"),
    }
    groups = samples.select("sample_id", "suffix_group")
    return pl.concat(
        _means(rows.filter(split="memorized"), column, groups).select(
            "block", pl.lit(quantity).alias("quantity"), "mean", "low", "high"
        )
        for quantity, (rows, column) in sources.items()
    )


def _means(rows: pl.DataFrame, column: str, groups: pl.DataFrame) -> pl.DataFrame:
    """block, mean, low, high."""
    blocks = rows["block"].unique().sort()
    if not rows.height:
        return pl.DataFrame({"block": blocks}).select("block", mean=0.0, low=0.0, high=0.0)
    wide = rows.pivot("block", index="sample_id", values=column)
    wide = wide.join(groups, on="sample_id", how="left", maintain_order="left")
    values = wide.select(map(str, blocks)).to_numpy()
    found = statistics.clustered_means(values, wide["suffix_group"].to_numpy())
    ends = pl.DataFrame({"low": found.low, "high": found.high}).fill_nan(None)
    return pl.DataFrame({"block": blocks, "mean": found.value}).hstack(ends)
