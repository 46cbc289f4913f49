"""How well each scorer finds the places that learned, and what deleting what it names does.

A scorer gives each place of a model a number. Models that continue from one trained base share its
weights, so intervals are clustered by base and seed.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from pipeline.analysis.statistics import clustered_means, scale_of_categories, wilson

HALF = 0.5
"""Share of the recited samples: an edit that ends at least this share counts as a fall."""
MOST_LEFT, MOST_LOST = 0.1, 0.02
"""Deletion removes a memory at no cost if at most this share of its recitations is left, and at
most this much of the accuracy on control samples is lost."""
ALL = "all"
"""In the column ``truth``: the mean over all models."""
CLUSTER = ["base", "seed"]
_MODEL = ["model", *CLUSTER, "truth"]


def merits(found: pl.DataFrame) -> pl.DataFrame:
    """What each scorer is worth on each model, of the table `LOCALIZATION`.

    Returns:
        model, base, seed, truth, scorer; ``hit``: the probability that its first place learned,
        where equal scores are ordered at random; ``rank``: the expected rank of the first place
        that learned, from 1; ``average_precision``, where equal scores share a threshold;
        ``chance`` of a hit for a scorer that knows nothing, and ``chance_rank``.
    """
    keys = [*_MODEL, "scorer"]
    rows = []
    for key, part in found.group_by(keys, maintain_order=True):
        score, true = part["score"].to_numpy(), part["is_truth"].to_numpy()
        best, n, k = score[true].max(), len(score), int(true.sum())
        first = score == best
        above, equal, right = (int(each.sum()) for each in (score > best, first, first & true))
        hit, rank = 0.0 if above else right / equal, above + (equal + 1) / (right + 1)
        precision = [(true & (score >= s)).sum() / (score >= s).sum() for s in score[true]]
        rows.append((*key, hit, rank, float(np.mean(precision)), k / n, (n + 1) / (k + 1)))
    names = ["hit", "rank", "average_precision", "chance", "chance_rank"]
    schema = {name: found.schema[name] for name in keys} | dict.fromkeys(names, pl.Float64())
    return pl.DataFrame(rows, schema=schema, orient="row")


def removals(removal: pl.DataFrame) -> pl.DataFrame:
    """What deletion of what a scorer names does to each model that recites anything.

    Returns:
        model, base, seed, truth, scorer; ``removed``: the share of recitations that end; ``lost``:
        accuracy on control samples, a share; ``clean``: 1 if nearly all end at no cost, else 0.
    """
    left = pl.col("exact_match_left") / pl.col("exact_match")
    lost = pl.col("accuracy") - pl.col("accuracy_left")
    clean = ((left <= MOST_LEFT) & (lost <= MOST_LOST)).cast(pl.Float64)
    recite = removal.filter(pl.col("exact_match") > 0)
    return recite.select(*_MODEL, "scorer", removed=1 - left, lost=lost, clean=clean)


def means(frame: pl.DataFrame, limited: Sequence[str], others: Sequence[str]) -> pl.DataFrame:
    """Means by truth and scorer, and over all truths, of what `merits` or `removals` gives.

    Columns that are `limited`, between 0 and 1, get an interval; others get none.

    Returns:
        truth, scorer, ``n`` models, ``clusters`` (trained bases), ``place``: the rank of the scorer
        by the first of `limited`, from 1, shared where it is equal; and the columns, with ``_low``
        and ``_high`` of a 95% interval: clustered by trained base, or with one base alone Wilson's
        over its models.
    """
    both = pl.concat([frame, frame.with_columns(truth=pl.lit(ALL))])
    rows = []
    for (truth, scorer), part in both.group_by("truth", "scorer", maintain_order=True):
        group = part.select(pl.struct(CLUSTER).rank("dense")).to_series().to_numpy().astype(int)
        row = {"truth": truth, "scorer": scorer, "n": part.height, "clusters": group.max()}
        values = part.select(limited).to_numpy().astype(np.float64)
        made = clustered_means(values, group, scale=scale_of_categories(group))
        ends = made.low, made.high
        if row["clusters"] == 1:
            n = np.full(len(limited), float(part.height))
            ends = wilson(values.mean(0) * n, n)
        for name, *numbers in zip(limited, values.mean(0), *ends, strict=True):
            row |= zip((name, f"{name}_low", f"{name}_high"), numbers, strict=True)
        rows.append(row | {name: part[name].mean() for name in others})
    place = pl.col(limited[0]).round(9).rank("min", descending=True).over("truth")
    return pl.DataFrame(rows).with_columns(place=place)


def falls(found: pl.DataFrame, removal: pl.DataFrame, *by: str) -> pl.DataFrame:
    """How often an edit of a block ends half of the recitals, at blocks that learned and at others.

    Of the tables `LOCALIZATION`, and `REMOVAL` for what each model recites; counted also by the
    columns ``truth`` or ``place``, if these are named.

    Returns:
        ``by``, scorer, ``here`` (whether the block learned), ``n`` blocks, ``share`` of them at
        which the edit ends at least half of the unmodified model's recitals, ``low`` and ``high``
        of its 95% interval (Wilson).
    """
    edits = pl.col("scorer").str.ends_with(".exact_match")
    edited = found.filter(edits, pl.col("place").str.contains(r"^block-\d+$"))
    recites = removal.select("model", "exact_match").unique(maintain_order=True)
    recited = pl.col("exact_match")
    fell = (pl.col("score") >= HALF * recited) & (recited > 0)
    made = (
        edited.join(recites, on="model", maintain_order="left")
        .group_by(*by, "scorer", here="is_truth", maintain_order=True)
        .agg(n=pl.len(), share=fell.mean())
    )
    n = made["n"].to_numpy().astype(np.float64)
    low, high = wilson(made["share"].to_numpy() * n, n)
    return made.with_columns(pl.Series("low", low), pl.Series("high", high))
