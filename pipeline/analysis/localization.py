"""How well each scorer finds the block that learned the memorized samples, where that is known.

A scorer gives each block of a model a number; the block with the highest is where it takes the
samples to be. The models are those with `source: continued`, of which one block learned them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipeline.analysis.manifests import read_manifests
from pipeline.analysis.measured import ModelTables, read_tables
from pipeline.analysis.statistics import wilson
from pipeline.interventions.interventions import BASELINE, EACH
from pipeline.theory import columns
from pipeline.workflow import tables

HALF = 0.5
"""Of the recited samples: an edit that ends so many is a fall."""


def scores(
    models: Sequence[tuple[str, str]], data: Path, *, divergence: bool, attribution: bool
) -> pl.DataFrame:
    """What each scorer gives each block of each model of which the place is known.

    Args:
        models: (name, family) of each.
        data: the study's folder, ``data/STUDY``.
        divergence: whether it was measured; it is a scorer then.
        attribution: likewise.

    Returns:
        Schema `tables.LOCALIZATION`, in the order of `models`.

    Raises:
        InputError: a table is missing or does not fit.
    """
    parts = []
    for name, family in models:
        [manifest] = read_manifests(data, [(name, family)])
        place = place_of(manifest)
        if place is None:
            continue
        measured = read_tables(data, name, family, benchmarked=False)
        found = list(_of_edits(measured))
        if divergence:
            path = data / "divergence" / f"{name}.parquet"
            found.append(_of_divergence(tables.read(path, columns.DIVERGENCE_TRIANGLE)))
        if attribution:
            path = data / "attribution" / f"{name}.parquet"
            found += _of_gradient(tables.read(path, tables.ATTRIBUTION))
        recited = measured.memorization.filter(intervention=BASELINE.name, split="memorized")
        parts.append(
            pl.concat(found).with_columns(
                model=pl.lit(name),
                part=pl.lit(place[0]),
                planted=pl.lit(place[1]),
                exact_match=pl.lit(recited["exact_match"].mean()),
            )
        )
    types = [pl.col(name).cast(column.dtype) for name, column in tables.LOCALIZATION.items()]
    return pl.concat(parts).select(types)


def place_of(manifest: dict[str, Any]) -> tuple[str, int] | None:
    """Part and block that learned the samples, by a checkpoint's manifest; None: unknown."""
    origin = manifest.get("origin") or {}
    recipe = origin.get("recipe") or {}
    return (recipe["part"], recipe["block"]) if "part" in recipe else None


def _of_edits(model: ModelTables) -> Iterator[pl.DataFrame]:
    """What the edits of one block each take from the memorized samples."""
    of_samples = model.samples.select("sample_id", "suffix_length")
    means = (
        model.memorization.join(of_samples, on="sample_id")
        .with_columns(log_prob=pl.col("suffix_log_prob") / pl.col("suffix_length"))
        .group_by("intervention", "split")
        .agg(pl.col("exact_match", "log_prob").mean())
    )
    lost = means.join(means.filter(intervention=BASELINE.name), on="split", suffix="_baseline")
    lost = lost.select(
        "intervention",
        "split",
        exact_match=pl.col("exact_match_baseline") - pl.col("exact_match"),
        log_prob=pl.col("log_prob_baseline") - pl.col("log_prob"),
    )
    control = lost.filter(split="control").select("intervention", control="log_prob")
    lost = lost.filter(split="memorized").join(control, on="intervention", how="left")
    each = model.interventions.filter(group=EACH).select(
        "intervention", scorer="edit", block=pl.col("blocks").list.first()
    )
    rows = each.join(lost, on="intervention", maintain_order="left")
    for quantity, score in (
        ("exact_match", pl.col("exact_match")),
        ("log_prob", pl.col("log_prob")),
        ("log_prob_minus_control", pl.col("log_prob") - pl.col("control")),
    ):
        made = rows.select("scorer", pl.lit(quantity).alias("quantity"), "block", score=score)
        yield _typed(made.drop_nulls())


def _of_divergence(triangle: pl.DataFrame) -> pl.DataFrame:
    """How far a bypass of each block moves the next token's distribution."""
    of = triangle.filter(pl.col("kl").is_not_null(), split="memorized")
    means = of.group_by("block").agg(score=pl.col("kl").mean()).sort("block")
    return _typed(means.select(pl.lit("divergence").alias("scorer"), pl.lit("kl").alias("quantity"),
                               "block", "score"))  # fmt: skip


def _of_gradient(attribution: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Gradient times activation, of each part and of both."""
    means = (
        attribution.filter(split="memorized")
        .group_by("block", "part")
        .agg(score=pl.col("value").mean())
    )
    both = means.group_by("block").agg(pl.lit("sum").alias("part"), pl.col("score").sum())
    for part in (means, both.select(means.columns)):
        made = part.select(
            pl.lit("gradient").alias("scorer"), pl.col("part").alias("quantity"), "block", "score"
        )
        yield _typed(made.sort("quantity", "block"))


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    columns = ("scorer", "quantity", "block", "score")
    return frame.select(pl.col(name).cast(tables.LOCALIZATION[name].dtype) for name in columns)


def places(found: pl.DataFrame) -> pl.DataFrame:
    """Where each scorer puts the block that learned the samples, a row a model and scorer.

    Args:
        found: as `scores` makes it.

    Returns:
        model, part, planted, scorer, quantity, n_blocks; ``first``: the chance that the scorer
        names the block, where blocks of one score are told apart by lot; ``reciprocal``: of the
        block's rank, likewise the mean over lots. Both are 0 to 1.
    """
    keys = ["model", "part", "planted", "scorer", "quantity"]
    true = found.filter(pl.col("block") == pl.col("planted")).select(*keys, true="score")
    ranked = found.join(true, on=keys).group_by(keys, maintain_order=True).agg(
        n_blocks=pl.len(),
        above=(pl.col("score") > pl.col("true")).sum(),
        equal=(pl.col("score") == pl.col("true")).sum(),
    )  # fmt: skip
    reciprocal = [
        float(np.mean(1 / np.arange(above + 1, above + equal + 1)))
        for above, equal in ranked.select("above", "equal").iter_rows()
    ]
    first = pl.when(pl.col("above") == 0).then(1 / pl.col("equal")).otherwise(0.0)
    return ranked.with_columns(first=first, reciprocal=pl.Series(reciprocal, dtype=pl.Float64))


def grades(found: pl.DataFrame) -> pl.DataFrame:
    """How often each scorer names the block first, and how near it comes, by the part that learned.

    Args:
        found: as `scores` makes it.

    Returns:
        part, scorer, quantity, n (models), and for each of ``recall`` (at 1) and ``reciprocal``
        (mean reciprocal rank): the value, ``_low`` and ``_high`` of its 95% interval, ``_chance``.
        The interval is Wilson's, which is that of a share; no number between 0 and 1 varies more
        than a share of the same mean, so it is wide enough for reciprocal ranks.
    """
    by = places(found).group_by("part", "scorer", "quantity", maintain_order=True)
    made = by.agg(
        n=pl.len(),
        recall=pl.col("first").mean(),
        reciprocal=pl.col("reciprocal").mean(),
        recall_chance=(1 / pl.col("n_blocks")).mean(),
        reciprocal_chance=pl.col("n_blocks").map_elements(_by_lot, pl.Float64).mean(),
    )
    for name in ("recall", "reciprocal"):
        n = made["n"].to_numpy().astype(np.float64)
        low, high = wilson(made[name].to_numpy() * n, n)
        made = made.with_columns(pl.Series(f"{name}_low", low), pl.Series(f"{name}_high", high))
    return made


def falls(found: pl.DataFrame, *by: str) -> pl.DataFrame:
    """How often an edit ends half of the recitals, at blocks that learned and at others.

    Args:
        found: as `scores` makes it.
        by: further columns to count by: ``part``, ``block``.

    Returns:
        ``by``, scorer, ``here`` (whether it is the block that learned), ``n`` blocks, ``share`` of
        them at which the edit ends at least half of what is recited with nothing edited, ``low``
        and ``high`` of its 95% interval (Wilson).
    """
    made = (
        found.filter(quantity="exact_match")
        .with_columns(
            here=pl.col("block") == pl.col("planted"),
            fell=pl.col("score") >= HALF * pl.col("exact_match"),
        )
        .group_by(*by, "scorer", "here", maintain_order=True)
        .agg(n=pl.len(), share=pl.col("fell").mean())
    )
    n = made["n"].to_numpy().astype(np.float64)
    low, high = wilson(made["share"].to_numpy() * n, n)
    return made.with_columns(pl.Series("low", low), pl.Series("high", high))


def _by_lot(n_blocks: int) -> float:
    """Mean reciprocal rank of blocks in an order drawn by lot."""
    return float(np.mean(1 / np.arange(1, n_blocks + 1)))
