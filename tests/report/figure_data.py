"""The data of each figure, computed again from the summary and the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from pipeline.analysis.statistics import LEVEL, reach
from tests.report.captions import (
    KINDS,
    SINGLE,
    SPREAD,
    WHOLE,
    benchmarks,
    kept,
    late,
    memorized,
)

COLUMNS = (
    *("model", "family", "intervention", "block", "task", "metric", "value", "low", "high", "n"),
)
ONE_BLOCK = pl.col("group") == "each"
MEAN = "benchmarks, mean lead over chance"
LENGTHS = (1, 4, 16)
TYPICAL = "typical {} block"


def frames(
    summary: pl.DataFrame, evidence: pl.DataFrame, cuts: pl.DataFrame
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Name and data of each figure that is made of the summary.

    Args:
        summary: the table.
        evidence: the table, for the intervals of what is kept.
        cuts: the spread over samples, see `captions.spread`.
    """
    models = summary.select("model", "family").unique(maintain_order=True)
    families = models["family"].unique(maintain_order=True)
    scored, exact = benchmarks(summary), memorized(summary, "exact_match")
    upwards, one = pl.col("higher_is_better"), WHOLE | SINGLE
    yield "kept", _kept(summary, evidence)
    ends = {"memorized": "value", "memorized_low": "low", "memorized_high": "high"}
    beside = exact.select("model", "intervention", **{k: pl.col(v) for k, v in ends.items()})
    against = scored.filter(one).join(beside, on=["model", "intervention"])
    for model in models["model"]:
        columns = (*COLUMNS, "higher_is_better", "chance", *ends)
        yield f"scatter-{model}", against.filter(model=model).select(columns)
    tokens = memorized(summary, "token_accuracy")
    rows = pl.concat([exact, tokens, scored.filter(upwards)]).filter(one)
    for family in families:
        yield f"blocks-{family}", rows.filter(family=family).select(*COLUMNS, "chance")
    lost = _lost(scored.filter(upwards), evidence)
    for family in families:
        if (own := lost.filter(family=family)).height:
            yield f"drops-{family}", own
    yield "gap", _gaps(summary, evidence)
    at_k = memorized(summary, "exact_match_at_k")
    whole = pl.col("k") == pl.col("k").max().over("model")
    tokens = memorized(summary, "teacher_forced_accuracy")
    both = pl.concat([at_k.filter(pl.col("k").is_in(LENGTHS) | whole), tokens])
    yield "length", both.filter(SINGLE).select(*COLUMNS, "k")
    yield "extraction", _extraction(summary)
    for metric in SPREAD:
        own = summary.filter(one, metric=metric).select(*COLUMNS, "split")
        keys = ["model", "intervention", "split", "metric"]
        yield metric.replace("_", "-"), own.join(cuts, on=keys, how="left")
    yield "perplexity", scored.filter(~upwards & one).select(*COLUMNS)
    first = pl.col("blocks").list.first()
    number = pl.when(WHOLE).then(0).otherwise(first.rank("dense").over("model", "task"))
    quarters = pl.concat([exact, scored]).filter(WHOLE | (pl.col("group") == "quartiles"))
    parts = [quarters.filter(WHOLE), quarters.filter(~WHOLE)]
    quarters = pl.concat(part.with_columns(quartile=number.cast(pl.Int64)) for part in parts)
    for family in families:
        own = quarters.filter(family=family)
        yield f"quartiles-{family}", own.select(*COLUMNS, "higher_is_better", "chance", "quartile")
    copies = summary.filter(WHOLE, metric="exact_match_by_copies")
    yield "copies", copies.select(*COLUMNS, "copies", "split")
    beyond = summary.filter(WHOLE | SINGLE, metric="counterfactual_by_copies")
    if beyond.height:
        yield "twins", beyond.select(*COLUMNS, "copies")


def _with_ends(
    rows: pl.DataFrame, floor: pl.Expr, evidence: pl.DataFrame, which: pl.Expr = SINGLE
) -> pl.DataFrame:
    """What is kept of the lead, with the ends of the evidence's interval."""
    key = {"model": "model", "task": "task", "metric": "metric", "intervention": "over"}
    known = evidence.filter(quantity="kept").select(
        **{name: pl.col(column) for name, column in key.items()},
        half=pl.struct("stderr", "n_effective", "scale").map_elements(
            lambda row: reach(*row.values(), LEVEL), return_dtype=pl.Float64
        ),
        lower="least",
        upper="most",
    )
    value, half = pl.col("kept"), pl.col("half")
    return (
        kept(rows, floor, which)
        .join(known, on=list(key))
        .with_columns(
            low=pl.max_horizontal(value - half, "lower"),
            high=pl.min_horizontal(value + half, "upper"),
        )
    )


def _of_score(rows: pl.DataFrame) -> pl.DataFrame:
    """The score as a share of the baseline's, with the ends of the paired difference."""
    known = kept(rows, pl.lit(0.0))
    ends = [
        (pl.coalesce((pl.col("whole") + pl.col(f"difference_{end}")).clip(0, 1), end))
        / pl.col("whole")
        for end in ("low", "high")
    ]
    return known.with_columns(low=ends[0], high=ends[1])


def _mean(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    value, low, high = pl.col("kept"), pl.col("low"), pl.col("high")
    return rows.group_by(*by, maintain_order=True).agg(
        value.mean(),
        low=value.mean() - ((value - low) ** 2).sum().sqrt() / pl.len(),
        high=value.mean() + ((high - value) ** 2).sum().sqrt() / pl.len(),
        tasks=pl.col("task").sort().str.join(", "),
    )


def _kept(summary: pl.DataFrame, evidence: pl.DataFrame) -> pl.DataFrame:
    block = ("model", "family", "intervention", "edit", "block")
    parts = []
    for metric in ("exact_match", "teacher_forced_accuracy"):
        control = memorized(summary, metric, "control").filter(WHOLE)
        rows = memorized(summary, metric).join(
            control.select("model", control="value"), on="model", how="left"
        )
        own = _with_ends(rows, pl.col("control"), evidence, ONE_BLOCK)
        parts.append(own.with_columns(measure=pl.lit(metric), kind=pl.lit("memorization")))
    upwards = benchmarks(summary).filter("higher_is_better")
    able = _with_ends(upwards, pl.col("chance"), evidence, ONE_BLOCK)
    parts.append(able.with_columns(measure=pl.col("task"), kind=pl.lit("benchmark")))
    mean = _mean(able, *block).with_columns(measure=pl.lit(MEAN), kind=pl.lit("mean"))
    parts.append(mean)
    columns = (*block, "measure", "kind", "kept", "low", "high")
    return pl.concat(part.select(columns) for part in parts)


def _gaps(summary: pl.DataFrame, evidence: pl.DataFrame) -> pl.DataFrame:
    """Mean share kept of the benchmarks minus that of memory, over the late blocks."""
    late_rows = evidence.filter(over="late", quantity="kept")
    rows = []
    for (model, family, edit), own in late_rows.group_by(
        "model", "family", "edit", maintain_order=True
    ):
        able = own.filter(metric="acc").to_dicts()
        memory = own.filter(
            pl.col("metric").is_in(("exact_match", "exact_match_at_k", "suffix_log_prob"))
        )
        for row in memory.to_dicts():
            measure = row["metric"].removesuffix("_at_k")
            value = sum(task["value"] for task in able) / len(able) - row["value"]
            ends = [(1 / len(able), _ends(task)) for task in able] + [(-1.0, _ends(row))]
            below = sum((f * (d[0] if f > 0 else d[1])) ** 2 for f, d in ends) ** 0.5
            above = sum((f * (d[1] if f > 0 else d[0])) ** 2 for f, d in ends) ** 0.5
            numbers = (value, value - below, value + above)
            rows.append((model, family, edit, measure, row["k"], *numbers))
    of_tokens = summary.filter(ONE_BLOCK, metric="survival_gap")
    for (model, family, edit), own in of_tokens.group_by(
        "model", "family", "edit", maintain_order=True
    ):
        last = own.filter(pl.col("block") >= 3 * (own["block"].max() + 1) // 4)
        means = [-last[name].mean() for name in ("value", "high", "low")]
        rows.append((model, family, edit, "survival_gap", None, *means))
    columns = ("model", "family", "edit", "measure", "k", "gap", "low", "high")
    return pl.DataFrame(rows, schema=columns, orient="row", infer_schema_length=None)


def _ends(row: Mapping[str, Any]) -> tuple[float, float]:
    """How far the interval of a row of the evidence reaches below and above."""
    half = reach(row["stderr"], row["n_effective"], row["scale"], LEVEL)
    low = row["value"] - half if row["least"] is None else max(row["value"] - half, row["least"])
    high = row["value"] + half if row["most"] is None else min(row["value"] + half, row["most"])
    return row["value"] - low, high - row["value"]


def _lost(rows: pl.DataFrame, evidence: pl.DataFrame) -> pl.DataFrame:
    task = pl.col("task").str.strip_prefix("tiny_")
    parts = []
    for scale in ("raw", "corrected"):
        for ability, names in KINDS.items():
            of_kind = rows.filter(task.is_in(names))
            own = _of_score(of_kind)
            if scale == "corrected":
                own = _with_ends(of_kind, pl.col("chance"), evidence)
            mean = _mean(own, "model", "family", "intervention", "block")
            parts.append(mean.with_columns(scale=pl.lit(scale), ability=pl.lit(ability)))
    block = ("model", "family", "intervention", "block", "scale", "ability")
    ends = {"drop": 1 - pl.col("kept"), "low": 1 - pl.col("high"), "high": 1 - pl.col("low")}
    return pl.concat(parts).select(*block, **ends, tasks="tasks")


def _extraction(summary: pl.DataFrame) -> pl.DataFrame:
    """Under nothing, the median blocks of the first and the last quarter, and all of the last."""
    parts = []
    tries = memorized(summary, "extractable_top_40")
    for [model], rows in memorized(summary, "exact_match").group_by("model", maintain_order=True):
        single = rows.filter(SINGLE & (pl.col("block") > 0)).sort("value", "block")
        early = single.filter(4 * pl.col("block") < rows["block"].max() + 1)
        last = rows.filter(group="quartiles").sort(pl.col("blocks").list.first())
        chosen = {"baseline": "baseline"}
        for name, own in (("early", early), ("late", late(single))):
            if own.height:
                chosen[own["intervention"][(own.height - 1) // 2]] = TYPICAL.format(name)
        if last.height:
            chosen[last["intervention"][-1]] = "last quarter"
        labels = pl.DataFrame({"intervention": list(chosen), "label": list(chosen.values())})
        own = tries.filter(model=model).join(labels, on="intervention")
        parts.append(own.select(*COLUMNS, "k", "label"))
    return pl.concat(parts)
