"""Memory loss minus ability loss by the length at which memory is measured.

A suffix has many tokens and an answer one, so the loss of exact match grows with the suffix even
where every token is harmed alike. So the same difference is shown for the first 1, 2, 4, … tokens,
for the log probability, and for tokens of equal probability, which needs no benchmark: see
`survival`. Each is a mean over the edits of single late blocks.
"""

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.displacement import SURVIVAL_GAP
from pipeline.analysis.estimates import measured_models
from pipeline.analysis.evidence import AT_K, LATE, LOG_PROB
from pipeline.analysis.statistics import LEVEL
from pipeline.interventions.interventions import EACH

EXACT = "exact_match"

_COLUMNS = pl.Schema(
    {
        **dict.fromkeys(("model", "family", "edit", "measure"), pl.String()),
        "k": pl.UInt32(),
        **dict.fromkeys(("gap", "low", "high"), pl.Float64()),
    }
)


def gaps(evidence: pl.DataFrame, summary: pl.DataFrame) -> pl.DataFrame:
    """The differences of each model under each edit of one late block; seeds are pooled.

    The summary, with seeds pooled, is for tokens of equal probability.

    Returns:
        model, family, edit, measure (`EXACT`, of the first ``k`` tokens or, with a null k, of all;
        `LOG_PROB`; or `SURVIVAL_GAP`), k, gap (memory loss minus ability loss, as shares of the
        leads; for `SURVIVAL_GAP` the loss of memorized minus that of control tokens), low, high
        (95%).
    """
    lengths = evidence.filter(metric=AT_K)["k"].unique().sort()
    measures = [(EXACT, k) for k in [*lengths, None]] + [(LOG_PROB, None)]
    rows = [
        (model.shown, model.family, edit, measure, k, *model.estimate(terms, LEVEL))
        for edit in evidence["edit"].unique(maintain_order=True)
        for model in measured_models(evidence, edit=edit)
        for measure, k in measures
        if model.has(terms := model.gap(LATE, measure, k))
    ]
    made = pl.DataFrame(rows, schema=_COLUMNS, orient="row")
    return pl.concat([made, _survivals(summary).select(*_COLUMNS).cast(_COLUMNS)])


def _survivals(summary: pl.DataFrame) -> pl.DataFrame:
    """The mean over the late blocks of each model and edit; their samples are the same."""
    rows = summary.filter(pl.col("block").is_not_null(), metric=SURVIVAL_GAP, group=EACH)
    late = views.in_range(rows, LATE)
    low, high = (  # null where one is unknown
        -pl.when(pl.col(end).null_count() == 0).then(pl.mean(end)) for end in ("high", "low")
    )
    return late.group_by("model", "family", "edit", maintain_order=True).agg(
        measure=pl.lit(SURVIVAL_GAP), k=None, gap=-pl.mean("value"), low=low, high=high
    )
