"""The data of each figure, computed again from the summary and the tables."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from pipeline.analysis.statistics import LEVEL, reach

COLUMNS = "model", "family", "intervention", "block", "task", "metric", "value", "low", "high", "n"
KINDS = {"reasoning": ("piqa", "arc_easy"), "language": ("hellaswag", "lambada_openai")}
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
SPREAD = ("completion_entropy", "token_accuracy")
SINGLE = (pl.col("group") == "each") & (pl.col("edit") == "identity")
WHOLE = pl.col("intervention") == "baseline"
ONE_BLOCK = pl.col("group") == "each"
MEAN = "benchmarks, mean lead over chance"
LENGTHS = (1, 4, 16)
VALUE, LOW, HIGH = map(pl.col, ("value", "low", "high"))
Steps = Sequence[tuple[str, str, int]]


def frames(
    summary: pl.DataFrame, evidence: pl.DataFrame, cuts: pl.DataFrame, steps: Steps
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Name and data of each figure that is made of the summary.

    `cuts` are those of `spread`; `steps` are model, run and step of a training's checkpoints.
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
    known = pl.DataFrame(steps, schema=("model", "run", "step"), orient="row")
    falls = ((pl.col("difference") < 0) & (pl.col("p_holm") < 0.05)).fill_null(False)
    course = rows.join(known, on="model").with_columns(falls=falls)
    changes = ("difference", "difference_low", "difference_high", "p_holm", "falls")
    for run in {run for _, run, _ in steps}:
        columns = (*COLUMNS, *changes, "run", "step")
        yield f"training-{run}", course.filter(run=run).select(columns).drop("family")


def memorized(summary: pl.DataFrame, metric: str, split: str = "memorized") -> pl.DataFrame:
    return summary.filter(task="memorization", metric=metric, split=split)


def benchmarks(summary: pl.DataFrame) -> pl.DataFrame:
    """The rows of benchmarks, of each one metric: acc, else word_perplexity."""
    metrics = summary.filter(pl.col("task") != "memorization").select("task", "metric").unique()
    order = pl.col("metric").replace({"acc": "", "word_perplexity": " "})  # else the first by name
    known = metrics.sort(order).unique("task", keep="first", maintain_order=True)
    return summary.join(known, on=["task", "metric"], how="semi", maintain_order="left")


def kept(rows: pl.DataFrame, floor: pl.Expr, which: pl.Expr = SINGLE) -> pl.DataFrame:
    """The rows of `which` with what is kept of the lead that the baseline has over `floor`."""
    whole = rows.filter(WHOLE).select(
        "model", "task", whole="value", least=pl.coalesce("low", "value")
    )
    single = rows.filter(which).join(whole, on=["model", "task"], maintain_order="left")
    floor = floor.fill_null(0.0)
    share = (pl.col("value") - floor) / (pl.col("whole") - floor)
    return single.filter(pl.col("least") > floor).with_columns(kept=share)


def spread(memorization: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Quantiles of each intervention and split, from the table of each model."""
    rows = []
    for model, table in memorization.items():
        for (intervention, split), own in table.group_by("intervention", "split"):
            key = {"model": model, "intervention": intervention, "split": split}
            for metric in SPREAD:
                known = own[metric].drop_nulls().to_numpy()
                cuts = np.quantile(known, list(QUANTILES.values())).tolist() if len(known) else []
                rows.append({**key, "metric": metric, **dict(zip(QUANTILES, cuts, strict=False))})
    return pl.DataFrame(rows, infer_schema_length=None)


def intervals(evidence: pl.DataFrame) -> pl.DataFrame:
    """What is kept, with the ends of its 95% interval within the limits."""
    half = pl.struct("stderr", "n_effective", "scale").map_elements(
        lambda row: reach(*row.values(), LEVEL), return_dtype=pl.Float64
    )
    return evidence.filter(quantity="kept").with_columns(
        low=pl.max_horizontal(VALUE - half, "least"), high=pl.min_horizontal(VALUE + half, "most")
    )


def _with_ends(
    rows: pl.DataFrame, floor: pl.Expr, evidence: pl.DataFrame, which: pl.Expr = SINGLE
) -> pl.DataFrame:
    """What is kept of the lead, with the ends of the evidence's interval."""
    key = ["model", "task", "metric", "intervention"]
    known = intervals(evidence).rename({"over": "intervention"}).select(*key, "low", "high")
    return kept(rows, floor, which).drop("low", "high").join(known, on=key)


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
    value = pl.col("kept")
    return rows.group_by(*by, maintain_order=True).agg(
        value.mean(),
        low=value.mean() - ((value - LOW) ** 2).sum().sqrt() / pl.len(),
        high=value.mean() + ((HIGH - value) ** 2).sum().sqrt() / pl.len(),
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
    parts.append(able.with_columns(measure="task", kind=pl.lit("benchmark")))
    parts.append(_mean(able, *block).with_columns(measure=pl.lit(MEAN), kind=pl.lit("mean")))
    columns = (*block, "measure", "kind", "kept", "low", "high")
    return pl.concat(part.select(columns) for part in parts)


def _gaps(summary: pl.DataFrame, evidence: pl.DataFrame) -> pl.DataFrame:
    """Mean share kept of the benchmarks minus that of memory, over the late blocks."""
    key = ("model", "family", "edit")
    rows = intervals(evidence).filter(over="late")
    ability = rows.filter(metric="acc").group_by(key)
    able = ability.agg(
        able=VALUE.mean(),
        down=((VALUE - LOW) ** 2).sum().sqrt() / pl.len(),
        up=((HIGH - VALUE) ** 2).sum().sqrt() / pl.len(),
    )
    named = {"exact_match": "exact_match", "exact_match_at_k": "exact_match"}
    named["suffix_log_prob"] = "suffix_log_prob"
    gap = pl.col("able") - VALUE
    memory = rows.filter(pl.col("metric").is_in(list(named))).join(able, on=key)
    memory = memory.select(
        *key,
        pl.col("metric").replace(named).alias("measure"),
        pl.col("k").cast(pl.Int64),
        gap=gap,
        low=gap - (pl.col("down") ** 2 + (HIGH - VALUE) ** 2).sqrt(),
        high=gap + (pl.col("up") ** 2 + (VALUE - LOW) ** 2).sqrt(),
    )
    n_blocks = pl.col("block").max().over("model") + 1
    late_rows = summary.filter(ONE_BLOCK & (pl.col("block") >= 3 * n_blocks // 4))
    tokens = late_rows.filter(metric="survival_gap").group_by(key)
    equal = tokens.agg(gap=-VALUE.mean(), low=-HIGH.mean(), high=-LOW.mean())
    equal = equal.with_columns(k=pl.lit(None, pl.Int64), measure=pl.lit("survival_gap"))
    return pl.concat([memory, equal.select(memory.columns)])


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
        n_blocks = rows["block"].max() + 1
        early = single.filter(pl.col("block") < max(2, n_blocks // 4))
        late = single.filter(pl.col("block") >= 3 * n_blocks // 4)
        last = rows.filter(group="quartiles").sort(pl.col("blocks").list.first())
        chosen = {"baseline": "baseline"}
        for label, own in (("an early block", early), ("a late block", late)):
            if own.height:
                chosen[own["intervention"][(own.height - 1) // 2]] = label
        if last.height:
            chosen[last["intervention"][-1]] = "last quarter"
        labels = pl.DataFrame({"intervention": list(chosen), "label": list(chosen.values())})
        own = tries.filter(model=model).join(labels, on="intervention")
        parts.append(own.select(*COLUMNS, "k", "label"))
    return pl.concat(parts)
