"""The evidence for the verdicts: losses under each edit, each with a standard error.

One row for each model, measure, edit and set of interventions; written as ``evidence.parquet``. The
sets are single blocks, quarters of the blocks, averages over the single blocks of a range or over
the quarters, contrasts of two of these, and slopes over the single blocks but the first. Averages,
contrasts and slopes are taken sample by sample, so that errors common to the blocks cancel. Of an
edit with several random draws, the first is taken.

Quantities:

- kept: ``(v - floor) / (baseline - floor)``, over all samples or documents. The floor is chance for
  a benchmark with known chance; for memorization it is the unmodified model's score on control
  samples. No sample is chosen by what the unmodified model gets right: such a choice would also
  choose its luck, which no other run repeats.
- difference: a benchmark's score minus the baseline's.
- log_ratio: the logarithm of a perplexity's ratio to the baseline's; nats.
- displacement, attention_change: see `displacement`.

For an average, kept is the average; for a contrast, the difference (no floor); for a slope, the
rise of the least-squares line from the first block to the last, by rank. The blocks of a model are
all there are, so the error is that of the samples.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from pipeline.analysis import views
from pipeline.analysis.displacement import ATTENTION_CHANGE, DISPLACEMENT, grid_of
from pipeline.analysis.documents import by_document, perplexity
from pipeline.analysis.measured import Grid, ModelTables, grids
from pipeline.analysis.memorized import k_values
from pipeline.analysis.rows import Measure
from pipeline.analysis.statistics import (
    GRAIN,
    LEVEL,
    clustered_errors,
    effective_number,
    reach,
    scale_of_categories,
)
from pipeline.interventions.interventions import BASELINE, EACH, QUARTILE, RANDOM
from pipeline.workflow import tables
from pipeline.workflow.tables import Schema, float64, string, uint16, uint32, uint64

EVIDENCE_FILE = "evidence.parquet"
"""The name of the table, beside the summary."""

EVIDENCE: Schema = {
    "model": string("name"),
    "recipe": string("the first model that differs from it at most in its seed"),
    "family": string("name"),
    "parameters": uint64("of the model; null where unknown", nullable=True),
    "n_blocks": uint16("L, of the model"),
    "task": string("memorization, or the benchmark's name"),
    "metric": string("exact_match, suffix_log_prob, acc, word_perplexity, …"),
    "k": uint32("tokens, for exact match at k; else null", nullable=True),
    "quantity": string("kept, difference, log_ratio, displacement, attention_change"),
    "edit": string("of all interventions that it is over"),
    "kind": string("block, quartile, random, range, contrast or slope: what it is over"),
    "over": string("the interventions it is over, by name"),
    "block": uint16("0-based, where it is one block alone; else null", nullable=True),
    "blocks": uint16("number that one intervention edits; else null", nullable=True),
    "value": float64("the estimate; 1: nothing is lost, for kept"),
    "stderr": float64("standard error; null where unknown", nullable=True),
    "n": uint32("samples or documents"),
    "n_effective": float64("groups of near-duplicates, or categories, as if of equal weight"),
    "scale": float64("n times what one sample can change; 0: no limit"),
    "least": float64("the least value possible; null: no limit", nullable=True),
    "most": float64("the largest value possible; null: no limit", nullable=True),
}

TOKENS = "teacher_forced_accuracy"
LOG_PROB = "suffix_log_prob"
AT_K = "exact_match_at_k"
LATE = "late"
QUARTERS = "quarters"
CONTRAST = "late minus middle"
DEPTH, DEPTH_AT_EQUAL = "depth", "depth at equal displacement"
MOVED, MOVED_AT_EQUAL = "displacement", "displacement at equal depth"
"""Slopes over the blocks in the order of the model, or of how far the edit moves the stream."""

_KEY = ("column", "intervention", "blocks")

_Floats = NDArray[np.float64]


def evidence(models: Iterable[ModelTables]) -> pl.DataFrame:
    """The evidence of a study.

    Returns:
        A frame of schema `EVIDENCE`.
    """
    return gathered(evidence_of(model) for model in models)


def gathered(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """The evidence of several models in one table; see `evidence_of`.

    Models of one recipe are all given the name of the first as their recipe.
    """
    rows = pl.concat([tables.empty(EVIDENCE), *parts])
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
        edit, kind, over, block, blocks: as in `EVIDENCE`.
        weights: (V,) of the interventions.
    """

    edit: str
    kind: str
    over: str
    weights: _Floats
    block: int | None = None
    blocks: int | None = None


def evidence_of(model: ModelTables) -> pl.DataFrame:
    """The evidence of one model.

    Returns:
        A frame of schema `EVIDENCE`; `recipe` is the model's key, or its name.
    """
    overs, baseline = list(_overs(model)), model.names.index(BASELINE.name)
    parts = [tables.empty(EVIDENCE)]
    if overs:
        for measure in (*_memory(model), *_abilities(model)):
            parts += _quantities(measure, overs, baseline)
        parts += [*_log_ratios(model, overs, baseline), *_displacements(model, overs)]
    constants = {
        "model": model.name,
        "recipe": model.recipe or model.name,
        "family": model.family,
        "parameters": model.parameters,
        "n_blocks": model.n_blocks,
    }
    told = {name: pl.lit(value) for name, value in constants.items()}
    rows = pl.concat(tables.cast(part.with_columns(**told), EVIDENCE) for part in parts)
    known = rows.filter(pl.col("value").is_finite())
    return known.with_columns(pl.col("stderr").fill_nan(None))


def _overs(model: ModelTables) -> Iterator[_Over]:
    """Of each edit the sets of interventions, as far as the model's table has them."""
    rows = model.interventions.with_row_index("column")
    unit = np.eye(rows.height)
    moved = model.displacement.filter(split="memorized").group_by("intervention")
    moved_by = dict(moved.agg(pl.mean("others")).drop_nulls().iter_rows())
    for [edit], of_edit in rows.drop_nulls("edit").group_by("edit", maintain_order=True):
        edit = str(edit)
        single: dict[int, tuple[str, _Floats]] = {}
        for column, name, [block] in of_edit.filter(group=EACH).select(_KEY).iter_rows():
            single.setdefault(block, (name, unit[column]))
        for block, (name, weights) in single.items():
            yield _Over(edit, "block", name, weights, block, 1)
        mean: dict[str, _Floats] = {}
        for name in ("all", "middle", LATE):
            blocks = views.block_range(model.n_blocks, name)
            if blocks and all(block in single for block in blocks):
                mean[name] = np.mean([single[block][1] for block in blocks], axis=0)
                yield _Over(edit, "range", name, mean[name])
        if {"middle", LATE} <= set(mean):
            yield _Over(edit, "contrast", CONTRAST, mean[LATE] - mean["middle"])
        later = {block: single[block] for block in sorted(single) if block > 0}
        displacements = [moved_by.get(name, math.nan) for name, _ in later.values()]
        for name, slope in _slopes(np.array(displacements)):
            of_blocks = np.stack([weights for _, weights in later.values()], axis=1)
            yield _Over(edit, "slope", name, of_blocks @ slope)
        quarters = of_edit.filter(group=QUARTILE).sort(pl.col("blocks").list.first())
        named = list(quarters.select(_KEY).iter_rows())
        for column, name, blocks in named:
            yield _Over(edit, "quartile", name, unit[column], blocks=len(blocks))
        if len(named) == 4:
            columns = [column for column, _, _ in named]
            yield _Over(edit, "range", QUARTERS, unit[columns].mean(axis=0))
            for column, name, _ in named[:-1]:
                over = f"{named[-1][1]} minus {name}"
                yield _Over(edit, "contrast", over, unit[columns[-1]] - unit[column])
        for column, name, blocks in of_edit.filter(group=RANDOM).select(_KEY).iter_rows():
            yield _Over(edit, "random", name, unit[column], blocks=len(blocks))


def _slopes(displacements: _Floats) -> Iterator[tuple[str, _Floats]]:
    """The weights (B,) of each slope over B blocks, whose displacements (B,) are NaN if unknown."""
    count = len(displacements)
    if count < 3:
        return
    depth = np.linspace(-0.5, 0.5, count)
    slopes = {DEPTH: depth}
    if np.isfinite(displacements).all() and np.ptp(displacements):
        moved = (stats.rankdata(displacements) - (count + 1) / 2) / (count - 1)
        slopes[MOVED] = moved
        if count > 3:
            slopes[DEPTH_AT_EQUAL] = depth - moved * (moved @ depth) / (moved @ moved)
            slopes[MOVED_AT_EQUAL] = moved - depth * (depth @ moved) / (depth @ depth)
    for name, ranks in slopes.items():
        if (size := ranks @ ranks) > GRAIN:
            yield name, ranks / size


def _memory(model: ModelTables) -> Iterator[Measure]:
    """Exact match, whole and of the first tokens, single tokens, and log probability.

    Of memorized samples, from the unmodified model's level on control samples.
    """
    splits = grids(model)
    if "memorized" not in splits:
        return
    memorized, control = splits["memorized"], splits.get("control")
    measured: list[tuple[str, str, int | None]] = [("exact_match", "exact_match", None)]
    if control is not None:  # without the floor, part of these losses would not be memory
        measured += [(metric, metric, None) for metric in (TOKENS, LOG_PROB)]
        *lengths, _ = k_values(memorized.first["suffix_length"][0])
        measured += [(AT_K, "correct_length", k) for k in lengths]
    for metric, column, k in measured:
        floor = error = 0.0
        if control is not None and len(control.groups) > 1:
            unmodified = _values(control, column, k)[:, [control.baseline]]
            [floor], [error] = clustered_errors(unmodified, control.groups)
        yield Measure(
            metric, _values(memorized, column, k), memorized.groups,
            labels={} if k is None else {"k": k}, floor=float(floor),
            floor_error=float(np.nan_to_num(error)), bounded=metric != LOG_PROB,
        )  # fmt: skip


def _values(grid: Grid, column: str, k: int | None) -> _Floats:
    """(N, V) a column, or whether it is at least k."""
    found = grid.values(column)
    return (found if k is None else found >= k).astype(np.float64)


def _abilities(model: ModelTables) -> Iterator[Measure]:
    """The scores, 0 to 1, of every benchmark whose documents are known."""
    if model.benchmarks is None:
        return
    rows = model.benchmarks.filter("higher_is_better")
    chances = rows.select("task", "metric", "chance").unique().sort("task", "metric")
    for task, metric, chance in chances.iter_rows():
        answers = by_document(model, task, metric)
        if answers is not None and ((answers.values >= 0) & (answers.values <= 1)).all():
            yield Measure(metric, answers.values, answers.groups, task, floor=chance or 0.0)


def _quantities(
    measure: Measure, overs: Sequence[_Over], baseline_index: int
) -> Iterator[pl.DataFrame]:
    """The quantities of one measure over each combination of interventions."""
    values, groups, scale = measure.values, measure.groups, float(measure.bounded)
    if measure.task != views.MEMORIZATION:
        scale *= scale_of_categories(groups)
    if len(np.unique(groups)) < 2:
        return
    unmodified = values[:, [baseline_index]]
    [baseline], [error] = clustered_errors(unmodified, groups)
    lead = baseline - measure.floor
    n = effective_number(groups)
    if lead <= reach(float(np.hypot(error, measure.floor_error)), n, scale, LEVEL):
        return  # nothing to lose
    weights = _weights(overs)
    mixed, total = values @ weights, weights.sum(axis=0)
    span = weights.clip(0).sum(axis=0)  # 1, but for a slope
    above = mixed - measure.floor * total
    kept = above.mean(axis=0) / lead
    _, errors = clustered_errors((above - kept * (unmodified - measure.floor)) / lead, groups)
    errors = np.hypot(errors, (kept - total) / lead * measure.floor_error)
    least, most = np.where(total > 0.5, [[-measure.floor], [1 - measure.floor]], [-span, span])
    limits = (least / lead, most / lead) if measure.bounded else (None, None)
    yield _frame(measure, "kept", overs, kept, errors, scale * span / lead, limits)
    if measure.task != views.MEMORIZATION:
        difference, errors = clustered_errors(mixed - unmodified * total, groups)
        limits = -span, span
        yield _frame(measure, "difference", overs, difference, errors, scale * span, limits)


def _log_ratios(
    model: ModelTables, overs: Sequence[_Over], baseline_index: int
) -> Iterator[pl.DataFrame]:
    """The log ratios of word perplexities; those of averages are averages of the logarithms."""
    if model.benchmarks is None:
        return
    weights = _weights(overs)
    for task in model.benchmarks.filter(metric=views.WORD_PERPLEXITY)["task"].unique().sort():
        likelihoods = by_document(model, task, views.WORD_PERPLEXITY)
        if likelihoods is None or likelihoods.link is not perplexity:
            continue
        values, sizes, groups, _ = likelihoods
        change = values @ weights - values[:, [baseline_index]] * weights.sum(axis=0)
        ratio, errors = clustered_errors(-change, groups, sizes)
        measure = Measure(views.WORD_PERPLEXITY, values, groups, task)
        # long texts count for more
        yield _frame(measure, "log_ratio", overs, ratio, errors, sizes=sizes)


def _displacements(model: ModelTables, overs: Sequence[_Over]) -> Iterator[pl.DataFrame]:
    """Displacement and attention_change under each edit of one block.

    The latter is of control samples, which are ordinary text.
    """
    single = {over.over: over for over in overs if over.kind == "block"}
    columns = {"intervention": list(single), "block": [over.block for over in single.values()]}
    blocks = pl.DataFrame(columns, schema={"intervention": pl.String, "block": pl.UInt16})
    blocks = blocks.sort("block", maintain_order=True)
    moved = model.displacement.filter(split="memorized").drop("block")
    ordinary = model.attention_change.filter(split="control")
    for quantity, key, rows in (
        (DISPLACEMENT, "intervention", moved),
        (ATTENTION_CHANGE, "block", ordinary),
    ):
        grid = grid_of(model, blocks.join(rows, on=key, maintain_order="left"), "others")
        if grid is None or len(grid.groups) < 2:
            continue
        measure = Measure(quantity, _values(grid, "others", None), grid.groups)
        mean, error = clustered_errors(measure.values, measure.groups)
        of = [single[name] for name in grid.names]
        yield _frame(measure, quantity, of, mean, error, limits=(0.0, None))


def _weights(overs: Sequence[_Over]) -> _Floats:
    """(V, C) the combinations of interventions."""
    return np.stack([over.weights for over in overs], axis=1)


def _frame(
    measure: Measure,
    quantity: str,
    overs: Sequence[_Over],
    value: _Floats,
    stderr: _Floats,
    scale: float | _Floats = 0.0,
    limits: tuple[_Floats | float | None, _Floats | None] = (None, None),
    sizes: _Floats | None = None,
) -> pl.DataFrame:
    """The rows of one quantity.

    Args:
        measure: of N samples or documents.
        quantity: as in `EVIDENCE`.
        overs: the C combinations of interventions.
        value: (C,) the estimates.
        stderr: (C,) their errors.
        scale: of `reach`.
        limits: the least and the largest value possible; None: no limit.
        sizes: (N,) of the documents, where they count by these.
    """
    names = ("edit", "kind", "over", "block", "blocks")
    return pl.DataFrame(
        {
            "task": measure.task,
            "metric": measure.metric,
            "k": None,
            **measure.labels,
            "quantity": quantity,
            **{name: [getattr(over, name) for over in overs] for name in names},
            "value": value,
            "stderr": stderr,
            "n": len(measure.values),
            "n_effective": effective_number(measure.groups, sizes),
            "scale": scale,
            "least": limits[0],
            "most": limits[1],
        }
    )
