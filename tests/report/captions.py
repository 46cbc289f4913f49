"""The numbers that the figures' words show, computed again from the summary and the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

KINDS = {"reasoning": ("piqa", "arc_easy"), "language": ("hellaswag", "lambada_openai")}
LABELS = {"reasoning": "reasoning", "language": "language understanding"}
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
SPREAD = ("completion_entropy", "token_accuracy")

SINGLE = (pl.col("group") == "each") & (pl.col("edit") == "identity")
WHOLE = pl.col("intervention") == "baseline"
MEAN = pl.col("kept").mean()

Steps = Sequence[tuple[str, str, int]]
"""Model, run and step."""

Expected = tuple[float | None, ...]
"""Value, and low and high where the number has them."""


def memorized(summary: pl.DataFrame, metric: str, split: str = "memorized") -> pl.DataFrame:
    return summary.filter(task="memorization", metric=metric, split=split)


def benchmarks(summary: pl.DataFrame) -> pl.DataFrame:
    """The rows of benchmarks, of each one metric: acc, else word_perplexity."""
    metrics = summary.filter(pl.col("task") != "memorization").select("task", "metric").unique()
    chosen = {
        task: next((name for name in ("acc", "word_perplexity") if name in names), min(names))
        for [task], rows in metrics.group_by("task")
        for names in [rows["metric"].to_list()]
    }
    known = pl.DataFrame({"task": list(chosen), "metric": list(chosen.values())})
    return summary.join(known, on=["task", "metric"], how="semi", maintain_order="left")


def kept(rows: pl.DataFrame, floor: pl.Expr, which: pl.Expr = SINGLE) -> pl.DataFrame:
    """The rows of `which` with what is kept of the lead that the baseline has over `floor`."""
    rows = rows.with_columns(floor=floor.fill_null(0.0))
    whole = rows.filter(WHOLE).select(
        "model", "task", whole="value", least=pl.coalesce("low", "value")
    )
    single = rows.filter(which).join(whole, on=["model", "task"], maintain_order="left")
    lead = pl.col("whole") - pl.col("floor")
    known = single.filter(pl.col("least") > pl.col("floor"))
    return known.with_columns(kept=(pl.col("value") - pl.col("floor")) / lead)


def kept_memory(summary: pl.DataFrame, which: pl.Expr = SINGLE) -> pl.DataFrame:
    control = memorized(summary, "exact_match", "control").filter(WHOLE)
    rows = memorized(summary, "exact_match").join(
        control.select("model", control="value"), on="model", how="left", maintain_order="left"
    )
    return kept(rows, pl.col("control"), which)


def kept_ability(summary: pl.DataFrame, which: pl.Expr = SINGLE) -> pl.DataFrame:
    return kept(benchmarks(summary).filter("higher_is_better"), pl.col("chance"), which)


def late(rows: pl.DataFrame) -> pl.DataFrame:
    """Those of single late blocks."""
    n_blocks = rows["block"].max() + 1
    return rows.filter(SINGLE & pl.col("block").is_in(range(3 * n_blocks // 4, n_blocks)))


def later(rows: pl.DataFrame) -> pl.DataFrame:
    """Where one block other than 0 is bypassed."""
    return rows.filter(SINGLE & (pl.col("block") > 0))


def ends(column: pl.Series) -> Expected:
    """A range: no value, the smallest, the largest."""
    return None, column.min(), column.max()


def numbers(summary: pl.DataFrame, spreads: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    """Name, below ``figures/``, and expected number (or text) of the figures of the summary."""
    families = summary.select("model", "family").unique(maintain_order=True)
    exact = memorized(summary, "exact_match")
    for edit in ("zero", "identity"):
        which = (pl.col("group") == "each") & (pl.col("edit") == edit)
        share_kept = kept_memory(summary, which).filter(pl.col("block") > 0)
        means = kept_ability(summary, which).group_by("model", "block").agg(able=MEAN)
        lost = share_kept.filter(pl.col("kept") < 0.5)
        able = lost.join(means, on=["model", "block"]).filter(pl.col("able") > 0.5)
        yield f"kept/stopped/{edit}", (lost.height,)
        yield f"kept/blocks/{edit}", (share_kept.height,)
        yield f"kept/able/{edit}", (able.height,)
    for model in families["model"]:
        both = share_kept.filter(model=model).join(means, on=["model", "block"]).sort("block")
        best = max(both.rows(named=True), key=lambda row: row["able"] - row["kept"])
        for key, column in {"before": "whole", "after": "value", "able": "able"}.items():
            yield f"scatter-{model}/{key}", (best[column],)
        yield f"scatter-{model}/block", str(best["block"])
        of_model = exact.filter(SINGLE, model=model)["value"]
        yield f"scatter-{model}/exact", ends(of_model)
    for family in families["family"].unique(maintain_order=True):
        rows = later(exact).filter(family=family).sort("value", "block", "model")
        for [model], own in rows.group_by("model"):
            yield f"blocks-{family}/means/{model}", (own["value"].mean(),)
        yield from _lowest(f"blocks-{family}", rows)
        yield from _drops(summary, family)
        yield from _quarters(summary.filter(family=family), family)
    at_k = memorized(summary, "exact_match_at_k")
    forced = memorized(summary, "teacher_forced_accuracy")
    longest = at_k.filter(pl.col("k") == pl.col("k").max().over("model"))
    yield "length/forced", (later(forced)["value"].median(),)
    yield "length/suffixes", (later(longest)["value"].median(),)
    yield "length/accuracy", ends(forced.filter(SINGLE)["value"])
    yield from _extracted(summary)
    yield from _spreads(summary, spreads)
    yield from _perplexity(benchmarks(summary).filter(~pl.col("higher_is_better")))
    yield from _copies(summary.filter(WHOLE, metric="exact_match_by_copies"))
    for [model], rows in summary.filter(metric="counterfactual_by_copies").group_by("model"):
        yield from _beyond(f"twins/twins/{model}", rows)


def _lowest(name: str, rows: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    equal = (rows["value"] == rows["value"][0]).sum()
    yield f"{name}/lowest/value", (rows["value"][0],)
    yield f"{name}/lowest/block", str(rows["block"][0])
    yield f"{name}/lowest/model", rows["model"][0]
    if equal > 1:
        yield f"{name}/lowest/equal", (equal,)


def _drops(summary: pl.DataFrame, family: str) -> Iterator[tuple[str, Any]]:
    """The mean loss of each kind of tasks, and the range of its changes."""
    rows = kept_ability(summary).filter(family=family)
    for kind, tasks in KINDS.items():
        own = rows.filter(pl.col("task").str.strip_prefix("tiny_").is_in(tasks))
        if own.height:
            lost = own.group_by("model", "block").agg(lost=1 - MEAN)
            mean = lost.filter(pl.col("block") > 0)["lost"].mean()
            yield f"drops-{family}/costs/{LABELS[kind]}", (mean,)
            yield f"drops-{family}/changes/{LABELS[kind]}", ends(-lost["lost"])


def _quarters(own: pl.DataFrame, family: str) -> Iterator[tuple[str, Any]]:
    exact = memorized(own, "exact_match").filter(group="quartiles", edit="identity")
    scored = benchmarks(own).filter("higher_is_better", group="quartiles", edit="identity")
    means = scored.group_by("intervention").agg(pl.mean("value").round(9))
    name, best = max(sorted(means.rows()), key=lambda row: row[1])
    yield f"quartiles-{family}/exact", ends(exact["value"])
    yield f"quartiles-{family}/best", (best,)
    yield f"quartiles-{family}/quarter", name.removeprefix("quartile-")


def _extracted(summary: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    """Of the late block with the median exact match of each model, the lower of two."""
    hidden = memorized(summary, "hidden_extractable_top_40").filter(k=1000)
    shares = []
    for [model], rows in memorized(summary, "exact_match").group_by("model", maintain_order=True):
        ranked = late(rows).sort("value", "block")
        typical = ranked["intervention"][(ranked.height - 1) // 2]
        shares += hidden.filter(model=model, intervention=typical)["value"].to_list()
    yield "extraction/hidden", ends(pl.Series(shares))
    yield "extraction/models", (len(shares),)
    unmodified = memorized(summary, "extractable_top_40").filter(WHOLE)
    for name, tries in {"once": 1, "often": 1000}.items():
        yield f"extraction/{name}", ends(unmodified.filter(k=tries)["value"])


def _spreads(summary: pl.DataFrame, spreads: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    entropy = summary.filter(metric="completion_entropy")
    bypassed = later(entropy.filter(split="memorized"))["value"]
    yield "completion-entropy/bypassed", ends(bypassed)
    keys = ["model", "intervention", "split", "metric"]
    accuracy = later(summary.filter(metric="token_accuracy")).join(spreads, on=keys)
    for split in ("memorized", "control"):
        level = entropy.filter(WHOLE, split=split)["value"]
        yield f"completion-entropy/levels/{split}", ends(level)
        yield f"token-accuracy/medians/{split}", ends(accuracy.filter(split=split)["q50"])


def _perplexity(losses: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    whole = losses.filter(WHOLE).select("model", "task", whole="value")
    rows = later(losses).join(whole, on=["model", "task"]).sort("model", "block")
    factors = rows["value"] / rows["whole"]
    at = rows.row(int(factors.arg_max() or 0), named=True)
    yield "perplexity/median", (factors.median(),)
    yield "perplexity/most", (factors.max(),)
    yield "perplexity/block", str(at["block"])
    yield "perplexity/model", at["model"]
    yield "perplexity/baseline", ends(losses.filter(WHOLE)["value"])
    yield "perplexity/bypassed", ends(losses.filter(SINGLE)["value"])


def _copies(rows: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    counts = sorted(rows["copies"].unique())
    by_count = [rows.filter(pl.col("copies") == n)["value"] for n in counts]
    yield "copies/fewest", (counts[0],)
    yield "copies/most", (counts[-1],)
    yield "copies/least", ends(by_count[0])
    yield "copies/largest", ends(by_count[-1])
    half = [n for i, n in enumerate(counts) if all(one.min() > 0.5 for one in by_count[i:])]
    if half:
        yield "copies/half", (half[0],)


def _beyond(name: str, rows: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    most = rows["copies"].max()
    chosen = {
        "seen": rows.filter(WHOLE, copies=most),
        "unseen": rows.filter(WHOLE, copies=rows["copies"].min()),
        "harmed": later(rows.filter(copies=most)).sort("value", "block"),
    }
    for key, own in chosen.items():
        yield f"{name}/{key}", own.select("value", "low", "high").row(0)
    yield f"{name}/most", (most,)
    yield f"{name}/block", str(chosen["harmed"]["block"][0])


def spread(memorization: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Quantiles of each model, intervention and split.

    Args:
        memorization: model -> its table.
    """
    rows = []
    for model, table in memorization.items():
        for (intervention, split), own in table.group_by("intervention", "split"):
            key = {"model": model, "intervention": intervention, "split": split}
            for metric in SPREAD:
                known = own[metric].drop_nulls().to_numpy()
                cuts = np.quantile(known, list(QUANTILES.values())) if len(known) else [None] * 5
                named = {
                    q: None if c is None else float(c) for q, c in zip(QUANTILES, cuts, strict=True)
                }
                rows.append({**key, "metric": metric, **named})
    return pl.DataFrame(rows, infer_schema_length=None)


def course(summary: pl.DataFrame, steps: Steps, run: str) -> Iterator[tuple[str, Any]]:
    """The numbers of the figure of a training run."""
    by_step = {step: model for model, of, step in sorted(steps, key=lambda s: s[2]) if of == run}
    first, last = min(by_step), max(by_step)
    scores = {"exact match": "exact_match", "token accuracy": "token_accuracy"}
    since = {}
    for title, metric in scores.items():
        rows = memorized(summary, metric)
        falls = rows.filter((pl.col("difference") < 0) & (pl.col("p_holm") < 0.05), SINGLE)
        blocks = rows.filter(SINGLE, model=by_step[last])["block"].sort()
        lost = {step: set(falls.filter(model=name)["block"]) for step, name in by_step.items()}
        since[title] = {
            block: min(n for n in by_step if all(block in lost[m] for m in by_step if m >= n))
            for block in blocks
            if block in lost[last]
        }
        never = [block for block in blocks if block not in since[title]]
        yield f"scores/{title}/never", _listed(never) if never else ""
        for i, step in enumerate(sorted(set(since[title].values()))):
            own = [block for block in blocks if since[title].get(block) == step]
            yield f"scores/{title}/parts/{i}/step", (step,)
            yield f"scores/{title}/parts/{i}/blocks", _listed(own)
    needed = since["exact match"]
    exact = memorized(summary, "exact_match").filter(WHOLE)
    values = exact.select("value", "low", "high", "model")
    at = {step: values.filter(model=name).row(0)[:3] for step, name in by_step.items()}
    yield "first", (first,)
    yield "last", (last,)
    yield "before", at[first]
    yield "after", at[last]
    above = [step for step in by_step if at[step][1] > at[first][2]]
    yield "recitable", (min(above),) if above else None
    yield "needed", (len(needed),) if needed else None
    yield "since", (min(needed.values()),) if needed else None
    yield "steps", (len(by_step),)


def _listed(blocks: Sequence[int]) -> str:
    return f"block{'' if len(blocks) == 1 else 's'} {', '.join(map(str, blocks))}"


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)
