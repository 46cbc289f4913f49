"""How much of the baseline single blocks and sets of blocks leave, read from the evidence.

Every share is ``(value - floor) / (baseline - floor)``, as computed in `evidence`: 1 is all of it,
0 is nothing. A measure whose baseline is not above its floor has nothing to lose and is left out.
"""

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.evidence import NUMBERS, TOKENS, interval
from pipeline.analysis.statistics import LEVEL
from pipeline.interventions.interventions import IDENTITY

MEAN = "benchmarks, mean lead over chance"
"""The measure of `kept` that is the mean over the benchmarks."""

MOST = 0.5
"""Less than this share of the baseline kept: most is lost."""

SCALES = ("raw", "corrected")
"""A drop as a share of the score, as in the paper, and as a share of its lead over chance."""

_MODEL = ("model", "recipe", "family")
_OVER = ("intervention", "group", "edit", "block", "blocks")
_KEPT = (*_MODEL, *_OVER, "measure", "kind", "kept", "low", "high")
_ENDS = [("kept", "low", "high")]


def kept(evidence: pl.DataFrame, *, pooled: bool = True) -> pl.DataFrame:
    """How much of the baseline is left under every edit of one block and every set of blocks.

    If `pooled`, the seeds of one recipe are one model; see `views.over_seeds`.

    Returns:
        model, recipe, family, intervention, group (block: one alone; quartile; random: a set),
        edit, block (null for a set), blocks (how many), measure
        (``exact_match``, ``teacher_forced_accuracy``, a task's name, or `MEAN`), kind
        (``memorization``, ``benchmark``, or ``mean`` over the benchmarks), kept, low, high (95%).
    """
    shares = _shares(evidence).select(_KEPT)
    mean = mean_over_tasks(shares.filter(kind="benchmark"), *_MODEL, *_OVER)
    mean = mean.with_columns(measure=pl.lit(MEAN), kind=pl.lit("mean"))
    rows = pl.concat([shares, mean.select(_KEPT)])
    key = ["recipe", *_OVER, "measure", "kind"]
    return views.over_seeds(rows, key, _ENDS) if pooled else rows


def one_block(shares: pl.DataFrame, edit: str = IDENTITY) -> pl.DataFrame:
    """The rows of `kept` under one edit of one block, by block."""
    return shares.filter(group="block", edit=edit).sort("block", maintain_order=True)


def drops(summary: pl.DataFrame, shares: pl.DataFrame) -> pl.DataFrame:
    """How much of its score each kind of task loses when one block is bypassed (Fig. 6).

    Returns:
        model, family, intervention, block, scale (of `SCALES`), ability (of `views.ABILITIES`),
        drop, low, high, tasks; each is a mean over the tasks of its kind.
    """
    scores = views.accuracies(summary)
    baselines = views.baseline(scores).select("model", "task", baseline="value")
    of_score = views.single_blocks(scores).join(
        baselines.filter(pl.col("baseline") > 0), on=["model", "task"], maintain_order="left"
    )
    key, whole = ("model", "family", "intervention", "block"), pl.col("baseline")
    ends = {
        end: pl.coalesce(whole + pl.col(f"difference_{end}"), end).clip(0, 1) / whole
        for end in ("low", "high")
    }
    raw = of_score.select(*key, measure="task", kept=pl.col("value") / whole, **ends)
    corrected = one_block(shares).filter(kind="benchmark").select(raw.columns)
    ability = {name: kind for kind, names in views.ABILITIES.items() for name in names}
    task = pl.col("measure").str.strip_prefix(views.GENERATED)
    scaled, by = zip(SCALES, (raw, corrected), strict=True), (*key, "scale", "ability")
    rows = pl.concat(frame.with_columns(scale=pl.lit(scale)) for scale, frame in scaled)
    rows = rows.with_columns(ability=task.replace_strict(ability, default=None))
    lost = {"drop": "kept", "low": "high", "high": "low"}
    return mean_over_tasks(rows.drop_nulls("ability"), *by).select(
        *by, **{name: 1 - pl.col(left) for name, left in lost.items()}, tasks="tasks"
    )


def mean_over_tasks(shares: pl.DataFrame, *by: str) -> pl.DataFrame:
    """The mean of kept over measures, for each `by`, with low and high from independent errors.

    Benchmarks have different documents, so their errors are independent.

    Returns:
        `by`, kept, low, high, tasks (the measures, joined by commas).
    """
    kept, low, high = pl.col("kept"), pl.col("low"), pl.col("high")
    return shares.group_by(by, maintain_order=True).agg(
        kept.mean(),
        low=kept.mean() - ((kept - low) ** 2).sum().sqrt() / pl.len(),
        high=kept.mean() + ((high - kept) ** 2).sum().sqrt() / pl.len(),
        tasks=pl.col("measure").sort().str.join(", "),
    )


def _shares(evidence: pl.DataFrame) -> pl.DataFrame:
    """The rows of single interventions with their 95% intervals; one metric of each task."""
    memory = pl.col("task") == views.MEMORIZATION
    rows = evidence.filter(
        pl.col("blocks").is_not_null(),
        ~memory | pl.col("metric").is_in(("exact_match", TOKENS)),
        quantity="kept",
    )
    rows = pl.concat([rows.filter(memory), views.benchmarks(rows)])
    rows = rows.rename({"kind": "group", "over": "intervention"})
    ends = [interval(row, LEVEL) for row in rows.select(NUMBERS).iter_rows()]
    schema = dict.fromkeys(("low", "high"), pl.Float64)
    return rows.hstack(pl.DataFrame(ends, schema=schema, orient="row")).with_columns(
        kept="value",
        measure=views.MEASURE,
        kind=pl.when(memory).then("task").otherwise(pl.lit("benchmark")),
    )
