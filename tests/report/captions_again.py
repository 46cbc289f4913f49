"""The numbers in the captions of the figures, from the summary."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tests.report.verdicts_again import KINDS, late_blocks, percent
from tests.report.written_again import number, numbers, share_range

SINGLE = (pl.col("group") == "each") & (pl.col("edit") == "identity")
WHOLE = pl.col("intervention") == "baseline"


def memorized(summary: pl.DataFrame, metric: str, split: str = "memorized") -> pl.DataFrame:
    return summary.filter(task="memorization", metric=metric, split=split)


def benchmarks(summary: pl.DataFrame) -> pl.DataFrame:
    """The rows of benchmarks, of each one metric: acc, else word_perplexity."""
    metrics = summary.filter(pl.col("task") != "memorization").select("task", "metric").unique()
    chosen = {
        task: next((name for name in ("acc", "word_perplexity") if name in own), min(own))
        for [task], rows in metrics.group_by("task")
        for own in [rows["metric"].to_list()]
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


def kept_memory(summary: pl.DataFrame) -> pl.DataFrame:
    control = memorized(summary, "exact_match", "control").filter(WHOLE)
    rows = memorized(summary, "exact_match").join(
        control.select("model", control="value"), on="model", how="left", maintain_order="left"
    )
    return kept(rows, pl.col("control"))


def kept_ability(summary: pl.DataFrame) -> pl.DataFrame:
    return kept(benchmarks(summary).filter("higher_is_better"), pl.col("chance"))


def late(rows: pl.DataFrame) -> pl.DataFrame:
    """Those of single late blocks."""
    count = rows["block"].max() + 1
    return rows.filter(SINGLE & pl.col("block").is_in(late_blocks(count)))


def captions(summary: pl.DataFrame) -> Iterator[list[str]]:
    """What the caption of each figure has to hold, in the order of the page."""
    models = summary.select("model", "family").unique(maintain_order=True)
    families = list(dict.fromkeys(models["family"]))
    exact, scored = memorized(summary, "exact_match"), benchmarks(summary)
    single = exact.filter(SINGLE)
    keeps = share_range(kept_memory(summary)["kept"])
    able = share_range(kept_ability(summary)["kept"])
    yield [f"Exact match on memorized samples keeps {keeps}, the benchmarks {able}, when"]
    for model in models["model"]:
        spans = share_range(exact.filter(SINGLE, model=model)["value"])
        yield [f"{model}: with one block bypassed, exact match is {spans}."]
    for family in families:
        others = single.filter(pl.col("block") > 0, family=family).sort("value", "block", "model")
        low = others.row(0, named=True)
        equal = (others["value"] == low["value"]).sum()
        yield [
            f"{family}: Apart from block 0, exact match is lowest, {100 * low['value']:.0f}%, with "
            f"block {low['block']} of {low['model']} bypassed"
            + (f" (the first of {equal} equal ones)." if equal > 1 else ".")
        ]
    for family in families:
        if lost := _drops(summary, family):
            yield [f"{family}: with one block bypassed, tasks lose {lost} of their"]
    tokens = memorized(summary, "teacher_forced_accuracy").filter(SINGLE)
    yield [f"Single tokens stay right in {share_range(tokens['value'])} of cases"]
    if extracted := _extracted(summary):
        yield extracted
    entropy = summary.filter(WHOLE, metric="completion_entropy")
    levels = [
        f"{numbers(entropy.filter(split=split)['value'])} nats on {split} samples"
        for split in ("memorized", "control")
    ]
    yield [f"Unmodified, the models have {' and '.join(levels)}."]
    losses = scored.filter(~pl.col("higher_is_better"))
    if losses.height:
        bypassed = numbers(losses.filter(SINGLE)["value"])
        yield [f" is {bypassed}; unmodified it is {numbers(losses.filter(WHOLE)['value'])}."]
    quarters = exact.filter(group="quartiles", edit="identity")
    for family in families:
        if (own := quarters.filter(family=family)).height:
            spans = share_range(own["value"])
            yield [
                f"{family}: with a quarter of the blocks bypassed at once, exact match is {spans}."
            ]
    copies = summary.filter(WHOLE, metric="exact_match_by_copies")
    if copies.height:
        least, most = (
            share_range(copies.filter(pl.col("copies") == end)["value"])
            for end in (copies["copies"].min(), copies["copies"].max())
        )
        yield [f"recite {least} of the samples seen least often and {most} of those"]


def _drops(summary: pl.DataFrame, family: str) -> str:
    rows = kept_ability(summary).filter(family=family)
    told = []
    for kind, words in (("reasoning", "reasoning"), ("language", "language understanding")):
        own = rows.filter(pl.col("task").str.strip_prefix("tiny_").is_in(KINDS[kind]))
        mean = own.group_by("model", "block").agg(pl.col("kept").mean())
        told += [f"{share_range(1 - mean['kept'])} in {words}"] if own.height else []
    return " and ".join(told)


def _extracted(summary: pl.DataFrame) -> list[str]:
    """Of the late block with the median exact match of each model, the lower of two."""
    hidden = memorized(summary, "hidden_extractable_top_40").filter(k=1000)
    shares = []
    for [model], rows in memorized(summary, "exact_match").group_by("model", maintain_order=True):
        ranked = late(rows).sort("value", "block")
        typical = ranked["intervention"][(ranked.height - 1) // 2]
        shares += hidden.filter(model=model, intervention=typical).rows(named=True)
    if not shares:
        return ["1,000 tries"] if memorized(summary, "extractable_top_40").height else []
    told = f"{share_range(pl.Series([row['value'] for row in shares]))} (over {len(shares)} models)"
    if len(shares) == 1:
        [row] = shares
        interval = f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
        told = f"{percent(row['value'])} {interval} (of {row['n']})"
    return [f"greedy decoding, {told} still come out within 1,000 tries."]


def heatmap(summary: pl.DataFrame, model: str) -> tuple[str, list[list[str]]]:
    """The sentence of a model's heatmap, and its cells."""
    own = summary.filter(model=model)
    columns = {
        "exact match": memorized(own, "exact_match"),
        "tokens right": memorized(own, "token_accuracy"),
        "single tokens": memorized(own, "teacher_forced_accuracy"),
        "entropy, nats": memorized(own, "completion_entropy"),
    }
    for [task], rows in benchmarks(own).sort("task").group_by("task", maintain_order=True):
        columns[str(task).removeprefix("tiny_").replace("_", " ")] = rows
    blocks = sorted(own.filter(SINGLE)["block"].unique())
    cells = [["bypassed", *columns]]
    for block in (None, *blocks):
        row = ["unmodified" if block is None else f"block {block}"]
        for label, rows in columns.items():
            picked = rows.filter(WHOLE if block is None else SINGLE & (pl.col("block") == block))
            value = picked["value"].item()
            upwards = label != "entropy, nats" and picked["higher_is_better"][0] is not False
            row.append(f"{100 * value:.0f}%" if upwards else number(float(f"{value:.2g}")))
        cells.append(row)
    exact = memorized(own, "exact_match")
    whole = exact.filter(WHOLE)["value"].item()
    others = exact.filter(SINGLE & (pl.col("block") > 0)).sort("block")
    lowest = others.filter(pl.col("value") == pl.col("value").min())
    many = "one of blocks" if lowest.height > 1 else "block"
    listed = ", ".join(map(str, lowest["block"]))
    if lowest["value"][0] >= whole:
        return "No block apart from block 0 lowers exact match.", cells
    low = lowest["value"][0]
    return f"is lowest, {low:.0%} instead of {whole:.0%}, when {many} {listed} is bypassed.", cells
