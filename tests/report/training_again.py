"""The course of a training run, from the summary."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tests.report.captions_again import SINGLE, WHOLE, benchmarks, memorized
from tests.report.reading import Line
from tests.report.written_again import plural, shares

Steps = Sequence[tuple[str, str, int]]
"""Model, run and step."""

COLUMNS = (
    *("run", "step", "model", "intervention", "block", "task", "metric", "value", "low", "high"),
    *("difference", "difference_low", "difference_high", "p_holm", "n", "falls"),
)


def data(summary: pl.DataFrame, steps: Steps, run: str) -> pl.DataFrame:
    """The data of the figure of a run."""
    parts = [memorized(summary, metric) for metric in ("exact_match", "token_accuracy")]
    rows = pl.concat([*parts, benchmarks(summary).filter("higher_is_better")])
    of = {model: step for model, own, step in steps if own == run}
    lost = (pl.col("difference") < 0) & (pl.col("p_holm") < 0.05)
    return (
        rows.filter(WHOLE | SINGLE, pl.col("model").is_in(list(of)))
        .with_columns(
            run=pl.lit(run),
            step=pl.col("model").replace_strict(of),
            falls=pl.when(lost).then(True).otherwise(False),
        )
        .select(COLUMNS)
    )


def course(summary: pl.DataFrame, steps: Steps, run: str) -> tuple[str, Line]:
    """What the figure finds, and what is said below it."""
    rows = data(summary, steps, run)
    exact = rows.filter(metric="exact_match")
    by_step = sorted(step for _, own, step in steps if own == run)
    whole = {
        step: exact.filter(WHOLE, step=step).select("value", "low", "high").row(0)
        for step in by_step
    }
    first, last = by_step[0], by_step[-1]
    above = [step for step in by_step if whole[step][1] > whole[first][2]]
    if above:
        told = (
            f"become recitable at step {above[0]:,}, where exact match is "
            f"{shares(*whole[above[0]])}; at step {first:,} it is {shares(*whole[first])}"
        )
    else:
        ends = " and ".join(f"step {s:,} ({shares(*whole[s])})" for s in (first, last))
        told = f"do not become recitable between {ends}"
    since = _since(exact)
    count = plural(exact["block"].n_unique() - 1, "block")  # null is no block
    needed = f"none of {count} becomes necessary."
    if since:
        first = f"the first, {_list(since[min(since)])}," if len(since) > 1 else "all"
        needed = (
            f"{sum(map(len, since.values()))} of {count} become necessary for that, {first} from "
            f"step {min(since):,} on."
        )
    parts = [
        f"Necessary for {name}: {_listed(rows.filter(metric=metric))}."
        for metric, name in (("exact_match", "exact match"), ("token_accuracy", "token accuracy"))
    ]
    below = Line("Exact match and token accuracy are", parts)
    return f"{run}: memorized samples {told}; {needed}", below


def _since(rows: pl.DataFrame) -> dict[int, list[int]]:
    """Step -> the blocks whose bypass lowers a score at this step and all later ones."""
    found: dict[int, list[int]] = {}
    steps = sorted(rows["step"].unique())
    for block in sorted(rows["block"].drop_nulls().unique()):
        needed = {step: rows.filter(step=step, block=block)["falls"].item() for step in steps}
        stays = [step for step in steps if all(needed[each] for each in steps if each >= step)]
        if stays:
            found.setdefault(stays[0], []).append(block)
    return found


def _listed(rows: pl.DataFrame) -> str:
    since = _since(rows)
    parts = [f"from step {step:,}, {_list(own)}" for step, own in sorted(since.items())]
    blocks = sorted(rows["block"].drop_nulls().unique())
    never = [block for block in blocks if all(block not in own for own in since.values())]
    return "; ".join([*parts, *([f"never, {_list(never)}"] if never else [])])


def _list(blocks: Sequence[int]) -> str:
    return f"block{'' if len(blocks) == 1 else 's'} {', '.join(map(str, blocks))}"
