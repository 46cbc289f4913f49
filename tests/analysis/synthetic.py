"""Plausible tables of four models that were never trained: two families, two scales each.

A story says what a bypass does; the tables follow from it and a seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from pipeline.analysis.measured import ModelTables
from pipeline.interventions.interventions import SWEEP, Group, Intervention, sweep
from pipeline.measure import metrics, schemas
from pipeline.measure.chosen import chosen
from pipeline.measure.listed import as_table
from pipeline.samples.schemas import SAMPLES
from pipeline.workflow import tables

MODELS = {
    "tiny-pythia-8": ("pythia", 8),
    "tiny-pythia-12": ("pythia", 12),
    "tiny-neo-8": ("gpt-neo", 8),
    "tiny-neo-12": ("gpt-neo", 12),
}
SUFFIX_LENGTHS = {"pythia": 32, "gpt-neo": 16}
COPIES = {0: "control", 1: "exposed", 2: "exposed", 4: "exposed", 8: "exposed", 16: "exposed"} | {
    32: "memorized",
    64: "memorized",
}
# task -> (chance, accuracy of the baseline)
ACCURACIES = {
    "tiny_arc_easy": (0.25, 0.72),
    "tiny_hellaswag": (0.25, 0.65),
    "tiny_lambada_openai": (None, 0.80),
    "tiny_piqa": (0.50, 0.93),
}
LANGUAGE = ("hellaswag", "lambada_openai")
N_DOCUMENTS = 500


@dataclass(frozen=True)
class Story:
    """What bypassing one block leaves, by its depth (0 to 1), as shares of the baseline.

    Args:
        memorization: of exact match.
        benchmarks: of the lead over chance.
        quartiles: of exact match, where more than one block is bypassed, beyond what each leaves.
        small: of exact match, in models of fewer than 12 blocks, beyond the above.
        language: of the lead over chance in language understanding, beyond the above.
    """

    memorization: Callable[[float], float]
    benchmarks: Callable[[float], float]
    quartiles: float = 1.0
    small: float = 1.0
    language: float = 1.0


PAPER = Story(
    lambda depth: 0.02 if depth < 0.25 else 0.4,
    lambda depth: 0.1 if depth < 0.25 else 0.99,
    quartiles=0.0,
)
"""Early blocks collapse both; late ones reduce memorization at little cost; quartiles end it.

Neither size nor the kind of task makes a difference.
"""

NOTHING = Story(lambda depth: 1.0, lambda depth: 1.0)
"""No bypass does anything."""

OPPOSITE = Story(lambda depth: 1.0, lambda depth: 0.1)
"""Every bypass harms the benchmarks and leaves memorization whole."""


@dataclass(frozen=True)
class Study:
    """What a study leaves on the disk, as frames."""

    models: Sequence[ModelTables]
    manifests: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def write(self, data: Path) -> list[tuple[str, str]]:
        """Write every table and manifest below `data`; (name, family) of each model."""
        for model in self.models:
            name = model.name
            for path, frame, schema in (
                (f"interventions/{name}", model.interventions, schemas.INTERVENTIONS),
                (f"samples/{model.family}", model.samples, SAMPLES),
                (f"memorization/{name}", model.memorization, metrics.MEMORIZATION),
                (f"tokens/{name}", model.tokens, schemas.TOKENS),
                (f"displacement/{name}", model.displacement, schemas.DISPLACEMENT),
                (
                    f"displacement/{name}.attention",
                    model.attention_change,
                    schemas.ATTENTION_CHANGE,
                ),
                (f"benchmarks/{name}", model.benchmarks, schemas.BENCHMARKS),
                (f"benchmarks/{name}.documents", model.documents, schemas.BENCHMARK_DOCUMENTS),
            ):
                tables.write(frame, data / f"{path}.parquet", schema, {})
            manifest = data / "checkpoints" / model.name / "manifest.json"
            manifest.parent.mkdir(parents=True)
            manifest.write_text(json.dumps(self.manifests[model.name]), encoding="utf-8")
        return [(model.name, model.family) for model in self.models]


def study(
    story: Story = PAPER,
    models: Mapping[str, tuple[str, int]] = MODELS,
    accuracies: Mapping[str, tuple[float | None, float]] = ACCURACIES,
    per_copies: int = 64,
    groups: Sequence[Group] = SWEEP,
) -> Study:
    """A whole study.

    Args:
        story: what a bypass does.
        models: name -> (family, n_blocks).
        accuracies: task -> (chance, the baseline's accuracy).
        per_copies: samples for each number of copies.
        groups: of interventions.
    """
    samples = {family: _samples(family, per_copies) for family, _ in models.values()}
    return Study(
        [
            _model(name, family, n_blocks, samples[family], story, accuracies, seed, groups)
            for seed, (name, (family, n_blocks)) in enumerate(models.items())
        ],
        {name: _manifest(name, *each) for name, each in models.items()},
    )


def _manifest(name: str, family: str, n_blocks: int) -> dict[str, object]:
    return {
        "name": name,
        "family": family,
        "n_blocks": n_blocks,
        "width": _width(n_blocks),
        "n_heads": 4,
        "context": 64,
        "vocabulary": 640,
        "parameters": _parameters(n_blocks),
        "dtype": "float32",
        "seed": 0,
        "files": {"model.safetensors": "0" * 64},
        "origin": {"recipe": {}},
    }


def _width(n_blocks: int) -> int:
    return 48 if n_blocks == 8 else 64


def _parameters(n_blocks: int) -> int:
    return 12 * _width(n_blocks) ** 2 * n_blocks + 2 * 640 * _width(n_blocks)


def _samples(family: str, per_copies: int) -> pl.DataFrame:
    suffix_length = SUFFIX_LENGTHS.get(family, 8)
    random = np.random.default_rng(7)
    copies = np.repeat(list(COPIES), per_copies)
    n = len(copies)
    return pl.DataFrame(
        {
            "sample_id": np.arange(n, dtype=np.uint32),
            "split": [COPIES[c] for c in copies],
            "tokens": random.integers(640, size=(n, 64)).tolist(),
            "prefix_length": np.full(n, 64 - suffix_length, dtype=np.uint16),
            "suffix_length": np.full(n, suffix_length, dtype=np.uint16),
            # every eighth sample shares its suffix with the one before it
            "suffix_group": (np.arange(n) - (np.arange(n) % 8 == 7)).astype(np.uint32),
            "copies": copies.astype(np.uint32),
        },
        schema_overrides={"tokens": pl.List(pl.UInt32)},
    )


def _model(
    name: str,
    family: str,
    n_blocks: int,
    samples: pl.DataFrame,
    story: Story,
    accuracies: Mapping[str, tuple[float | None, float]],
    seed: int,
    groups: Sequence[Group],
) -> ModelTables:
    random = np.random.default_rng(seed)
    parts, benchmarks, documents = [], [], []
    interventions = sweep(n_blocks, groups, 2)
    # the same under every intervention, so that one that leaves a score changes few answers
    answers = {task: random.random(N_DOCUMENTS) for task in accuracies}
    for intervention in interventions:
        shares = [
            (story.memorization(b / n_blocks), story.benchmarks(b / n_blocks))
            for b in intervention.blocks
        ]
        memorized, able = np.prod(shares, axis=0) if shares else (1.0, 1.0)
        language = able
        if shares:
            memorized *= story.quartiles if len(shares) > 1 else 1.0
            memorized *= story.small if n_blocks < 12 else 1.0
            language *= story.language
        parts.append(_memorization(intervention, samples, memorized, random))
        able_at = {t: language if t.endswith(LANGUAGE) else able for t in accuracies}
        rows, cases = _benchmarks(intervention, able_at, able, accuracies, answers, random)
        benchmarks += rows
        documents.append(cases)
    memorization = pl.concat(parts)
    some = chosen(samples)
    return ModelTables(
        name,
        family,
        n_blocks,
        as_table(interventions),
        samples,
        memorization,
        pl.DataFrame(benchmarks, schema=tables.dtypes(schemas.BENCHMARKS), orient="row"),
        pl.concat(documents),
        _parameters(n_blocks),
        None,
        _tokens(memorization, some),
        *_displacement(interventions, n_blocks, some),
    )


def _tokens(memorization: pl.DataFrame, some: pl.DataFrame) -> pl.DataFrame:
    """Of some samples; a token is right where that of the continuation is."""
    true = some.select("sample_id", token=pl.col("tokens").list.tail(pl.col("suffix_length")))
    rows = memorization.select("intervention", "sample_id", "split", greedy="continuation")
    rows = rows.join(true, on="sample_id", maintain_order="left_right").with_columns(
        position=pl.int_ranges(pl.col("token").list.len())
    )
    right = pl.col("greedy") == pl.col("token")
    return (
        rows.explode("greedy", "token", "position")
        .with_columns(
            shown=pl.lit(None),
            log_prob=pl.when(right).then(-0.1).otherwise(-3.0),
            rank=pl.when(right).then(1).otherwise(2),
            entropy=pl.lit(0.5),
            margin=pl.lit(1.0),
        )
        .select(pl.col(name).cast(column.dtype) for name, column in schemas.TOKENS.items())
    )


def _displacement(
    interventions: Sequence[Intervention], n_blocks: int, some: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Early blocks move the stream further; attention adds less to it with depth."""
    last = [max(each.blocks, default=None) for each in interventions]
    moved = pl.DataFrame(
        {
            "intervention": [each.name for each in interventions],
            "block": last,
            "others": [0.0 if block is None else 1 / (1 + block) for block in last],
        }
    )
    blocks = pl.DataFrame({"block": range(n_blocks)}).with_columns(
        others=0.1 / (1 + pl.col("block"))
    )
    wide, narrow = (
        each.join(some.select("sample_id", "split"), how="cross", maintain_order="left_right")
        .with_columns(pl.col("others") * (1 + 0.01 * (pl.col("sample_id") % 3)), first=pl.lit(0.0))
        .select(pl.col(name).cast(column.dtype) for name, column in schema.items())
        for each, schema in ((moved, schemas.DISPLACEMENT), (blocks, schemas.ATTENTION_CHANGE))
    )
    return wide, narrow


def _memorization(
    intervention: Intervention, samples: pl.DataFrame, share: float, random: np.random.Generator
) -> pl.DataFrame:
    """Each token is right with the chance that makes the whole suffix right as often as told."""
    length = samples["suffix_length"][0]
    copies = samples["copies"].to_numpy().astype(float)
    exact = np.clip(share * 0.99 / (1 + (9 / (copies + 1e-9)) ** 2.5), 1e-6, 0.9999)
    each = exact ** (1 / length)
    right = random.random((len(copies), length)) < each[:, None]
    suffix = np.array(samples["tokens"].list.tail(length).to_list())
    continuation = np.where(right, suffix, (suffix + 1) % 640)
    entropy = length * (0.1 + 1.2 * (1 - each)) + random.random(len(copies))
    log_prob = np.broadcast_to((np.log(each) - 0.1 / length)[:, None], right.shape)
    made = metrics.Completed(
        suffix,
        continuation[None],
        continuation[None],
        np.broadcast_to(entropy[:, None] / length, right.shape)[None],
        log_prob[None],
        log_prob[None],
        np.where(right, 1, 2)[None],
        np.ones(right.shape)[None],
    )
    measured = {
        # BLEU takes longer than all else
        each.name: right.all(axis=1) if each.name == "bleu" else each.function(made)[0]
        for each in metrics.METRICS
    }
    rows = pl.DataFrame(
        {
            "intervention": [intervention.name] * len(copies),
            "sample_id": samples["sample_id"],
            "split": samples["split"],
            **measured,
            "min_margin": random.random(len(copies)),
            "continuation": continuation.tolist(),
            "decoded": True,
        }
    )
    return rows.with_columns(metrics.unknown(pl.lit(True))).select(
        pl.col(name).cast(column.dtype) for name, column in metrics.MEMORIZATION.items()
    )


def _benchmarks(
    intervention: Intervention,
    shares: Mapping[str, float],
    share: float,
    accuracies: Mapping[str, tuple[float | None, float]],
    answers: Mapping[str, np.ndarray],
    random: np.random.Generator,
) -> tuple[list[tuple[object, ...]], pl.DataFrame]:
    rows: list[tuple[object, ...]] = []
    cases = []
    for task, (chance, baseline) in accuracies.items():
        floor = chance or 0.0
        right = answers[task] < floor + shares[task] * (baseline - floor)
        value = float(right.mean())
        stderr = float(right.std(ddof=1) / np.sqrt(N_DOCUMENTS))
        rows.append((intervention.name, task, "acc", value, stderr, N_DOCUMENTS, True, chance))
        of = {"intervention": intervention.name, "task": task, "doc_id": range(N_DOCUMENTS)}
        answered = {"category": None, "metric": "acc", "value": right}
        cases.append(tables.cast(pl.DataFrame({**of, **answered}), schemas.BENCHMARK_DOCUMENTS))
    perplexity = 8.0 * 40 ** (1 - max(share, 0)) * (1 + 0.02 * random.random())
    rows.append(
        (intervention.name, "tiny_wikitext", "word_perplexity", perplexity, None, 60, False, None)
    )
    return rows, pl.concat(cases)
