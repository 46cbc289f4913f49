"""The numbers that the figures' words show, computed again from the figures' data.

The data are compared with the tables by `tests.report.figure_data`.
"""

import math
from collections.abc import Iterator
from typing import Any

import polars as pl
from scipy import stats

LABELS = {"reasoning": "reasoning", "language": "language understanding"}
WHOLE = pl.col("intervention") == "baseline"
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
    own = evidence.filter(LATER, model=data["model"][0], edit="identity", quantity="kept")
    value, low, high = pl.col("value"), pl.col("low"), pl.col("high")
    t = stats.t.ppf(0.975, own["n_effective"].cast(pl.Float64).to_numpy() - 1)
    own = own.with_columns(t=pl.Series(t))
    scaled = pl.col("t") * pl.col("scale") / pl.col("n_effective")
    half = pl.col("t") * (pl.col("stderr") ** 2 + scaled**2).sqrt()
    own = own.with_columns(
        low=pl.max_horizontal(value - half, "least"), high=pl.min_horizontal(value + half, "most")
    )
    by_block = own.filter(metric="acc").group_by("block")
    tasks = by_block.agg(
        able=value.mean(),
        below=((value - low) ** 2).sum().sqrt() / pl.len(),
        above=((high - value) ** 2).sum().sqrt() / pl.len(),
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


def extraction(data: pl.DataFrame, summary: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    """With the summary, which says what is hidden from greedy decoding."""
    hidden = summary.filter(metric="hidden_extractable_top_40", split="memorized", k=1000)
    single = (pl.col("group") == "each") & (pl.col("edit") == "identity")
    last = summary.filter(single).group_by("model").agg(count=pl.col("block").max() + 1)
    late = pl.col("block") >= pl.max_horizontal(1, 3 * pl.col("count").cast(pl.Int64) // 4)
    rows = hidden.filter(single, pl.col("n") >= 10).join(last, on="model").filter(late)
    yield from across("hidden", rows)
    yield "models", (rows["model"].n_unique(),)
    yield "hiding", (rows.height,)
    yield "least", (10,)
    yield "samples", ends(rows["n"])
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
    by_count = {n: own["value"] for n, own in rows.items()}
    counts = sorted(by_count)
    yield "fewest", (counts[0],)
    yield "most", (counts[-1],)
    yield from across("least", rows[counts[0]])
    yield from across("largest", rows[counts[-1]])
    for i, n in enumerate(counts):
        if all(by_count[m].min() > 0.5 for m in counts[i:]):
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


def training(data: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    """A training run: since when blocks are necessary, and exact match at the steps named."""
    steps = sorted(data["step"].unique())
    since = {}
    for title, metric in {"exact match": "exact_match", "token accuracy": "token_accuracy"}.items():
        rows = data.filter(LATER | (pl.col("block") == 0), metric=metric)
        known = sorted(rows["block"].unique())
        lost = {n: set(rows.filter("falls", step=n)["block"]) for n in steps}
        since[title] = {
            block: min(n for n in steps if all(block in lost[m] for m in steps if m >= n))
            for block in known
            if block in lost[steps[-1]]
        }
        never = [block for block in known if block not in since[title]]
        yield f"scores/{title}/never", _listed(never) if never else ""
        for i, step in enumerate(sorted(set(since[title].values()))):
            own = [block for block in known if since[title].get(block) == step]
            yield f"scores/{title}/parts/{i}/step", (step,)
            yield f"scores/{title}/parts/{i}/blocks", _listed(own)
    needed = since["exact match"]
    exact = data.filter(WHOLE, metric="exact_match").select("step", "value", "low", "high")
    at = {step: tuple(numbers) for step, *numbers in exact.iter_rows()}
    first, last = steps[0], steps[-1]
    above = [step for step in steps if at[step][1] > at[first][2]]
    yield from {"first": (first,), "last": (last,), "steps": (len(steps),)}.items()
    yield from {"before": at[first], "after": at[last]}.items()
    yield "recitable", (min(above),) if above else None
    yield "needed", (len(needed),) if needed else None
    yield "since", (min(needed.values()),) if needed else None


def _listed(blocks: list[int]) -> str:
    return f"block{'' if len(blocks) == 1 else 's'} {', '.join(map(str, blocks))}"


FIGURES = {
    made.__name__.replace("_", "-"): made
    for made in (
        *(kept, scatter, blocks, drops, gap, length, extraction, perplexity, completion_entropy),
        *(token_accuracy, quartiles, copies, twins, training),
    )
}
"""Start of a figure's name -> what its words show."""
