"""The numbers that the figures' words show, computed again from the figures' data.

The data are compared with the tables by `tests.report.figure_data`.
"""

import math
from collections.abc import Iterator
from typing import Any

import polars as pl

from tests.report.figure_data import HIGH, LOW, VALUE, WHOLE, intervals

LABELS = {"reasoning": "reasoning", "language": "language understanding"}
LATER = pl.col("block") > 0

Expected = tuple[float | None, ...]
"""Value, and low and high where the number has them."""


def ends(column: pl.Series) -> Expected:
    """A range: no value, the smallest, the largest."""
    return None, column.min(), column.max()


def across(name: str, rows: pl.DataFrame) -> Iterator[tuple[str, Expected]]:
    """One number with its interval, or the ranges of several and of their intervals."""
    if rows.height == 1:
        yield f"{name}/0", rows.select("value", "low", "high").row(0)
    else:
        yield f"{name}/0", ends(rows["value"])
        yield f"{name}/1", ends(pl.concat([rows["low"], rows["high"]]))


def lowest(rows: pl.DataFrame) -> dict[str, Any]:
    """The block but 0 with the least exact match."""
    first, *others = rows.filter(LATER).sort("value", "block", "model").rows(named=True)
    equal = 1 + sum(row["value"] == first["value"] for row in others)
    found = {"value": (first["value"],), "block": str(first["block"]), "model": first["model"]}
    return found | ({"equal": (equal,)} if equal > 1 else {})


def kept(data: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    for [edit], rows in data.filter(LATER).group_by("edit"):
        exact, mean = rows.filter(measure="exact_match"), rows.filter(kind="mean")
        lost = exact.filter(pl.col("kept") < 0.5)
        able = lost.join(mean, on=["model", "block"]).filter(pl.col("kept_right") > 0.5)
        for name, of in {"stopped": lost, "blocks": exact, "able": able}.items():
            yield f"{name}/{edit}", (of.height,)


def scatter(data: pl.DataFrame, evidence: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    """One model, with the evidence on it."""
    own = intervals(evidence.filter(LATER, model=data["model"][0], edit="identity"))
    by_block = own.filter(metric="acc").group_by("block")
    tasks = by_block.agg(
        able=VALUE.mean(),
        below=((VALUE - LOW) ** 2).sum().sqrt() / pl.len(),
        above=((HIGH - VALUE) ** 2).sum().sqrt() / pl.len(),
    )
    yield "exact", ends(data.filter(~WHOLE)["memorized"])
    for end, metric, k in (("", "exact_match", None), ("_of_first", "exact_match_at_k", 1)):
        memory = own.filter(pl.col("k").eq_missing(k), metric=metric).join(tasks, on="block")
        more = less = 0
        for row in memory.rows(named=True):
            gap = row["able"] - row["value"]
            more += gap > math.hypot(row["below"], row["high"] - row["value"])
            less += -gap > math.hypot(row["above"], row["value"] - row["low"])
        yield "blocks", (memory.height,)
        yield f"more{end}", (more,)
        yield f"less{end}", (less,)


def blocks(data: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    exact = data.filter(metric="exact_match")
    for [model], rows in exact.filter(LATER).group_by("model"):
        yield f"means/{model}", (rows["value"].mean(),)
    yield from ((f"lowest/{name}", value) for name, value in lowest(exact).items())


def drops(data: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    for [kind], rows in data.filter(scale="corrected").group_by("ability"):
        yield f"costs/{LABELS[kind]}", (rows.filter(LATER)["drop"].mean(),)
        yield f"changes/{LABELS[kind]}", ends(-rows["drop"])


def gap(data: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    exact = data.filter(measure="exact_match")
    parts = {"first": exact.filter(k=1), "whole": exact.filter(pl.col("k").is_null())}
    for name, rows in (parts | {"equal": data.filter(measure="survival_gap")}).items():
        yield from ((f"{name}/{edit}", ends(own["gap"])) for [edit], own in rows.group_by("edit"))


def length(data: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    forced = data.filter(metric="teacher_forced_accuracy")
    suffixes = data.filter(pl.col("k") == pl.col("k").max().over("model"))
    yield "forced", (forced.filter(LATER)["value"].median(),)
    yield "suffixes", (suffixes.filter(LATER)["value"].median(),)
    yield "accuracy", ends(forced["value"])


def extraction(data: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    """What is told of hidden samples is worked out by hand in `test_figures`."""
    for name, tries in {"once": 1, "often": 1000}.items():
        yield name, ends(data.filter(WHOLE, k=tries)["value"])


def completion_entropy(data: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    yield "bypassed", ends(data.filter(LATER, split="memorized")["value"])
    for split in ("memorized", "control"):
        yield f"levels/{split}", ends(data.filter(WHOLE, split=split)["value"])


def token_accuracy(data: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    for split in ("memorized", "control"):
        yield f"medians/{split}", ends(data.filter(LATER, split=split)["q50"])


def perplexity(data: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    whole = data.filter(WHOLE).select("model", "task", whole="value")
    rows = data.filter(LATER).join(whole, on=["model", "task"]).sort("model", "block")
    factors = rows["value"] / rows["whole"]
    most = rows.row(int(factors.arg_max() or 0), named=True)
    yield "median", (factors.median(),)
    yield "most", (factors.max(),)
    yield "block", str(most["block"])
    yield "model", most["model"]
    yield "baseline", ends(data.filter(WHOLE)["value"])
    yield "bypassed", ends(data.filter(~WHOLE)["value"])


def quartiles(data: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    edited = data.filter(pl.col("quartile") > 0)
    scored = edited.filter("higher_is_better").group_by("model", "quartile").agg(pl.mean("value"))
    yield "exact", ends(edited.filter(metric="exact_match")["value"])
    yield "scores", ends(scored["value"])


def copies(data: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    rows = {n: own for [n], own in data.group_by("copies")}
    counts = sorted(rows)
    yield "fewest", (counts[0],)
    yield "most", (counts[-1],)
    yield from across("least", rows[counts[0]])
    yield from across("largest", rows[counts[-1]])
    for i, n in enumerate(counts):
        if all(rows[m]["value"].min() > 0.5 for m in counts[i:]):
            yield "half", (n,)
            return


def twins(data: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    for [model], rows in data.group_by("model"):
        most, fewest = rows["copies"].max(), rows["copies"].min()
        harmed = rows.filter(LATER, copies=most).sort("value", "block")
        chosen = {"seen": rows.filter(WHOLE, copies=most), "harmed": harmed}
        for name, own in (chosen | {"unseen": rows.filter(WHOLE, copies=fewest)}).items():
            yield f"twins/{model}/{name}", own.select("value", "low", "high").row(0)
        yield f"twins/{model}/most", (most,)
        yield f"twins/{model}/block", str(harmed["block"][0])


FIGURES = {
    made.__name__.replace("_", "-"): made
    for made in (
        *(kept, scatter, blocks, drops, gap, length, extraction, perplexity, completion_entropy),
        *(token_accuracy, quartiles, copies, twins),
    )
}
"""Start of a figure's name -> what its words show."""
