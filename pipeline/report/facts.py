"""The page's tables: the study's size, its models and benchmarks, what one late block leaves."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import compress, product
from typing import Any

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.estimates import Measured, Terms, measured_models
from pipeline.analysis.evidence import LATE, LOG_PROB, TOKENS
from pipeline.analysis.manifests import recipe_key
from pipeline.analysis.rows import BY_CATEGORY
from pipeline.analysis.statistics import LEVEL
from pipeline.analysis.text import MISSING
from pipeline.interventions.interventions import BASELINE
from pipeline.measure.metrics import METRICS
from pipeline.report.browser import Family
from pipeline.report.numbers import SHARE, Number, spread, summarized
from pipeline.samples.schemas import SPLITS

Table = tuple[list[str], list[list[Any]]]
"""Heading and rows; a cell is a `Number` or text."""


def overview(
    summary: pl.DataFrame, manifests: Sequence[Mapping[str, object]], samples: Sequence[Family]
) -> dict[str, Any]:
    """What the study consists of.

    Returns:
        ``models``, ``interventions`` (per model): numbers; ``kinds`` of interventions: names;
        ``splits``, ``decoded`` (continuations to the end, unless all are): number and split;
        ``lengths``: family, tokens of prefix and of suffix; ``benchmarks``: names;
        ``parameters``: of the largest model, None where unknown.
    """
    baseline = views.baseline(summary)
    splits, decoded = [], []
    for split in SPLITS:
        every, finished = (
            views.memorization(baseline, metric, split)["n"]
            for metric in ("exact_match", "token_accuracy")
        )
        if len(every):
            splits.append((spread(f"study/samples/{split}", every, "samples"), split))
        if every.sum() != finished.sum():
            decoded.append((spread(f"study/decoded/{split}", finished, "samples"), split))
    interventions = summary.group_by("model").agg(pl.col("intervention").n_unique())
    known = [n for m in manifests if isinstance(n := m.get("parameters"), int)]
    largest = max(known, default=None)
    return {
        "models": Number("study/models", len(manifests), unit="models", table="checkpoints"),
        "interventions": spread("study/interventions", interventions["intervention"], ""),
        "kinds": _kinds(summary),
        "splits": splits,
        "decoded": decoded,
        "lengths": [(family.name, *_lengths(family)) for family in samples],
        "benchmarks": views.tasks(views.benchmarks(summary)),
        "parameters": largest
        and Number("study/parameters", largest, unit="parameters", table="checkpoints"),
    }


def _lengths(family: Family) -> list[Number]:
    table = f"samples/{family.name}"
    parts = zip(("prefix", "suffix"), family.samples[0].lengths, strict=True)
    return [Number(f"{table}/{part}", n, unit="tokens", table=table) for part, n in parts]


def _kinds(summary: pl.DataFrame) -> list[str]:
    kinds = [BASELINE.name]
    if summary.filter(views.ONE_BLOCK).height:
        kinds.append("each block alone")
    if summary.filter(views.ONE_QUARTILE).height:
        kinds.append("each quarter of the blocks")
    others = summary.filter(~(views.ONE_BLOCK | views.ONE_QUARTILE), pl.col("edit").is_not_null())
    pairs = others.select("group", "edit").unique(maintain_order=True).iter_rows()
    return kinds + [f"{edit} of {group}" for group, edit in pairs]


def seeds(manifests: Sequence[Mapping[str, object]]) -> Number | None:
    """How many seeds each recipe was trained with, see `manifests.recipe_key`, as a range.

    None where no model was trained here: other models have no seeds.
    """
    pairs = {(recipe_key(manifest), str(manifest.get("seed"))) for manifest in manifests}
    counts = Counter(recipe for recipe, _ in pairs if recipe is not None)
    return spread("study/seeds", counts.values(), "seeds", "checkpoints") if counts else None


def models(
    summary: pl.DataFrame, manifests: Sequence[Mapping[str, Any]], evidence: pl.DataFrame
) -> Table:
    """Heading and rows of the table of models, without columns that are empty."""
    exact = views.baseline(summary).filter(task=views.MEMORIZATION, metric="exact_match")
    splits = ["memorized", "control", *(["famous"] if "famous" in exact["split"] else [])]
    independent = evidence.filter(metric="exact_match", quantity="kept")
    effective = dict(independent.select("model", "n_effective").iter_rows())
    rows = []
    for manifest in manifests:
        name = str(manifest["name"])
        sizes = [
            Number(f"models/{name}/{key}", manifest.get(key), unit=key, table="checkpoints")
            for key in ("n_blocks", "parameters")
        ]
        rows.append(
            [
                name,
                str(manifest.get("family", MISSING)),
                *sizes,
                *(_one(exact.filter(model=name, split=split)) for split in splits),
                Number(f"models/{name}/effective", effective.get(name), table="evidence"),
                *_late(name, evidence.filter(model=name, over=LATE)),
            ]
        )
    heading = [
        *("model", "family", "blocks", "parameters"),
        *(f"exact match, {split}" for split in splits),
        "independent samples, memorized",
        "a late block keeps, exact match",
        "a late block keeps, benchmarks",
    ]
    if not rows:
        return heading, rows
    unknown = (None, MISSING)
    known = [
        any(getattr(cell, "value", cell) not in unknown for cell in column)
        for column in zip(*rows, strict=True)
    ]
    return list(compress(heading, known)), [list(compress(row, known)) for row in rows]


def _late(name: str, rows: pl.DataFrame) -> list[Any]:
    """Shares kept of exact match and of the benchmarks, averaged over the single late blocks."""
    if not (found := measured_models(rows)):
        return [MISSING, MISSING]
    terms = {"exact_match": found[0].memory(LATE), "benchmarks": found[0].abilities(LATE)}
    return estimates(f"models/{name}/late-block", found[0], terms)


def estimates(place: str, model: Measured, terms: Mapping[str, Terms]) -> list[Number | str]:
    """A cell for each estimate of a model, named by its key; a dash for what was not measured."""
    return [
        Number(f"{place}/{what}", *model.estimate(of, LEVEL), SHARE, "evidence")
        if model.has(of)
        else MISSING
        for what, of in terms.items()
    ]


def retention(evidence: pl.DataFrame) -> Table:
    """Heading and rows of the table of what an edit of one late block leaves, edit by edit.

    Each cell is the mean over the single late blocks, with its 95% interval; see `evidence`.
    """
    rows = []
    late = evidence.filter(over=LATE)
    kept = late.filter(quantity="kept")
    every = sorted(kept.filter(task=views.MEMORIZATION)["k"].drop_nulls().unique())
    tasks = sorted(set(kept["task"]) - {views.MEMORIZATION})
    for edit in late["edit"].unique(maintain_order=True):
        for model in measured_models(late, edit=edit):
            terms = {
                "gap": model.gap(LATE),
                **{f"first {k}": model.memory(LATE, k=k) for k in every},
                "exact_match": model.memory(LATE),
                TOKENS: model.memory(LATE, TOKENS),
                LOG_PROB: model.memory(LATE, LOG_PROB),
                **{task: model.ability(task, LATE) for task in tasks},
            }
            cells = estimates(f"retention/{edit}/{model.name}", model, terms)
            rows.append([model.shown, edit, *cells])
    exact = [f"first {k} token{'s' if k > 1 else ''}" for k in every]
    memory = [*exact, "whole suffix", "teacher-forced accuracy", "log probability"]
    return ["model", "edit", "memory loss minus ability loss", *memory, *tasks], rows


def benchmarks(summary: pl.DataFrame, blind: Mapping[str, Mapping[str, float]]) -> Table:
    """Heading and rows of the table of benchmarks: the score without reading and of each model."""
    baselines = views.benchmarks(views.baseline(summary))
    models = [name for name, _ in views.models(summary)]
    rows = []
    for task in views.tasks(baselines):
        of_task = baselines.filter(task=task)
        metric, chance, upwards = of_task.select("metric", "chance", "higher_is_better").row(0)
        if task in blind and not upwards:
            chance = min(blind[task].values())
        shown = Number(f"benchmarks/{task}/chance", chance, unit=SHARE if upwards else "")
        cells = [_one(of_task.filter(model=model)) for model in models]
        rows.append([f"{task}, {metric}", shown, *cells])
    return ["benchmark", "best without attention" if blind else "chance", *models], rows


def metrics(summary: pl.DataFrame) -> Table:
    """Heading and rows of every metric of memorization: at baseline, and with one block bypassed.

    Those of ``mine/metrics.py`` are among them.
    """
    rows = []
    for metric, split in product(METRICS, SPLITS):
        found = views.memorization(summary, metric.name, split)
        for (model,), of in found.group_by("model", maintain_order=True):
            bypassed = views.single_blocks(of).filter(pl.col("block") > 0)["value"].drop_nulls()
            unit = SHARE if metric.unit == "truth" else metric.unit
            name = f"metrics/{model}/{split}/{metric.name}"
            cells = [_one(views.baseline(of)), spread(name, bypassed, unit)]
            rows.append([metric.name, metric.meaning, metric.unit, model, split, *cells])
    return ["metric", "meaning", "unit", "model", "samples", "baseline", "one block bypassed"], rows


def categories(summary: pl.DataFrame) -> Table:
    """Heading and rows of the accuracies by category: one row for each category of a task."""
    found = summary.filter(metric=BY_CATEGORY)
    models = [name for name, _ in views.models(summary)]
    rows = [
        [task, category, *(_one(of.filter(model=model)) for model in models)]
        for (task, category), of in found.group_by("task", "category", maintain_order=True)
    ]
    return ["benchmark", "category", *models], rows


def _one(row: pl.DataFrame) -> Number | str:
    """The number of a frame of one row of the summary; a dash for none."""
    return summarized(row.row(0, named=True)) if row.height else MISSING


def without_interval(summary: pl.DataFrame) -> list[str]:
    """The benchmarks that come without a standard error, so without an interval."""
    rows = views.benchmarks(views.baseline(summary)).filter(pl.col("low").is_null())
    return sorted(set(rows["task"]))
