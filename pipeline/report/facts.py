"""The page's tables: the study's size, its models and benchmarks, and how it was made."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.estimates import Estimate, Measured, measured_models
from pipeline.analysis.evidence import LATE, SECOND_HALF
from pipeline.analysis.manifests import recipe_key
from pipeline.analysis.statistics import LEVEL
from pipeline.analysis.text import MISSING, number, percent, percent_interval, plural
from pipeline.interventions.interventions import BASELINE
from pipeline.report.browser import Family
from pipeline.report.claims import Finding
from pipeline.samples.schemas import SPLITS

# of a checkpoint's manifest: key -> heading in the table of models
_SIZE = {"family": "family", "n_blocks": "blocks", "parameters": "parameters"}

# key of a stage's sidecar -> heading in the table of resources
_TOOK = {
    "wall_seconds": "wall, s",
    "cpu_seconds": "CPU, s",
    "peak_memory_mib": "memory, MiB",
    "device": "device",
    "processor": "processor",
    "python": "Python",
}

# (metric, quantity) of the evidence -> heading in the table of retention
_MEMORY = {
    ("exact_match", "kept"): "exact match, all samples",
    ("exact_match", "retained"): "exact match, recited samples",
    (SECOND_HALF, "kept"): "second half, of first halves recited",
}

RUN_HEADING = ("stage", *_TOOK.values(), "events")
"""The heading of the table whose rows `runs` gives."""

# entries of the provenance that the page shows elsewhere, or that are only in the file
_ELSEWHERE = ("study", "commands", "models", "tables", "citation", "runs")


def overview(
    summary: pl.DataFrame, manifests: Sequence[Mapping[str, object]], samples: Sequence[Family]
) -> list[tuple[str, str]]:
    """What the study consists of: (what, how much)."""
    completed = summary.filter(metric="exact_match", intervention="baseline")
    counts = [
        f"{_counts(completed.filter(split=split)['n'])} {split}"
        for split in SPLITS
        if completed.filter(split=split).height
    ]
    tasks = views.tasks(views.benchmarks(summary))
    return [
        ("Models", plural(len(manifests), "model")),
        ("Training seeds", seeds(seed_counts(manifests))),
        ("Interventions", _interventions(summary)),
        ("Samples per model", ", ".join(counts) or MISSING),
        *_decoded(summary),
        (
            "Prefix and suffix",
            "; ".join(
                f"{family.name} {prefix} and {suffix} tokens"
                for family in samples
                for prefix, suffix in [family.samples[0].lengths]
            )
            or MISSING,
        ),
        ("Benchmarks", ", ".join(tasks) or "none"),
    ]


def models(
    summary: pl.DataFrame, manifests: Sequence[Mapping[str, object]], evidence: pl.DataFrame
) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of the table of models."""
    whole = views.baseline(summary)
    famous = ["famous"] if "famous" in whole["split"] else []
    splits = ["memorized", "control", *famous]
    independent = evidence.filter(metric="exact_match", quantity="kept").select(
        "model", "n_effective"
    )
    effective = dict(independent.iter_rows())
    rows = []
    for manifest in manifests:
        name = str(manifest["name"])
        estimates = [
            views.memorization(whole, "exact_match", split).filter(model=name) for split in splits
        ]
        rows.append(
            [
                name,
                *(_plain(manifest.get(word)) for word in _SIZE),
                *(_estimate(each) for each in estimates),
                number(effective.get(name)),
                *(_interval(left) for left in _late(evidence.filter(model=name, over=LATE))),
            ]
        )
    heading = [
        "model",
        *_SIZE.values(),
        *(f"exact match, {split}" for split in splits),
        "independent samples, memorized",
        "a late block keeps, exact match",
        "a late block keeps, benchmarks",
    ]
    return heading, rows


def _late(rows: pl.DataFrame) -> tuple[Estimate | None, Estimate | None]:
    """Shares kept of exact match and of the benchmarks, averaged over the single late blocks."""
    if not rows.height:
        return None, None
    model = Measured(rows)
    memory, ability = (
        model.estimate(terms, LEVEL) if model.has(terms) else None
        for terms in (model.memory(LATE), model.abilities(LATE))
    )
    return memory, ability


def retention(evidence: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of the table of what a bypass of one late block leaves.

    It compares all samples and documents with those that the baseline gets right.
    Each cell is the mean over the single late blocks, with its 95% interval; see `evidence` for the
    quantities. Memory loss minus ability loss is by acc, where the baseline is right.
    """
    late = evidence.filter(over=LATE)
    models = measured_models(late)
    tasks = sorted({task for model in models for task in model.metrics})
    rows = []
    for model in models:
        memory = [
            model.estimate(model.memory(LATE, quantity, metric), LEVEL)
            for metric, quantity in _MEMORY
        ]
        ability = [
            model.estimate(model.ability(task, LATE, quantity), LEVEL)
            for task in tasks
            for quantity in ("kept", "retained")
        ]
        gap = model.estimate(model.gap(LATE), LEVEL) if model.has(model.gap(LATE)) else None
        seeds = f" ({plural(len(model.seeds), 'seed')})" if len(model.seeds) > 1 else ""
        rows.append([model.name + seeds, *map(_interval, (gap, *memory, *ability))])
    headings = [f"{task}, {of}" for task in tasks for of in ("all documents", "answered correctly")]
    return ["model", "memory loss minus ability loss", *_MEMORY.values(), *headings], rows


def intervals(judged: Sequence[Finding]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of the table of what the verdicts were read off: an interval a row.

    Args:
        judged: as `claims.findings` gives them.
    """
    rows = []
    for finding in judged:
        for condition in finding.conditions:
            row = condition.row
            what = f"{condition.label} ({row['part']})" if row["part"] else condition.label
            where, value = f"{row['model']}, {row['unit']}", condition.write(condition.value)
            rows.append(
                [finding.title, where, what, value, condition.interval, str(row["verdict"])]
            )
    return ["claim", "where", "condition", "estimate", "interval", "verdict"], rows


def _interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return MISSING
    ends = [each if math.isfinite(each) else None for each in (estimate.low, estimate.high)]
    return percent_interval(estimate.value, *ends)


def benchmarks(
    summary: pl.DataFrame, blind: Mapping[str, Mapping[str, float]]
) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of the table of benchmarks: the score of guessing and of each model."""
    whole = views.benchmarks(views.baseline(summary))
    models = [name for name, _ in views.models(summary)]
    rows = []
    for task in views.tasks(whole):
        of_task = whole.filter(task=task)
        metric, chance, upwards = of_task.select("metric", "chance", "higher_is_better").row(0)
        shown = percent if upwards else number
        best = max if upwards else min
        blindly = best(blind[task].values()) if task in blind else None
        estimates = [of_task.filter(model=model) for model in models]
        rows.append(
            [
                f"{task}, {metric}",
                shown(chance),
                *([shown(blindly)] if blind else []),
                *(_estimate(each) if upwards else _level(each) for each in estimates),
            ]
        )
    heading = ["benchmark", "chance", *(["best without attention"] if blind else []), *models]
    return heading, rows


def runs(runs: object) -> list[list[str]]:
    """A row for each run of a stage: time, memory, device and events."""
    if not isinstance(runs, Mapping):
        return []
    return [
        [
            f"{stage}, {name}",
            *(_plain(took.get(key)) for key in _TOOK),
            "; ".join(f"{key} {_plain(value)}" for key, value in events.items() if value),
        ]
        for stage, by_name in runs.items()
        for name, took in by_name.items()
        if isinstance(events := took.get("events") or {}, Mapping)
    ]


def provenance(provenance: Mapping[str, object]) -> list[tuple[str, list[tuple[str, str]], str]]:
    """(heading, rows of a table, text) for each entry that has its own heading."""
    entries = []
    for heading, value in provenance.items():
        if heading in _ELSEWHERE or value is None:
            continue
        if heading == "git" and isinstance(value, Mapping):
            value = _git_rows(value)
        flat = isinstance(value, Mapping) and not any(
            isinstance(v, Mapping | list | tuple) for v in value.values()
        )
        rows = [(str(k), _plain(v)) for k, v in value.items()] if flat else []  # type: ignore[attr-defined]
        text = "" if flat else lines(value)
        entries.append((heading, rows, text))
    return entries


def _git_rows(git: Mapping[str, object]) -> dict[str, object]:
    changed = git.get("changed") or []
    assert isinstance(changed, Sequence)  # noqa: S101
    named = ", ".join(str(each) for each in changed[:5])
    more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
    return {
        "commit": git.get("commit"),
        "remote": git.get("remote") or None,
        "differs from it": f"yes: {named}{more}" if git.get("dirty") else "no",
    }


def data_table(frame: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of the numbers behind a figure, without columns that are empty."""
    filled = [column for column in frame.columns if frame[column].null_count() < frame.height]
    rows = frame.select(filled).rows()
    return filled, [[_plain(value) for value in row] for row in rows]


def seed_counts(manifests: Sequence[Mapping[str, object]]) -> list[int]:
    """How many seeds each recipe was trained with, see `manifests.recipe_key`.

    Models that were not trained here have no seeds.
    """
    seeds: dict[str, set[str]] = {}
    for manifest in manifests:
        if (key := recipe_key(manifest)) is not None:
            seeds.setdefault(key, set()).add(str(manifest.get("seed")))
    return [len(each) for each in seeds.values()]


def seeds(counts: Sequence[int]) -> str:
    """The numbers of `seed_counts` in words."""
    if not counts:
        return "one checkpoint of each model"
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low if low == high else f'{low} to {high}'} for each configuration"


def seeds_short(counts: Sequence[int]) -> str:
    """The same in fewer words."""
    if not counts:
        return "one checkpoint each"
    low, high = min(counts), max(counts)
    return f"{plural(high, 'seed')} each" if low == high else f"{low} to {high} seeds each"


def largest(manifests: Sequence[Mapping[str, object]]) -> str:
    """The number of parameters of the largest model."""
    known = [m["parameters"] for m in manifests if isinstance(m.get("parameters"), int)]
    return f"{max(known):,}" if known else "an unknown number of"  # type: ignore[type-var]


def _interventions(summary: pl.DataFrame) -> str:
    counts = summary.group_by("model").agg(pl.col("intervention").n_unique())["intervention"]
    kinds = [BASELINE.name]
    if summary.filter(views.ONE_BLOCK).height:
        kinds.append("each block alone")
    if summary.filter(views.ONE_QUARTILE).height:
        kinds.append("each quarter of the blocks")
    others = summary.filter(~(views.ONE_BLOCK | views.ONE_QUARTILE), pl.col("edit").is_not_null())
    kinds += [
        f"{edit} of {group}"
        for group, edit in others.select("group", "edit").unique(maintain_order=True).iter_rows()
    ]
    return f"{_counts(counts)} per model: {', '.join(kinds)}"


def _decoded(summary: pl.DataFrame) -> list[tuple[str, str]]:
    """A row that says how many continuations were decoded to the end, unless all were."""
    whole = views.baseline(summary)
    counts = []
    for split in SPLITS:
        every, decoded = (
            views.memorization(whole, metric, split)["n"]
            for metric in ("exact_match", "token_accuracy")
        )
        if every.sum() != decoded.sum():
            counts.append(f"{_counts(decoded) if len(decoded) else 'no'} {split}")
    return [("Continuations decoded to the end", ", ".join(counts) + " samples")] if counts else []


def _counts(column: pl.Series) -> str:
    low, high = min(column), max(column)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _level(row: pl.DataFrame) -> str:
    """A number with its interval if it has one, from a frame of one row or none."""
    if not row.height:
        return MISSING
    value, low, high = row.select("value", "low", "high").row(0)
    return number(value) + (f" [{number(low)}, {number(high)}]" if low is not None else "")


def _estimate(row: pl.DataFrame) -> str:
    """A rate with its interval, from a frame of one row or none."""
    if not row.height:
        return MISSING
    return percent_interval(row["value"][0], row["low"][0], row["high"][0])


def _plain(value: object) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def lines(value: object) -> str:
    """As text: JSON with a line for each entry, or the text itself."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
