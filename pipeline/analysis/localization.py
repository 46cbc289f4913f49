"""How well each scorer finds the block that learned the memorized samples, where that is known.

A scorer gives each block of a model a number; the block with the highest number is its guess. The
models are those with `source: continued`, in which one block learned the samples.
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
from pipeline.measure import schemas
from pipeline.theory import columns
from pipeline.workflow import tables
from pipeline.workflow.tables import Column, Schema

HALF = 0.5
"""Share of the recited samples: an edit that ends at least this share counts as a fall."""


LOCALIZATION: Schema = {
    "model": Column(pl.String, "name"),
    "part": Column(pl.String, "attention, mlp or both: what of the block learned the samples"),
    "planted": Column(pl.UInt16, "the block that learned them, 0-based"),
    "exact_match": Column(pl.Float64, "share of memorized samples recited with nothing edited"),
    "scorer": Column(
        pl.String, "identity, zero, mlp-zero, skip (edits of one block), divergence or gradient"
    ),
    "quantity": Column(
        pl.String,
        "of an edit: exact_match, log_prob, log_prob_minus_control (what memorized samples lose; "
        "nats a token); of divergence: kl (nats); of gradient: attention, mlp, sum (nats)",
    ),
    "block": Column(pl.UInt16, "the block that is scored, 0 to L-1"),
    "score": Column(pl.Float64, "higher: more likely the block that learned, by this scorer"),
}


def scores(
    models: Sequence[tuple[str, str]], data: Path, *, divergence: bool, attribution: bool
) -> pl.DataFrame:
    """The score of each block by each scorer, for each model whose memorizing block is known.

    Args:
        models: (name, family) of each.
        data: the study's folder, ``data/STUDY``.
        divergence: whether it was measured, so that it is a scorer.
        attribution: likewise.

    Returns:
        Schema `LOCALIZATION`, in the order of `models`.

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
            found += _of_gradient(tables.read(path, schemas.ATTRIBUTION))
        recited = measured.memorization.filter(intervention=BASELINE.name, split="memorized")
        parts.append(
            pl.concat(found).with_columns(
                model=pl.lit(name),
                part=pl.lit(place[0]),
                planted=pl.lit(place[1]),
                exact_match=pl.lit(recited["exact_match"].mean()),
            )
        )
    types = [pl.col(name).cast(column.dtype) for name, column in LOCALIZATION.items()]
    return pl.concat(parts).select(types)


def place_of(manifest: dict[str, Any]) -> tuple[str, int] | None:
    """Part and block that learned the samples, by a checkpoint's manifest; None: unknown."""
    origin = manifest.get("origin") or {}
    recipe = origin.get("recipe") or {}
    return (recipe["part"], recipe["block"]) if "part" in recipe else None


def _of_edits(model: ModelTables) -> Iterator[pl.DataFrame]:
    """The losses on memorized samples under edits of one block each."""
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
    return frame.select(pl.col(name).cast(LOCALIZATION[name].dtype) for name in columns)


def places(found: pl.DataFrame) -> pl.DataFrame:
    """The rank that each scorer gives the block that learned; one row per model and scorer.

    Args:
        found: as `scores` makes it.

    Returns:
        model, part, planted, scorer, quantity, n_blocks; ``first``: the probability that the scorer
        ranks the block first when ties are broken at random; ``reciprocal``: the expected
        reciprocal of the block's rank, likewise. Both are 0 to 1.
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
    """Recall at 1 and mean reciprocal rank of each scorer, by the part that learned.

    Args:
        found: as `scores` makes it.

    Returns:
        part, scorer, quantity, n (models), and for each of ``recall`` (at 1) and ``reciprocal``
        (mean reciprocal rank): the value, ``_low`` and ``_high`` of its 95% interval, ``_chance``.
        The interval is Wilson's for a share. A number between 0 and 1 varies at most as much as a
        share of the same mean, so the interval is wide enough for reciprocal ranks.
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
        them at which the edit ends at least half of the unmodified model's recitals, ``low`` and
        ``high`` of its 95% interval (Wilson).
    """
    made = (
        found.filter(quantity="exact_match")
        .with_columns(
            here=pl.col("block") == pl.col("planted"),
            fell=(pl.col("score") >= HALF * pl.col("exact_match")) & (pl.col("exact_match") > 0),
        )
        .group_by(*by, "scorer", "here", maintain_order=True)
        .agg(n=pl.len(), share=pl.col("fell").mean())
    )
    n = made["n"].to_numpy().astype(np.float64)
    low, high = wilson(made["share"].to_numpy() * n, n)
    return made.with_columns(pl.Series("low", low), pl.Series("high", high))


def _by_lot(n_blocks: int) -> float:
    """Mean reciprocal rank of a block in a random order."""
    return float(np.mean(1 / np.arange(1, n_blocks + 1)))
