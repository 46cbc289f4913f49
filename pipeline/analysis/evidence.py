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
from collections.abc import Iterable, Iterator

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
from pipeline.interventions.interventions import EACH, QUARTILE, RANDOM
from pipeline.workflow import tables
from pipeline.workflow.tables import Schema, float64, string, uint16, uint32, uint64

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

NUMBERS = ("value", "stderr", "n_effective", "scale", "least", "most")
"""The columns from which `interval` follows."""

_Floats = NDArray[np.float64]


def evidence(models: Iterable[ModelTables]) -> pl.DataFrame:
    """The evidence of a study, schema `EVIDENCE`."""
    return gathered(evidence_of(model) for model in models)


def gathered(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """The evidence of several models in one table; see `evidence_of`.

    Models of one recipe are all given the name of the first as their recipe.
    """
    rows = pl.concat([tables.empty(EVIDENCE), *parts])
    return rows.with_columns(recipe=pl.col("model").first().over("recipe"))


def interval(row: tuple[float, ...], level: float) -> tuple[float, float]:
    """The ends of the interval of a row, of its `NUMBERS`; unbounded without a standard error."""
    value, stderr, n, scale, least, most = row
    half_width = reach(math.nan if stderr is None else stderr, n, scale, level)
    low = value - half_width if least is None else max(value - half_width, least)
    high = value + half_width if most is None else min(value + half_width, most)
    return min(low, value), max(high, value)  # rounding may pass a limit


class _Sets:
    """What the evidence of a model is over: C linear combinations of its V interventions.

    Attributes:
        rows: edit, kind, over, block, blocks of each, as in `EVIDENCE`.
        weights: (V, C) of the interventions.
        baseline: the column of the unmodified model, of V.
    """

    def __init__(self, model: ModelTables) -> None:
        found = list(_sets(model))
        columns = dict.fromkeys(("edit", "kind", "over"), pl.String)
        named = pl.DataFrame([names for names, _ in found], columns, orient="row")
        sizes = model.interventions.select(
            over="intervention",
            block=pl.when(group=EACH).then(pl.col("blocks").list.first()),
            blocks=pl.col("blocks").list.len(),
        )
        self.rows = named.join(sizes, on="over", how="left", maintain_order="left")
        self.weights = np.array([weights for _, weights in found]).T.copy()
        self.baseline = model.baseline


def evidence_of(model: ModelTables) -> pl.DataFrame:
    """The evidence of one model, schema `EVIDENCE`; `recipe` is the model's key, or its name."""
    sets, parts = _Sets(model), [tables.empty(EVIDENCE)]
    if sets.rows.height:
        for measure in (*_memory(model), *_abilities(model)):
            parts += _quantities(measure, sets)
        parts += [*_log_ratios(model, sets), *_displacements(model, sets)]
    rows = pl.concat(tables.cast(part.with_columns(**model.constants), EVIDENCE) for part in parts)
    known = rows.filter(pl.col("value").is_finite())
    return known.with_columns(pl.col("stderr").fill_nan(None))


def _sets(model: ModelTables) -> Iterator[tuple[tuple[object, str, str], _Floats]]:
    """Of each edit the sets of interventions, as far as the model's table has them.

    Yields:
        edit, kind and over, and the weights (V,) of the interventions.
    """
    unit = dict(zip(model.names, np.eye(len(model.names)), strict=True))
    moved = model.displacement.filter(split="memorized").group_by("intervention")
    moved_by = dict(moved.agg(pl.mean("others")).drop_nulls().iter_rows())
    rows = model.interventions.with_columns(first=pl.col("blocks").list.first())
    for [edit], of_edit in rows.drop_nulls("edit").group_by("edit", maintain_order=True):
        alone = of_edit.filter(group=EACH).unique("first", keep="first", maintain_order=True)
        single = dict(alone.select("first", "intervention").iter_rows())
        for name in single.values():
            yield (edit, "block", name), unit[name]
        mean: dict[str, _Floats] = {}
        for name in ("all", "middle", LATE):
            blocks = views.block_range(model.n_blocks, name)
            if blocks and set(blocks) <= set(single):
                mean[name] = np.mean([unit[single[block]] for block in blocks], axis=0)
                yield (edit, "range", name), mean[name]
        if {"middle", LATE} <= set(mean):
            yield (edit, "contrast", CONTRAST), mean[LATE] - mean["middle"]
        later = [single[block] for block in sorted(single) if block > 0]
        for name, slope in _slopes(np.array([moved_by.get(each, math.nan) for each in later])):
            of_blocks = np.stack([unit[each] for each in later], axis=1)
            yield (edit, "slope", name), of_blocks @ slope
        quarters = of_edit.filter(group=QUARTILE).sort("first")["intervention"].to_list()
        for name in quarters:
            yield (edit, "quartile", name), unit[name]
        if len(quarters) == 4:
            yield (edit, "range", QUARTERS), np.mean([unit[name] for name in quarters], axis=0)
            *others, last = quarters
            for name in others:
                yield (edit, "contrast", f"{last} minus {name}"), unit[last] - unit[name]
        for name in of_edit.filter(group=RANDOM)["intervention"]:
            yield (edit, "random", name), unit[name]


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
    measured: list[tuple[str, int | None]] = [("exact_match", None)]
    if control is not None:  # without the floor, part of these losses would not be memory
        *lengths, _ = k_values(memorized.first["suffix_length"][0])
        measured += [(TOKENS, None), (LOG_PROB, None), *((AT_K, k) for k in lengths)]
    for metric, k in measured:
        floor = error = 0.0
        if control is not None and len(control.groups) > 1:
            unmodified = _values(control, metric, k)[:, [control.baseline]]
            [floor], [error] = clustered_errors(unmodified, control.groups)
        yield Measure(
            metric,
            _values(memorized, metric, k),
            memorized.groups,
            labels={"k": k},
            floor=float(floor),
            floor_error=float(np.nan_to_num(error)),
            bounded=metric != LOG_PROB,
        )


def _values(grid: Grid, column: str, k: int | None = None) -> _Floats:
    """(N, V) a column, or whether the first k tokens are right."""
    found = grid.values(column) if k is None else grid.values("correct_length") >= k
    return found.astype(np.float64)


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


def _quantities(measure: Measure, sets: _Sets) -> Iterator[pl.DataFrame]:
    """The quantities of one measure over each set of interventions."""
    values, groups, scale = measure.values, measure.groups, float(measure.bounded)
    if measure.task != views.MEMORIZATION:
        scale *= scale_of_categories(groups)
    if len(np.unique(groups)) < 2:
        return
    unmodified = values[:, [sets.baseline]]
    [baseline], [error] = clustered_errors(unmodified, groups)
    lead = baseline - measure.floor
    n = effective_number(groups)
    if lead <= reach(float(np.hypot(error, measure.floor_error)), n, scale, LEVEL):
        return  # nothing to lose
    mixed, total = values @ sets.weights, sets.weights.sum(axis=0)
    span = sets.weights.clip(0).sum(axis=0)  # 1, but for a slope
    above = mixed - measure.floor * total
    kept = above.mean(axis=0) / lead
    _, errors = clustered_errors((above - kept * (unmodified - measure.floor)) / lead, groups)
    errors = np.hypot(errors, (kept - total) / lead * measure.floor_error)
    least, most = np.where(total > 0.5, [[-measure.floor], [1 - measure.floor]], [-span, span])
    limits = {"least": least / lead, "most": most / lead} if measure.bounded else {}
    yield _frame(measure, "kept", sets.rows, kept, errors, scale=scale * span / lead, **limits)
    if measure.task != views.MEMORIZATION:
        difference, errors = clustered_errors(mixed - unmodified * total, groups)
        limits = {"scale": scale * span, "least": -span, "most": span}
        yield _frame(measure, "difference", sets.rows, difference, errors, **limits)


def _log_ratios(model: ModelTables, sets: _Sets) -> Iterator[pl.DataFrame]:
    """The log ratios of word perplexities; those of averages are averages of the logarithms."""
    if model.benchmarks is None:
        return
    for task in model.benchmarks.filter(metric=views.WORD_PERPLEXITY)["task"].unique().sort():
        likelihoods = by_document(model, task, views.WORD_PERPLEXITY)
        if likelihoods is None or likelihoods.link is not perplexity:
            continue
        values, sizes, groups, _ = likelihoods
        unmodified = values[:, [sets.baseline]] * sets.weights.sum(axis=0)
        ratio, errors = clustered_errors(-(values @ sets.weights - unmodified), groups, sizes)
        measure = Measure(views.WORD_PERPLEXITY, values, groups, task)
        # long texts count for more
        yield _frame(measure, "log_ratio", sets.rows, ratio, errors, sizes=sizes)


def _displacements(model: ModelTables, sets: _Sets) -> Iterator[pl.DataFrame]:
    """Displacement and attention_change under each edit of one block.

    The latter is of control samples, which are ordinary text.
    """
    single = sets.rows.filter(kind="block").sort("block", maintain_order=True)
    blocks = single.select("block", intervention="over")
    moved = model.displacement.filter(split="memorized").drop("block")
    ordinary = model.attention_change.filter(split="control")
    for quantity, key, rows in (
        (DISPLACEMENT, "intervention", moved),
        (ATTENTION_CHANGE, "block", ordinary),
    ):
        grid = grid_of(model, blocks.join(rows, on=key, maintain_order="left"), "others")
        if grid is None or len(grid.groups) < 2:
            continue
        measure = Measure(quantity, _values(grid, "others"), grid.groups)
        mean, error = clustered_errors(measure.values, measure.groups)
        of = single.filter(pl.col("over").is_in(grid.names))
        yield _frame(measure, quantity, of, mean, error, least=0.0)


def _frame(
    measure: Measure,
    quantity: str,
    sets: pl.DataFrame,
    value: _Floats,
    stderr: _Floats,
    sizes: _Floats | None = None,
    **limits: _Floats | float,
) -> pl.DataFrame:
    """The rows of one quantity of `EVIDENCE` over C sets, rows of `_Sets`.

    `value` (C,) are the estimates, `stderr` (C,) their errors; `sizes` (N,) those of the documents,
    where they count by these; `limits` have ``scale``, ``least`` and ``most``, where there are any.
    """
    told = {"task": measure.task, "metric": measure.metric, "k": None, **measure.labels}
    counts = {"n": len(measure.values), "n_effective": effective_number(measure.groups, sizes)}
    numbers = {
        "value": value,
        "stderr": stderr,
        "scale": 0.0,
        "least": None,
        "most": None,
        **limits,
    }
    return pl.DataFrame({**sets.to_dict(), **told, "quantity": quantity, **counts, **numbers})
