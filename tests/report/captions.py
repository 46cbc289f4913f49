"""What the captions of the figures say, computed from the summary and the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

KINDS = {"reasoning": ("piqa", "arc_easy"), "language": ("hellaswag", "lambada_openai")}
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}

SPREAD = ("completion_entropy", "token_accuracy")
COLUMNS = (
    *("run", "step", "model", "intervention", "block", "task", "metric", "value", "low", "high"),
    *("difference", "difference_low", "difference_high", "p_holm", "n", "falls"),
)
Steps = Sequence[tuple[str, str, int]]
"""Model, run and step."""


class Line(NamedTuple):
    """A sentence of a caption: its start, and what else is in it."""

    start: str
    parts: Sequence[str] = ()


SINGLE = (pl.col("group") == "each") & (pl.col("edit") == "identity")
WHOLE = pl.col("intervention") == "baseline"


def number(value: float | None) -> str:
    """Four significant digits, thousands apart."""
    if value is None:
        return "–"
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def shares(value: float | None, low: float | None, high: float | None) -> str:
    """``98.4% [94.5, 99.6]``."""
    told = "–" if value is None else f"{100 * value:.1f}%"
    return told if low is None or high is None else f"{told} [{100 * low:.1f}, {100 * high:.1f}]"


def share_range(column: pl.Series) -> str:
    """``40–75%``."""
    ends = dict.fromkeys(f"{100 * end:.0f}" for end in (column.min(), column.max()))
    return f"{'–'.join(ends)}%"


def numbers(column: pl.Series) -> str:
    """``3.2 to 17``."""
    return " to ".join(dict.fromkeys(number(end) for end in (column.min(), column.max())))


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def late_blocks(n_blocks: int) -> range:
    return range(max(1, 3 * n_blocks // 4), n_blocks)


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


ASIDE = "(excluding block 0)."
MEAN = pl.col("kept").mean()


def later(rows: pl.DataFrame) -> pl.DataFrame:
    """Where one block other than 0 is bypassed."""
    return rows.filter(SINGLE & (pl.col("block") > 0))


def whole_percent(value: float | None) -> str:
    return f"{100 * value:.0f}%" if value is not None else "an unknown share"


def captions(summary: pl.DataFrame, spread: pl.DataFrame) -> Iterator[tuple[str, str]]:
    """Section and finding of each figure, in the order of the page."""
    models = summary.select("model", "family").unique(maintain_order=True)
    families = list(dict.fromkeys(models["family"]))
    exact = memorized(summary, "exact_match")
    yield "kept", _stopped(summary)
    for model in models["model"]:
        yield "scatter", _furthest(summary, model)
    for family in families:
        yield "blocks", _by_size(exact.filter(family=family), family)
    for family in families:
        if told := _drops(summary, family):
            yield "drops", told
    tokens = later(memorized(summary, "teacher_forced_accuracy"))["value"].median()
    at_k = memorized(summary, "exact_match_at_k")
    suffixes = at_k.filter(pl.col("k") == pl.col("k").max().over("model"))
    yield (
        "length",
        f"One bypass leaves a median teacher-forced accuracy of {whole_percent(tokens)} and "
        f"{whole_percent(later(suffixes)['value'].median())} of whole suffixes {ASIDE}",
    )
    if extracted := _extracted(summary):
        yield "extraction", extracted
    yield "spread", _levels(summary)
    yield "spread", _token_accuracy(summary, spread)
    if told := _perplexity(benchmarks(summary).filter(~pl.col("higher_is_better"))):
        yield "perplexity", told
    for family in families:
        if told := _quarters(summary.filter(family=family), family):
            yield "quartiles", told
    copies = summary.filter(WHOLE, metric="exact_match_by_copies")
    if copies.height:
        yield "copies", _copies(copies)
    beyond = summary.filter(metric="counterfactual_by_copies")
    if beyond.height:
        names = beyond["model"].unique(maintain_order=True)
        yield "twins", " ".join(_beyond(beyond.filter(model=name)) for name in names)


def details(summary: pl.DataFrame) -> Iterator[Line]:
    """The numbers of what is said below the figures."""
    exact, scored = memorized(summary, "exact_match"), benchmarks(summary)
    for family in dict.fromkeys(summary["family"]):
        others = later(exact).filter(family=family).sort("value", "block", "model")
        low = others.row(0, named=True)
        equal = (others["value"] == low["value"]).sum()
        told = (
            f"lowest, {100 * low['value']:.0f}%, with block {low['block']} of {low['model']} "
            "bypassed" + (f" (the first of {equal} equal ones)." if equal > 1 else ".")
        )
        yield Line(f"{family}: Apart from block 0, exact match is ", [told])
        spans = [
            f"{_changes(own['lost'])} in {kind}" for kind, own in _lost(summary, family).items()
        ]
        if spans:
            yield Line(f"{family}: block by block, the", [f"changes by {' and '.join(spans)};"])
    losses = scored.filter(~pl.col("higher_is_better"))
    if losses.height:
        ends = numbers(losses.filter(SINGLE)["value"]), numbers(losses.filter(WHOLE)["value"])
        parts = [f" is {ends[0]}; at baseline it is {ends[1]}."]
        yield Line("With one block bypassed, word_perplexity on tiny_wikitext", parts)


def _mean_kept(summary: pl.DataFrame) -> pl.DataFrame:
    return kept_ability(summary).group_by("model", "block").agg(able=MEAN)


def _stopped(summary: pl.DataFrame) -> str:
    exact = later(kept_memory(summary))
    lost = exact.filter(pl.col("kept") < 0.5)
    able = lost.join(_mean_kept(summary), on=["model", "block"]).filter(pl.col("able") > 0.5)
    return (
        f"Bypassing one block ends most exact matches at {lost.height} of {exact.height} blocks; "
        f"at {able.height} of these the benchmarks keep most of their lead over chance {ASIDE}"
    )


def _furthest(summary: pl.DataFrame, model: str) -> str:
    both = later(kept_memory(summary)).join(_mean_kept(summary), on=["model", "block"])
    own = both.filter(model=model).sort("block")
    best = max(own.rows(named=True), key=lambda row: row["able"] - row["kept"])
    return (
        f"{model}: memory and ability differ most at block {best['block']}; its bypass takes exact "
        f"match from {whole_percent(best['whole'])} to {whole_percent(best['value'])} and keeps "
        f"{whole_percent(best['able'])} of the benchmarks’ lead over chance {ASIDE}"
    )


def _by_size(exact: pl.DataFrame, family: str) -> str:
    means = {
        (rows["parameters"][0], name): rows["value"].mean()
        for [name], rows in later(exact).group_by("model", maintain_order=True)
    }
    ordered = sorted(means.items(), key=lambda each: each[0][0])
    values = [value for _, value in ordered]
    rising = len(values) > 1 and all(a < b for a, b in pairwise(values))
    listed = ", ".join(f"{whole_percent(value)} in {name}" for (_, name), value in ordered)
    more = "the larger model recites more; " if rising else ""
    return f"{family}: {more}with one block bypassed, exact match averages {listed} {ASIDE}"


def _lost(summary: pl.DataFrame, family: str) -> dict[str, pl.DataFrame]:
    """Kind of tasks -> the mean loss of each model and block."""
    rows = kept_ability(summary).filter(family=family)
    found = {}
    for kind, words in (("reasoning", "reasoning"), ("language", "language understanding")):
        own = rows.filter(pl.col("task").str.strip_prefix("tiny_").is_in(KINDS[kind]))
        if own.height:
            found[words] = own.group_by("model", "block").agg(lost=1 - MEAN)
    return found


def _changes(lost: pl.Series) -> str:
    ends = [-round(100 * end) for end in (max(lost), min(lost))]
    return " to ".join(dict.fromkeys(f"{end:+d}%" if end else "0%" for end in ends)).replace(
        "-", "−"
    )


def _drops(summary: pl.DataFrame, family: str) -> str:
    means = {
        kind: own.filter(pl.col("block") > 0)["lost"].mean()
        for kind, own in _lost(summary, family).items()
    }
    kinds = sorted(means, key=lambda kind: means[kind])
    shares = " against ".join(whole_percent(means[kind]) for kind in kinds)
    return kinds and (
        f"{family}: one bypass costs {' less than '.join(kinds)}, a mean of {shares} of the lead "
        f"over chance {ASIDE}"
    )


def _levels(summary: pl.DataFrame) -> str:
    rows = summary.filter(metric="completion_entropy")
    whole = rows.filter(WHOLE)
    levels = " and ".join(
        f"{numbers(whole.filter(split=split)['value'].round(1))} nats on {split} samples"
        for split in ("memorized", "control")
    )
    bypassed = numbers(later(rows.filter(split="memorized"))["value"].round(1))
    return (
        f"At baseline the suffix has {levels}; one bypass raises memorized samples to {bypassed} "
        f"{ASIDE}"
    )


def _token_accuracy(summary: pl.DataFrame, spread: pl.DataFrame) -> str:
    rows = later(summary.filter(metric="token_accuracy"))
    known = rows.join(spread, on=["model", "intervention", "split", "metric"])
    medians = {split: known.filter(split=split)["q50"] for split in ("memorized", "control")}
    told = " and ".join(
        f"{share_range(median)} of the tokens of the median {split} sample"
        for split, median in medians.items()
    )
    return f"One bypass leaves {told} right {ASIDE}"


def _perplexity(losses: pl.DataFrame) -> str:
    if not losses.height:
        return ""
    whole = losses.filter(WHOLE).select("model", "task", whole="value")
    rows = later(losses).join(whole, on=["model", "task"]).sort("model", "block")
    factors = rows["value"] / rows["whole"]
    at = rows.row(int(factors.arg_max() or 0), named=True)
    [metric] = rows["metric"].unique()
    return (
        f"One bypass multiplies {metric} on {at['task']} by a median of {factors.median():.2f}, "
        f"and by at most {factors.max():.2f}, at block {at['block']} of {at['model']} {ASIDE}"
    )


def _quarters(own: pl.DataFrame, family: str) -> str:
    quarters = memorized(own, "exact_match").filter(group="quartiles", edit="identity")
    if not quarters.height:
        return ""
    scored = benchmarks(own).filter("higher_is_better", group="quartiles", edit="identity")
    means = scored.group_by("intervention").agg(pl.mean("value").round(9))
    name, best = max(sorted(means.rows()), key=lambda row: row[1])
    return (
        f"{family}: with a quarter of the blocks bypassed at once, exact match is "
        f"{share_range(quarters['value'])}; the benchmark scores are highest, a mean of "
        f"{whole_percent(best)}, with quarter {name.removeprefix('quartile-')} bypassed."
    )


def often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _copies(copies: pl.DataFrame) -> str:
    by_count = {
        count: copies.filter(pl.col("copies") == count)["value"]
        for count in sorted(copies["copies"].unique())
    }
    counts = list(by_count)
    least, most = (f"{share_range(by_count[n])} of" for n in (counts[0], counts[-1]))
    half = [
        count
        for i, count in enumerate(counts)
        if all(by_count[each].min() > 0.5 for each in counts[i:])
    ]
    enough = f"; all recite more than half from {half[0]} copies on" if half else ""
    return (
        f"At baseline, the models recite {least} the samples seen {often(counts[0])} and {most} "
        f"those seen {often(counts[-1])}{enough}."
    )


def _beyond(rows: pl.DataFrame) -> str:
    most = rows["copies"].max()
    told = []
    for own in (rows.filter(WHOLE, copies=most), rows.filter(WHOLE, copies=rows["copies"].min())):
        told.append(own.row(0, named=True))
    harmed = later(rows.filter(copies=most)).sort("value", "block").row(0, named=True)
    first, second, third = (
        f"{percent(each['value'])} [{percent(each['low'])}, {percent(each['high'])}]"
        for each in (*told, harmed)
    )
    return (
        f"Beyond its twin, {rows['model'][0]} recites {first} of the samples that it saw {most} "
        f"times and {second} of those that it never saw; with block "
        f"{harmed['block']} bypassed, {third} of the former."
    )


def _extracted(summary: pl.DataFrame) -> str:
    """Of the late block with the median exact match of each model, the lower of two."""
    hidden = memorized(summary, "hidden_extractable_top_40").filter(k=1000)
    shares = []
    for [model], rows in memorized(summary, "exact_match").group_by("model", maintain_order=True):
        ranked = late(rows).sort("value", "block")
        typical = ranked["intervention"][(ranked.height - 1) // 2]
        shares += hidden.filter(model=model, intervention=typical).rows(named=True)
    if not shares:
        hides = "The bypass of a typical late block hides no memorized sample from greedy decoding."
        return hides if memorized(summary, "extractable_top_40").height else ""
    told = f"{share_range(pl.Series([row['value'] for row in shares]))} (over {len(shares)} models)"
    if len(shares) == 1:
        [row] = shares
        interval = f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
        told = f"{percent(row['value'])} {interval} (of {row['n']})"
    return (
        "Of the memorized samples that the bypass of a typical late block hides from greedy "
        f"decoding, {told} still come out within 1,000 tries."
    )


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
                named = dict(zip(QUANTILES, map(_float, cuts), strict=True))
                rows.append({**key, "metric": metric, **named})
    return pl.DataFrame(rows, infer_schema_length=None)


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _course(summary: pl.DataFrame, steps: Steps, run: str) -> pl.DataFrame:
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
    rows = _course(summary, steps, run)
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
