"""The evidence for the verdicts: losses under a bypass, each with a standard error.

One row for each model, measure and set of interventions; written as ``evidence.parquet``. The
interventions are single blocks, quarters of the blocks, averages over the single blocks of a range,
and contrasts of two such sets. Averages and contrasts are taken sample by sample, so that errors
common to the blocks cancel. What other edits of one block and random sets of blocks keep is there
too, for comparison; `kept.kept` reads it.

Quantities, of the identity edit:

- kept: ``(v - floor) / (baseline - floor)``, over all samples or documents. The floor is chance for
  a benchmark with known chance; for memorization it is the unmodified model's score on control
  samples.
- retained: the same among the samples that the unmodified model recites, or the documents that it
  answers correctly: ``(rate - chance) / (1 - chance)``. Both are chosen by the same rule, so that
  memory and ability are compared on equal terms: neither can gain.
- kept of the metric second_half: the share of right tokens in the second half, over samples whose
  first half the unmodified model recites. Samples are chosen and judged by different tokens, so the
  unmodified model, too, may fail. A continuation's second half follows the model's own first half,
  so an early mistake counts here as well.
- difference: a benchmark's score minus the baseline's.
- log_ratio: the logarithm of a perplexity's ratio to the baseline's; nats.
- displacement, attention_change: see `displacement`.

For an average, kept and retained are averages; for a contrast, they are differences (no floor).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis import views
from pipeline.analysis.displacement import evidence_rows
from pipeline.analysis.documents import by_document, link_of, perplexity
from pipeline.analysis.measured import ModelTables, grids
from pipeline.analysis.rows import Measure
from pipeline.analysis.statistics import LEVEL, clustered_errors, effective_number, reach
from pipeline.interventions.interventions import BASELINE
from pipeline.workflow import tables
from pipeline.workflow.tables import Column, Schema

EVIDENCE_FILE = "evidence.parquet"
"""The name of the table, beside the summary."""

EVIDENCE: Schema = {
    "model": Column(pl.String, "name"),
    "recipe": Column(pl.String, "the first model that differs from it at most in its seed"),
    "family": Column(pl.String, "name"),
    "parameters": Column(pl.UInt64, "of the model; null where unknown", nullable=True),
    "n_blocks": Column(pl.UInt16, "L, of the model"),
    "task": Column(pl.String, "memorization, or the benchmark's name"),
    "metric": Column(pl.String, "exact_match, second_half, acc, word_perplexity, …"),
    "quantity": Column(
        pl.String,
        "kept, retained, difference, log_ratio, displacement, attention_change",
    ),
    "kind": Column(
        pl.String, "of what it is over: block, control, quartile, random, range, contrast"
    ),
    "over": Column(pl.String, "the interventions it is over, by name"),
    "block": Column(pl.UInt16, "0-based, where it is one block alone; else null", nullable=True),
    "edit": Column(pl.String, "of one intervention; null of several", nullable=True),
    "blocks": Column(pl.UInt16, "number that it edits; null of several", nullable=True),
    "value": Column(pl.Float64, "the estimate; 1: nothing is lost, for kept and retained"),
    "stderr": Column(pl.Float64, "standard error; null where unknown", nullable=True),
    "n": Column(pl.UInt32, "samples or documents"),
    "n_effective": Column(pl.Float64, "groups of near-duplicates, as if of equal weight"),
    "scale": Column(pl.Float64, "n times what one sample can change; 0: no limit"),
    "least": Column(pl.Float64, "the least value possible; null: no limit", nullable=True),
    "most": Column(pl.Float64, "the largest value possible; null: no limit", nullable=True),
}

TOKENS = "teacher_forced_accuracy"
SECOND_HALF = "second_half"
LATE = "late"
CONTRAST = "late minus middle"

_Floats = NDArray[np.float64]


def evidence(models: Iterable[ModelTables]) -> pl.DataFrame:
    """The evidence of a study.

    Args:
        models: complete, see `measured.grid_problems`; taken one by one.

    Returns:
        A frame of schema `EVIDENCE`.
    """
    return gathered(evidence_of(model) for model in models)


def gathered(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """The evidence of several models in one table; see `evidence_of`.

    Models of one recipe are all given the name of the first as their recipe.
    """
    schema = tables.dtypes(EVIDENCE)
    rows = pl.concat([pl.DataFrame(schema=schema), *parts])
    return rows.with_columns(recipe=pl.col("model").first().over("recipe"))


def interval(row: tuple[float, ...], level: float) -> tuple[float, float]:
    """The interval of a row; unbounded without a standard error.

    Args:
        row: value, stderr, n_effective, scale, least, most of a row of the evidence.
        level: of the interval, such as 0.95.

    Returns:
        Its ends, between least and most.
    """
    value, stderr, n, scale, least, most = row
    half_width = reach(math.nan if stderr is None else stderr, n, scale, level)
    low = value - half_width if least is None else max(value - half_width, least)
    high = value + half_width if most is None else min(value + half_width, most)
    return min(low, value), max(high, value)  # rounding may pass a limit


@dataclass(frozen=True)
class _Over:
    """A linear combination of interventions.

    Args:
        kind, name, block: as in `EVIDENCE`.
        weights: (V,) of the interventions.
    """

    kind: str
    name: str
    block: int | None
    weights: _Floats


def evidence_of(model: ModelTables) -> pl.DataFrame:
    """The evidence of one model.

    Args:
        model: complete, see `measured.grid_problems`.

    Returns:
        A frame of schema `EVIDENCE`; `recipe` is the model's key, or its name.
    """
    names = model.interventions["intervention"].to_list()
    baseline_index = names.index(BASELINE.name)
    parts = []
    measures = [*_memory(model, baseline_index), *_abilities(model, names)]
    for overs, of_all in ((_overs(model), True), (_controls(model), False)):
        if not overs:
            continue
        weights = np.stack([over.weights for over in overs], axis=1)
        for measure in measures:
            for quantity, columns in _quantities(measure, weights, baseline_index):
                if of_all or quantity == "kept":
                    parts.append(_frame(measure, quantity, overs, columns))
        if of_all:
            parts += _log_ratios(model, names, overs, weights, baseline_index)
    parts += [
        part.with_columns(task=pl.lit(views.MEMORIZATION), scale=pl.lit(0.0), most=pl.lit(None))
        for part in evidence_rows(model)
    ]
    schema = tables.dtypes(EVIDENCE)
    constants = {
        "model": model.name,
        "recipe": model.recipe or model.name,
        "family": model.family,
        "parameters": model.parameters,
        "n_blocks": model.n_blocks,
    }
    edited = model.interventions.select(
        "edit", over="intervention", blocks=pl.col("blocks").list.len()
    )
    return pl.concat(
        [
            pl.DataFrame(schema=schema),
            *(
                part.join(edited, on="over", how="left", maintain_order="left")
                .with_columns(
                    *(pl.lit(v).alias(k) for k, v in constants.items()),
                    pl.col("stderr").fill_nan(None),
                )
                .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
                .filter(pl.col("value").is_finite())
                for part in parts
            ),
        ]
    )


def _overs(model: ModelTables) -> list[_Over]:
    """Single blocks, quarters, ranges, and contrasts, as far as the model's table has them."""
    rows = model.interventions.with_row_index("column")
    unit = np.eye(rows.height)
    single = {
        block: (name, unit[column])
        for column, name, [block] in rows.filter(views.ONE_BLOCK)
        .select("column", "intervention", "blocks")
        .iter_rows()
    }
    overs = [_Over("block", name, block, weights) for block, (name, weights) in single.items()]
    mean: dict[str, _Floats] = {}
    for name in ("all", "middle", LATE):
        blocks = views.block_range(model.n_blocks, name)
        if blocks and all(block in single for block in blocks):
            mean[name] = np.mean([single[block][1] for block in blocks], axis=0)
            overs.append(_Over("range", name, None, mean[name]))
    if {"middle", LATE} <= set(mean):
        overs.append(_Over("contrast", CONTRAST, None, mean[LATE] - mean["middle"]))
    quarters = rows.filter(views.ONE_QUARTILE).sort(pl.col("blocks").list.first())
    named = list(quarters.select("intervention", "column").iter_rows())
    overs += [_Over("quartile", name, None, unit[column]) for name, column in named]
    if len(named) == 4:
        last_name, last = named[-1]
        overs += [
            _Over("contrast", f"{last_name} minus {name}", None, unit[last] - unit[column])
            for name, column in named[:-1]
        ]
    return overs


def _controls(model: ModelTables) -> list[_Over]:
    """Single blocks under other edits, and random sets of bypassed blocks."""
    rows = model.interventions.with_row_index("column")
    unit = np.eye(rows.height)
    key = ("intervention", "blocks", "column")
    other_edits = rows.filter(views.CONTROL).select(key).iter_rows()
    random_sets = rows.filter(views.RANDOM_SET).select(key).iter_rows()
    return [
        *(_Over("control", name, blocks[0], unit[column]) for name, blocks, column in other_edits),
        *(_Over("random", name, None, unit[column]) for name, _, column in random_sets),
    ]


def _memory(model: ModelTables, baseline_index: int) -> Iterator[Measure]:
    """Exact match, single tokens, and the second half, of memorized samples."""
    splits = grids(model)
    if "memorized" not in splits:
        return
    memorized = splits["memorized"]
    first_half = memorized.floats("correct_length")[:, baseline_index]
    recited = first_half >= memorized.suffix_length // 2
    for metric in ("exact_match", TOKENS, SECOND_HALF):
        floor = error = 0.0
        if "control" in splits:
            control, groups = splits["control"].floats(metric), splits["control"].groups
            decoded = np.isfinite(control[:, baseline_index])
            if decoded.sum() > 1:
                mean, errors = clustered_errors(
                    control[decoded][:, [baseline_index]], groups[decoded]
                )
                floor, error = float(mean[0]), float(np.nan_to_num(errors[0]))
        elif metric == TOKENS:
            continue  # without the floor, part of the loss would not be memory
        outcomes, groups = memorized.floats(metric), memorized.groups
        if metric == SECOND_HALF:
            decoded = recited & np.isfinite(outcomes).all(axis=1)
            outcomes, groups = outcomes[decoded], groups[decoded]
        yield Measure(metric, outcomes, groups, floor=floor, floor_error=error)


def _abilities(model: ModelTables, names: Sequence[str]) -> Iterator[Measure]:
    """The shares of right answers of every benchmark whose documents are known."""
    if model.benchmarks is None:
        return
    rows = model.benchmarks.filter("higher_is_better")
    chances = rows.select("task", "metric", "chance").unique().sort("task", "metric")
    for task, metric, chance in chances.iter_rows():
        answers = by_document(model.documents, task, metric, names)
        if answers is not None and np.isin(answers[0], (0.0, 1.0)).all():
            yield Measure(metric, answers[0], np.arange(len(answers[0])), task, floor=chance or 0.0)


def _quantities(
    measure: Measure, weights: _Floats, baseline_index: int
) -> Iterator[tuple[str, dict[str, object]]]:
    """The quantities of one measure over each combination of interventions.

    Args:
        measure: N samples under V interventions.
        weights: (V, C) the combinations.
        baseline_index: the baseline's column of the measure.

    Yields:
        name, and columns of `EVIDENCE` as `_columns` makes them.
    """
    values, groups = measure.values, measure.groups
    if len(np.unique(groups)) < 2:
        return
    unmodified = values[:, [baseline_index]]
    [baseline], [error] = clustered_errors(unmodified, groups)
    lead = baseline - measure.floor
    n = effective_number(groups)
    if lead <= reach(float(np.hypot(error, measure.floor_error)), n, 1.0, LEVEL):
        return  # nothing to lose
    mixed, total = values @ weights, weights.sum(axis=0)
    above = mixed - measure.floor * total
    kept = above.mean(axis=0) / lead
    _, errors = clustered_errors((above - kept * (unmodified - measure.floor)) / lead, groups)
    errors = np.hypot(errors, (kept - total) / lead * measure.floor_error)
    yield "kept", _columns(kept, errors, groups, 1 / lead, measure.floor, total)
    if measure.metric in (TOKENS, SECOND_HALF):
        return
    chance = measure.floor if measure.task != views.MEMORIZATION else 0.0
    right = values[:, baseline_index] == 1
    if len(np.unique(groups[right])) > 1:
        rate, errors = clustered_errors(mixed[right], groups[right])
        rest = 1 - chance
        retained = (rate - chance * total) / rest
        yield "retained", _columns(retained, errors / rest, groups[right], 1 / rest, chance, total)
    if measure.task != views.MEMORIZATION:
        difference, errors = clustered_errors(mixed - unmodified * total, groups)
        yield "difference", _columns(difference, errors, groups, 1.0, 0.0, total * 0)


def _log_ratios(
    model: ModelTables,
    names: Sequence[str],
    overs: Sequence[_Over],
    weights: _Floats,
    baseline_index: int,
) -> Iterator[pl.DataFrame]:
    """The log ratios of word perplexities; those of averages are averages of the logarithms."""
    if model.benchmarks is None:
        return
    rows = model.benchmarks.filter(metric=views.WORD_PERPLEXITY)
    for task in rows["task"].unique().sort():
        likelihoods = by_document(model.documents, task, views.WORD_PERPLEXITY, names)
        if likelihoods is None:
            continue
        values, sizes = likelihoods
        order = pl.col("intervention").cast(pl.Enum(names))
        reported = rows.filter(task=task).sort(order)["value"].to_numpy()
        if link_of(values, sizes, reported) is not perplexity:
            continue
        document = np.arange(len(values))
        change = values @ weights - values[:, [baseline_index]] * weights.sum(axis=0)
        ratio, errors = clustered_errors(-change, document, sizes)
        measure = Measure(views.WORD_PERPLEXITY, values, document, task)
        columns = _columns(ratio, errors, document, 0.0)
        columns["n_effective"] = effective_number(document, sizes)  # long texts count for more
        yield _frame(measure, "log_ratio", overs, columns)


def _columns(
    value: _Floats,
    stderr: _Floats,
    groups: NDArray[np.integer],
    scale: float,
    floor: float = 0.0,
    total: _Floats | None = None,
) -> dict[str, object]:
    """The columns of a quantity ``scale * (share - floor)``, or of differences of two of them.

    Args:
        value: (C,) the estimates.
        stderr: (C,) their errors.
        groups: (N,) of near-duplicates.
        scale: of the quantity.
        floor: of the quantity.
        total: (C,) 1 for such a quantity, 0 for a difference of two; None: it has no limits.
    """
    limits: dict[str, object] = {"least": None, "most": None}
    if total is not None:
        share = total > 0.5
        limits["least"] = np.where(share, -floor, -1.0) * scale
        limits["most"] = np.where(share, 1 - floor, 1.0) * scale
    return {
        "value": value,
        "stderr": stderr,
        "n": len(groups),
        "n_effective": effective_number(groups),
        "scale": scale,
        **limits,
    }


def _frame(
    measure: Measure, quantity: str, overs: Sequence[_Over], columns: dict[str, object]
) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "task": measure.task,
            "metric": measure.metric,
            "quantity": quantity,
            "kind": [over.kind for over in overs],
            "over": [over.name for over in overs],
            "block": [over.block for over in overs],
            **columns,
        }
    )
