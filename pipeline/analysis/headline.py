"""The headline numbers and curves, for `dvc metrics` and `dvc plots`, which compare revisions."""

from pathlib import Path

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.estimates import measured_models
from pipeline.analysis.evidence import LATE
from pipeline.analysis.statistics import LEVEL
from pipeline.workflow.files import atomic, write_json

CURVES = ("exact_match", "token_accuracy", "completion_entropy")
"""Of memorized samples, by bypassed block."""


def write_headline(
    summary: pl.DataFrame, evidence: pl.DataFrame, metrics: Path, curves: Path
) -> None:
    """Write the numbers as JSON, and the curves as one CSV per model."""
    write_json(metrics, numbers(summary, evidence))
    with atomic(curves, directory=True) as temporary:
        for model, _ in views.models(summary):
            by_block(summary.filter(model=model)).write_csv(temporary / f"{model}.csv")


def numbers(
    summary: pl.DataFrame, evidence: pl.DataFrame
) -> dict[str, dict[str, dict[str, float]]]:
    """Exact match, the mean accuracy of the benchmarks, and memory loss minus ability loss.

    Returns:
        model -> ``baseline``, ``one_block`` (the mean over the single blocks), ``one_quartile``
        (likewise) -> ``exact_match``, ``accuracy``; ``late_blocks`` (the mean over them) ->
        ``memory_minus_ability``; what was not measured is left out.
    """
    memory, ability = views.memorization(summary, "exact_match"), views.accuracies(summary)
    rows = pl.concat(
        [memory.with_columns(name="metric"), ability.with_columns(name=pl.lit("accuracy"))]
    )
    cuts = {
        "baseline": views.baseline(rows),
        "one_block": views.single_blocks(rows),
        "one_quartile": views.quartiles(rows),
    }
    found = {
        model: {cut: _means(part.filter(model=model)) for cut, part in cuts.items()}
        for model, _ in views.models(summary)
    }
    for measured in measured_models(evidence.with_columns(recipe="model")):
        if measured.has(gap := measured.gap(LATE)):
            value = measured.estimate(gap, LEVEL).value
            found[measured.name]["late_blocks"] = {"memory_minus_ability": round(value, 6)}
    return found


def by_block(summary: pl.DataFrame) -> pl.DataFrame:
    """One model's curves: ``block``, those of `CURVES`, and each benchmark task."""
    memory = [views.memorization(summary, metric) for metric in CURVES]
    rows = views.single_blocks(pl.concat([*memory, views.benchmarks(summary)]))
    named = rows.with_columns(name=views.MEASURE)
    return named.pivot("name", index="block", values="value")


def _means(rows: pl.DataFrame) -> dict[str, float]:
    means = rows.group_by("name", maintain_order=True).agg(pl.col("value").mean())
    return {name: round(value, 6) for name, value in means.iter_rows() if value is not None}
