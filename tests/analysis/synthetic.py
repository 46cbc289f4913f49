"""Plausible tables of four models that were never trained: two families, two scales each.

A story says what a bypass does; the tables follow from it and a seed.
"""

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
from pipeline.theory.columns import DIVERGENCE_BLOCKS, DIVERGENCE_BOUNDS, DIVERGENCE_TRIANGLE
from pipeline.workflow import tables

MODELS = {
    "tiny-pythia-8": ("pythia", 8),
    "tiny-pythia-12": ("pythia", 12),
    "tiny-neo-8": ("gpt-neo", 8),
    "tiny-neo-12": ("gpt-neo", 12),
}
SUFFIX_LENGTHS = {"pythia": 32, "gpt-neo": 16}
COPIES = {0: "control", **dict.fromkeys((1, 2, 4, 8, 16), "exposed")}
COPIES |= {32: "memorized", 64: "memorized"}
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
    """What bypassing one block leaves, by its depth (0 to 1), as shares of the baseline."""

    memorization: Callable[[float], float]  # of exact match
    benchmarks: Callable[[float], float]  # of the lead over chance
    # beyond these two:
    quartiles: float = 1.0  # of exact match, where more than one block is bypassed
    language: float = 1.0  # of the lead over chance in language understanding


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
            name, moved = model.name, f"displacement/{model.name}"
            for path, frame, schema in (
                (f"interventions/{name}", model.interventions, schemas.INTERVENTIONS),
                (f"samples/{model.family}", model.samples, SAMPLES),
                (f"memorization/{name}", model.memorization, metrics.MEMORIZATION),
                (f"tokens/{name}", model.tokens, schemas.TOKENS),
                (moved, model.displacement, schemas.DISPLACEMENT),
                (f"{moved}.attention", model.attention_change, schemas.ATTENTION_CHANGE),
                (f"benchmarks/{name}", model.benchmarks, schemas.BENCHMARKS),
                (f"benchmarks/{name}.documents", model.documents, schemas.BENCHMARK_DOCUMENTS),
            ):
                tables.write(frame, data / f"{path}.parquet", schema, {})
            manifest = data / "checkpoints" / name / "manifest.json"
            manifest.parent.mkdir(parents=True)
            manifest.write_text(json.dumps(self.manifests[name]), encoding="utf-8")
        return [(model.name, model.family) for model in self.models]


def study(
    story: Story = PAPER,
    models: Mapping[str, tuple[str, int]] = MODELS,
    accuracies: Mapping[str, tuple[float | None, float]] = ACCURACIES,
    per_copies: int = 64,
    groups: Sequence[Group] = SWEEP,
) -> Study:
    """A whole study.

    A model is name -> (family, n_blocks), an accuracy task -> (chance, the baseline's accuracy);
    `per_copies` is the samples for each number of copies.
    """
    samples = {family: _samples(family, per_copies) for family, _ in models.values()}
    made = [
        _model(name, family, n_blocks, samples[family], story, accuracies, seed, groups)
        for seed, (name, (family, n_blocks)) in enumerate(models.items())
    ]
    return Study(made, {name: _manifest(name, *each) for name, each in models.items()})


def _sizes(n_blocks: int) -> dict[str, int]:
    width = 48 if n_blocks == 8 else 64
    parameters = 12 * width**2 * n_blocks + 2 * 640 * width
    return {"n_blocks": n_blocks, "width": width, "parameters": parameters}


def _manifest(name: str, family: str, n_blocks: int) -> dict[str, object]:
    of_all = {"n_heads": 4, "context": 64, "vocabulary": 640, "dtype": "float32", "seed": 0}
    more = {"files": {"model.safetensors": "0" * 64}, "origin": {"recipe": {}}}
    return {"name": name, "family": family, **_sizes(n_blocks), **of_all, **more}


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
        depths = [block / n_blocks for block in intervention.blocks]
        memorized, able = (
            np.prod([of_depth(depth) for depth in depths])
            for of_depth in (story.memorization, story.benchmarks)
        )
        language = able
        if depths:
            memorized *= story.quartiles if len(depths) > 1 else 1.0
            language *= story.language
        parts.append(_memorization(intervention, samples, memorized, random))
        for task, (chance, baseline) in accuracies.items():
            floor, share = chance or 0.0, language if task.endswith(LANGUAGE) else able
            right = answers[task] < floor + share * (baseline - floor)
            value, stderr = float(right.mean()), float(right.std(ddof=1) / np.sqrt(N_DOCUMENTS))
            score = ("acc", value, stderr, N_DOCUMENTS, True, chance)
            benchmarks.append((intervention.name, task, *score))
            documents.append(_answered(intervention.name, task, right))
        perplexity = 8.0 * 40 ** (1 - max(able, 0)) * (1 + 0.02 * random.random())
        score = ("word_perplexity", perplexity, None, 60, False, None)
        benchmarks.append((intervention.name, "tiny_wikitext", *score))
    memorization, some = pl.concat(parts), chosen(samples)
    displacement, attention_change = displacement_of(interventions, n_blocks, some)
    return ModelTables(
        *(name, family, n_blocks, as_table(interventions), samples, memorization),
        pl.DataFrame(benchmarks, schema=tables.dtypes(schemas.BENCHMARKS), orient="row"),
        pl.concat(documents),
        _sizes(n_blocks)["parameters"],
        tokens=of_tokens(memorization, some),
        displacement=displacement,
        attention_change=attention_change,
    )


def of_tokens(memorization: pl.DataFrame, some: pl.DataFrame) -> pl.DataFrame:
    """Of some samples; a token is right where that of the continuation is."""
    true = some.select("sample_id", token=pl.col("tokens").list.tail(pl.col("suffix_length")))
    rows = memorization.select("intervention", "sample_id", "split", greedy="continuation")
    rows = rows.join(true, on="sample_id", maintain_order="left_right").with_columns(
        position=pl.int_ranges(pl.col("token").list.len())
    )
    right = pl.when(pl.col("greedy") == pl.col("token"))
    single = rows.explode("greedy", "token", "position").with_columns(
        log_prob=right.then(-0.1).otherwise(-3.0), rank=right.then(1).otherwise(2)
    )
    return tables.cast(single.with_columns(shown=None, entropy=0.5, margin=1.0), schemas.TOKENS)


def displacement_of(
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
    blocks = pl.DataFrame({"block": range(n_blocks)})
    blocks = blocks.with_columns(others=0.1 / (1 + pl.col("block")))
    others = pl.col("others") * (1 + 0.01 * (pl.col("sample_id") % 3))
    wide, narrow = (
        each.join(some.select("sample_id", "split"), how="cross", maintain_order="left_right")
        for each in (moved, blocks)
    )
    return (
        tables.cast(wide.with_columns(others, first=0.0), schemas.DISPLACEMENT),
        tables.cast(narrow.with_columns(others, first=0.0), schemas.ATTENTION_CHANGE),
    )


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
    entropies = np.broadcast_to(entropy[:, None] / length, right.shape)
    parts = (continuation, continuation, entropies, log_prob, log_prob)
    parts += (np.where(right, 1, 2), np.ones(right.shape))
    made = metrics.Completed(suffix, *(part[None] for part in parts))
    measured = {
        # BLEU takes longer than all else
        each.name: right.all(axis=1) if each.name == "bleu" else each.function(made)[0]
        for each in metrics.METRICS
    }
    rows = samples.select("sample_id", "split").with_columns(
        pl.lit(intervention.name).alias("intervention"),
        min_margin=random.random(len(copies)),
        continuation=pl.Series(continuation.tolist()),
        decoded=True,
        **{name: pl.Series(values) for name, values in measured.items()},
    )
    return tables.cast(rows.with_columns(metrics.unknown(pl.lit(True))), metrics.MEMORIZATION)


def _answered(intervention: str, task: str, right: np.ndarray) -> pl.DataFrame:
    of = {"intervention": intervention, "task": task, "doc_id": range(N_DOCUMENTS)}
    answered = {"category": None, "metric": "acc", "value": right}
    return tables.cast(pl.DataFrame({**of, **answered}), schemas.BENCHMARK_DOCUMENTS)


def write_divergence(data: Path, model: str, n_blocks: int, chosen: pl.DataFrame) -> None:
    """Tables of the right size in which nothing is wrong: for other columns a one or a no.

    `chosen` has `sample_id` and `split` of the samples.
    """
    pairs = [(b, after) for b in range(n_blocks) for after in range(b, n_blocks + 1)]
    keys = pl.DataFrame(pairs, schema=["block", "after"], orient="row")
    triangle = chosen.join(keys, how="cross").with_columns(relative=0.1)
    blocks = pl.DataFrame({"block": range(n_blocks)})
    for part, frame, schema in (
        ("", triangle.with_columns(kl=pl.when(after=n_blocks).then(0.5)), DIVERGENCE_TRIANGLE),
        (".bounds", chosen.join(blocks, how="cross"), DIVERGENCE_BOUNDS),
        (".blocks", blocks, DIVERGENCE_BLOCKS),
    ):
        others = {
            name: pl.lit(column.dtype != pl.Boolean)
            for name, column in schema.items()
            if name not in frame.columns
        }
        whole = frame.with_columns(**others).cast(tables.dtypes(schema)).select(*schema)
        tables.write(whole, data / "divergence" / f"{model}{part}.parquet", schema, {})
