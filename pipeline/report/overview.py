"""The opening of the page: the finding in sentences, how sure it is, and the heatmaps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.evidence import block_range
from pipeline.analysis.text import MISSING, number, percent_range, plural
from pipeline.report.facts import seed_counts, seeds_short

SHADES = 10
"""Steps of the heatmap's colour, from nothing kept (0) to all of it."""

_MEMORY = {
    "exact_match": "exact match",
    "token_accuracy": "tokens right",
    "teacher_forced_accuracy": "single tokens",
    "completion_entropy": "entropy, nats",
}


@dataclass(frozen=True)
class Cell:
    """One number of a heatmap.

    Args:
        text: the number as written, in its own unit.
        shade: 0 (nothing of the baseline is kept) to `SHADES`; None: not known.
    """

    text: str
    shade: int | None


@dataclass(frozen=True)
class Heatmap:
    """The blocks of one model by metrics.

    Args:
        model: its name.
        finding: which block matters most, in a sentence.
        heading: the metrics.
        rows: what is bypassed, and a cell for each metric; the first is the baseline.
    """

    model: str
    finding: str
    heading: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]


def heatmaps(summary: pl.DataFrame) -> list[Heatmap]:
    """One heatmap per model.

    The colour shows what is kept of the baseline. For a rate it is the kept share of its
    lead over the floor (chance for a benchmark); for a metric that is better when lower, it is the
    baseline’s value divided by this one.

    Args:
        summary: seeds pooled or not; every model in it gets one.
    """
    return [_heatmap(summary.filter(model=name), name) for name, _ in views.models(summary)]


def _heatmap(summary: pl.DataFrame, name: str) -> Heatmap:
    columns = {label: views.memorization(summary, key) for key, label in _MEMORY.items()}
    tasks = views.benchmarks(summary)
    for task in views.tasks(tasks):
        columns[task.removeprefix(views.GENERATED).replace("_", " ")] = tasks.filter(task=task)
    columns = {label: rows for label, rows in columns.items() if rows.height}
    blocks = views.single_blocks(summary)["block"].unique().sort().to_list()
    cells = [_column(rows, blocks) for rows in columns.values()]
    labels = ["baseline", *(f"block {block}" for block in blocks)]
    rows = list(zip(labels, zip(*cells, strict=True), strict=True)) if cells else []
    return Heatmap(name, _strongest(summary), list(columns), rows)


def _column(rows: pl.DataFrame, blocks: Sequence[int]) -> list[Cell]:
    upwards = rows["metric"][0] != "completion_entropy" and rows["higher_is_better"][0] is not False
    whole = next(iter(views.baseline(rows)["value"]), None)
    single = dict(views.single_blocks(rows).select("block", "value").iter_rows())
    floor = next(iter(rows["chance"].drop_nulls()), 0.0) if upwards else 0.0
    return [_cell(value, whole, floor, upwards) for value in (whole, *map(single.get, blocks))]


def _cell(value: float | None, whole: float | None, floor: float, upwards: bool) -> Cell:
    if value is None:
        return Cell(MISSING, None)
    text = f"{100 * value:.0f}%" if upwards else number(float(f"{value:.2g}"))
    if whole is None or not math.isfinite(value) or (upwards and whole <= floor):
        return Cell(text, None)
    lower = whole / value if value > 0 else 1.0
    kept = (value - floor) / (whole - floor) if upwards else lower
    return Cell(text, round(SHADES * min(1.0, max(0.0, kept))))


def _strongest(summary: pl.DataFrame) -> str:
    """A sentence that names the block, other than 0, whose bypass lowers exact match most."""
    rows = views.memorization(summary, "exact_match")
    single = views.single_blocks(rows).filter(pl.col("block") > 0).drop_nulls("value")
    whole = next(iter(views.baseline(rows)["value"]), None)
    if not single.height or whole is None:
        return "Exact match was not measured block by block."
    lowest = min(single["value"])
    if lowest >= whole:
        return "No block apart from block 0 lowers exact match."
    blocks = single.filter(value=lowest)["block"].to_list()
    return (
        f"Apart from block 0, exact match is lowest, {lowest:.0%} instead of {whole:.0%}, when "
        f"{'one of blocks' if len(blocks) > 1 else 'block'} {', '.join(map(str, blocks))} is "
        "bypassed."
    )


def found(summary: pl.DataFrame) -> list[str]:
    """The main numbers in sentences: memory and ability with a typical late block bypassed.

    Args:
        summary: as `aggregate.aggregate` gives it.
    """
    memory = views.memorization(summary, "exact_match")
    before, after, ability = [], [], []
    shares = views.kept(summary).filter(kind="mean")
    for name, _ in views.models(summary):
        own = views.single_blocks(memory.filter(model=name))
        late = list(block_range(max(own["block"].to_list(), default=0) + 1, "late"))
        whole = views.baseline(memory.filter(model=name))["value"].to_list()
        level = own.filter(pl.col("block").is_in(late))["value"].median()
        if whole and level is not None:
            before.append(whole[0])
            after.append(float(level))  # type: ignore[arg-type]
        left = shares.filter(pl.col("block").is_in(late), model=name)["kept"].median()
        if left is not None:
            ability.append(float(left))  # type: ignore[arg-type]
    if not after:
        return ["No block was bypassed alone in any model, so there is no finding."]
    over = ", range over the models" if len(after) > 1 else ""
    told = [
        "Bypassing one block of the last quarter takes exact match on memorized samples from "
        f"{percent_range(before)} to {percent_range(after)} (median block{over})."
    ]
    if ability:
        told.append(
            f"The same bypass keeps {percent_range(ability)} of the lead over chance, averaged "
            "over the benchmarks."
        )
    return told


def badges(
    summary: pl.DataFrame, manifests: Sequence[Mapping[str, object]], text: str
) -> list[tuple[str, str]]:
    """(kind, text) of the facts that say how sure the finding is.

    Args:
        summary: as `aggregate.aggregate` gives it.
        manifests: of every model's checkpoint.
        text: the kind of text that the models learned: real or generated.
    """
    names = [name for name, _ in views.models(summary)]
    n = views.baseline(views.memorization(summary, "exact_match"))["n"].to_list()
    samples = f"{min(n):,} to {max(n):,}" if n and min(n) != max(n) else f"{max(n, default=0):,}"
    return [
        ("models", plural(len(names), "model")),
        ("seeds", seeds_short(seed_counts(manifests))),
        ("text", text),
        ("samples", f"{samples} memorized samples per model"),
    ]
