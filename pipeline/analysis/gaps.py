"""Memory loss minus ability loss by the length at which memory is measured.

A suffix has many tokens and an answer one, so the loss of exact match grows with the suffix even
where every token is harmed alike. So the same difference is shown for the first 1, 2, 4, … tokens,
for the log probability, and for tokens of equal probability, which needs no benchmark: see
`survival`. Each is a mean over the edits of single late blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.displacement import SURVIVAL_GAP
from pipeline.analysis.estimates import measured_models
from pipeline.analysis.evidence import AT_K, LATE, LOG_PROB
from pipeline.analysis.statistics import LEVEL
from pipeline.interventions.interventions import EACH

EXACT = "exact_match"

COLUMNS = ("model", "family", "edit", "measure", "k", "gap", "low", "high")


def gaps(evidence: pl.DataFrame, summary: pl.DataFrame) -> pl.DataFrame:
    """The differences of each model under each edit of one late block; seeds are pooled.

    Args:
        evidence: schema `evidence.EVIDENCE`.
        summary: seeds pooled, for tokens of equal probability.

    Returns:
        model, family, edit, measure (`EXACT`, of the first ``k`` tokens or, with a null k, of all;
        `LOG_PROB`; or `SURVIVAL_GAP`), k, gap (memory loss minus ability loss, as shares of the
        leads; for `SURVIVAL_GAP` the loss of memorized minus that of control tokens), low, high
        (95%).
    """
    schema = dict.fromkeys(COLUMNS[:4], pl.String) | {"k": pl.UInt32}
    rows = pl.DataFrame(
        [
            row
            for edit in evidence["edit"].unique(maintain_order=True)
            for row in _of(evidence, edit)
        ],
        schema=schema | dict.fromkeys(COLUMNS[5:], pl.Float64),
        orient="row",
    )
    return pl.concat(
        [rows, _survivals(summary).select(pl.col(c).cast(rows.schema[c]) for c in COLUMNS)]
    )


def _of(evidence: pl.DataFrame, edit: str) -> Iterator[Sequence[object]]:
    lengths = evidence.filter(metric=AT_K)["k"].unique().sort()
    measures = [(EXACT, k) for k in [*lengths, None]] + [(LOG_PROB, None)]
    for model in measured_models(evidence, edit=edit):
        name = views.seeds_name(model.name, len(model.seeds))
        for measure, k in measures:
            terms = model.gap(LATE, measure, k)
            if model.has(terms):
                yield name, model.family, edit, measure, k, *model.estimate(terms, LEVEL)


def _survivals(summary: pl.DataFrame) -> pl.DataFrame:
    """The mean over the late blocks of each model and edit; their samples are the same."""
    rows = summary.filter(pl.col("block").is_not_null(), metric=SURVIVAL_GAP, group=EACH)
    return (
        views.in_range(rows, LATE)
        .group_by("model", "family", "edit", maintain_order=True)
        .agg(
            pl.lit(SURVIVAL_GAP).alias("measure"),
            pl.lit(None).alias("k"),
            -pl.mean("value").alias("gap"),
            -pl.mean("high").alias("low"),
            -pl.mean("low").alias("high"),
        )
    )
