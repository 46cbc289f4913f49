"""How often verdicts are wrong on simulated tables whose truth is known.

    OMP_NUM_THREADS=1 python -m tests.analysis.verdict_errors --runs 1000

simulates each world so often and prints, for each claim, the share of runs in which any of its
conditions was judged wrongly, and how often the models' verdicts were decided. In the world
``threshold`` every deviation from *undecided* at a threshold counts as wrong, to either side.

Two models, one with ten times the parameters of the other; 8 blocks; 100 memorized samples, of
which some share their suffix; four benchmarks of 300 documents; 60 documents of perplexity.
Outcomes under different interventions are correlated. The truth comes from the same rules on the
parameters of the world, written as evidence without error.

Of 1,000 runs with the seed 0, the largest share with a wrong verdict was 0.052, of the claim on
perplexity at its threshold, whose rate is 0.049 (four independent intervals at 98.75%; the share's
own standard error is 0.007); of the other claims at their thresholds 0.031, of size, reasoning,
quarters and gains 0, because their intervals are wider than they need be.
"""

import argparse
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.evidence import evidence_of, gathered
from pipeline.analysis.measured import ModelTables
from pipeline.analysis.statistics import (
    clustered_means,
    clustered_rates,
    paired_differences,
    scale_of_categories,
)
from pipeline.analysis.verdicts import MAIN, UNDECIDED
from pipeline.analysis.verdicts import verdicts as frame_of_verdicts
from pipeline.analysis.views import block_range
from pipeline.interventions.interventions import SWEEP, sweep
from pipeline.measure.listed import as_table

BLOCKS, SAMPLES, CONTROLS, DOCUMENTS, TEXTS, SUFFIX = 8, 100, 60, 300, 60, 32
TASKS = {  # task -> chance, accuracy of the baseline
    "piqa": (0.5, 0.85),
    "arc_easy": (0.25, 0.8),
    "hellaswag": (0.25, 0.8),
    "lambada_openai": (None, 0.8),
}
LANGUAGE = ("hellaswag", "lambada_openai")
FLOOR = 0.2  # share of tokens right on control samples
SIZES = {"small": 1_000_000, "large": 10_000_000}

_Floats = NDArray[np.float64]
_Shares = tuple[float, ...]


@dataclass(frozen=True)
class World:
    """What is left of the baseline under each bypass, as shares; (8,) by block, (4,) by quarter."""

    memory: _Shares  # of exact match, in the small model
    more: float  # what the large model keeps more of it in the middle blocks
    ability: _Shares  # of the benchmarks' lead over chance
    language: _Shares  # how much less of it in language understanding, and more in reasoning
    stay: float  # in blocks where the score does not change, of the documents answered correctly
    tokens: float  # of what exact match loses, single tokens lose so much
    growth: _Shares  # ratio of perplexity to the baseline's
    quarter_memory: _Shares  # of exact match
    quarter_ability: _Shares  # of the lead over chance


THRESHOLD = World(
    memory=(0.5, 0.5, 0.8, 0.8, 0.8, 0.8, 0.9, 0.9),
    more=0.05 * 7 / 4,
    ability=(0.5, 0.5, 1.0, 1.0, 1.0, 1.0, 0.9, 0.9),
    language=(0.0, 0.35 / 2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    stay=1.0,
    tokens=0.5,
    growth=(1.5, 1.5, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1),
    quarter_memory=(0.05,) * 4,
    quarter_ability=(0.6,) * 4,
)
"""Everything at its threshold, but for memory loss minus ability loss."""

GAP = replace(
    THRESHOLD,
    memory=(0.5, 0.85, 0.85, 0.85, 0.85, 0.85, 0.85, 0.85),
    more=0.0,
    ability=(0.5, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9),
    language=(0.0,) * 8,
)
"""Memory loss minus ability loss at its threshold, 5 points, and the same in all blocks."""

TRUE = World(
    memory=(0.0, 0.1, 0.6, 0.55, 0.5, 0.45, 0.2, 0.15),
    more=0.3,
    ability=(0.1, 0.2, 0.97, 0.97, 0.97, 0.97, 0.99, 0.99),
    language=(0.0, 0.2, 0.3, 0.3, 0.3, 0.3, 0.0, 0.0),
    stay=0.99,
    tokens=0.1,
    growth=(5.0, 3.0, 1.03, 1.03, 1.03, 1.03, 1.02, 1.02),
    quarter_memory=(0.0,) * 4,
    quarter_ability=(0.1, 0.3, 0.4, 0.9),
)
"""The paper's story."""

FALSE = World(
    memory=(0.95, 0.95, 0.3, 0.4, 0.5, 0.6, 0.97, 0.98),
    more=-0.3,
    ability=(0.9, 0.9, 0.8, 0.8, 0.8, 0.8, 0.4, 0.3),
    language=(0.0, -0.1, -0.2, -0.2, -0.2, -0.2, 0.0, 0.0),
    stay=0.9,
    tokens=1.0,
    growth=(1.1, 1.1, 1.2, 1.2, 1.2, 1.2, 1.5, 1.6),
    quarter_memory=(0.5,) * 4,
    quarter_ability=(0.9, 0.8, 0.8, 0.2),
)
"""The opposite of it."""

WORLDS = {"true": TRUE, "false": FALSE, "threshold": THRESHOLD, "gap at its threshold": GAP}

_TABLE = as_table(sweep(BLOCKS, SWEEP, 0))
_NAMES = _TABLE["intervention"].to_list()


def _left(world: World, model: str) -> dict[str, _Floats]:
    """(13,) what is left of memory, tokens, every task, and the growth, by intervention."""
    middle = block_range(BLOCKS, "middle")
    more = world.more if model == "large" else 0.0
    memory = tuple(share + more * (block in middle) for block, share in enumerate(world.memory))

    def column(blocks: _Shares, quarters: _Shares) -> _Floats:
        return np.array([1.0, *blocks, *quarters])  # in the order of `_NAMES`

    left = {"memory": column(memory, world.quarter_memory)}
    left["tokens"] = 1 - world.tokens * (1 - left["memory"])
    for task in TASKS:
        sign = -1 if task in LANGUAGE else 1
        shares = tuple(a + sign * d for a, d in zip(world.ability, world.language, strict=True))
        left[task] = column(shares, world.quarter_ability)
    left["growth"] = column(world.growth, (2.0,) * 4)
    return left


def _rates(left: _Floats, chance: float, accuracy: float, world: World) -> tuple[_Floats, _Floats]:
    """(13,) chance of a right answer where the baseline is right, and where it is wrong.

    Of the score's lead over chance `left` is kept. Of the documents answered correctly as much
    stays, but `World.stay` where nothing of the score is lost.
    """
    stay = np.where(left >= 1, world.stay, left)
    stay[0] = 1.0  # the baseline itself
    right = chance + stay * (1 - chance)
    wrong = (chance + left * (accuracy - chance) - accuracy * right) / (1 - accuracy)
    assert ((wrong > -1e-9) & (wrong < 1 + 1e-9)).all()
    return right, np.clip(wrong, 0, 1)


def simulated(world: World, model: str, random: np.random.Generator) -> ModelTables:
    """The tables of one model."""
    left, count = _left(world, model), len(_NAMES)
    # half of the outcomes under an intervention go with the same draw as under the others
    shared, own = random.random((SAMPLES, 1)), random.random((SAMPLES, count))
    draws = np.where(random.random((SAMPLES, count)) < 0.5, shared, own)
    groups = np.arange(SAMPLES)
    groups[1:20:2] -= 1  # ten pairs of near-duplicates, which share their outcomes
    exact = (draws < left["memory"])[groups]
    mean = FLOOR + left["tokens"] * (1 - FLOOR)
    # the chance of a right token varies from sample to sample, around its mean
    spread = random.uniform(-0.5, 0.5, (SAMPLES, 1)) * np.minimum(mean, 1 - mean)
    tokens = (random.binomial(SUFFIX, mean + spread) / SUFFIX)[groups]
    control = random.binomial(SUFFIX, FLOOR, (CONTROLS, count)) / SUFFIX
    whole = np.concatenate([exact, np.zeros((CONTROLS, count), dtype=bool)])
    every = np.arange(SAMPLES + CONTROLS, dtype=np.uint32)
    memorization = _by_intervention(
        "sample_id",
        every,
        exact_match=whole,
        teacher_forced_accuracy=np.concatenate([tokens, control]),
        correct_length=np.where(whole, SUFFIX, 0),
        suffix_log_prob=np.where(whole, -1.0, -50.0),
    )
    memorized = pl.when(pl.col("sample_id") < SAMPLES).then(pl.lit("memorized"))
    memorization = memorization.with_columns(
        split=memorized.otherwise(pl.lit("control")), decoded=True
    )
    samples = pl.DataFrame(
        {
            "sample_id": every,
            "suffix_group": np.concatenate([groups, every[SAMPLES:]]),
            "suffix_length": np.full(len(every), SUFFIX),
            "copies": pl.Series([None] * len(every), dtype=pl.UInt32),
        }
    )
    benchmarks, documents = [], []
    for task, (chance, accuracy) in TASKS.items():
        right, wrong = _rates(left[task], chance or 0.0, accuracy, world)
        baseline = random.random((DOCUMENTS, 1)) < accuracy
        answers = random.random((DOCUMENTS, count)) < np.where(baseline, right, wrong)
        documents.append(_documents(task, "acc", answers.astype(float), np.ones(DOCUMENTS)))
        benchmarks.append(_scores(task, "acc", answers.mean(axis=0), chance))
    words = random.integers(50, 400, TEXTS).astype(float)
    noise = random.normal(size=(TEXTS, count)) * 0.1 * words[:, None]
    noise[:, 0] = 0
    likelihoods = -words[:, None] * (3 + np.log(left["growth"])) + noise
    perplexities = np.exp(-likelihoods.sum(axis=0) / words.sum())
    documents.append(_documents("wikitext", "word_perplexity", likelihoods, words))
    benchmarks.append(_scores("wikitext", "word_perplexity", perplexities, None))
    return ModelTables(
        *(model, "family", BLOCKS, _TABLE, samples, memorization),
        *(pl.concat(benchmarks), pl.concat(documents), SIZES[model]),
    )


def _by_intervention(key: str, ids: NDArray[np.integer], **values: NDArray[Any]) -> pl.DataFrame:
    """Rows of each intervention and id, with these values (N, 13)."""
    columns = {"intervention": np.repeat(_NAMES, len(ids)), key: np.tile(ids, len(_NAMES))}
    return pl.DataFrame(columns | {name: each.T.ravel() for name, each in values.items()})


def _documents(task: str, metric: str, values: _Floats, weights: _Floats) -> pl.DataFrame:
    weight = np.broadcast_to(weights[:, None], values.shape)
    rows = _by_intervention("doc_id", np.arange(len(values)), value=values, weight=weight)
    kind = {"task": pl.lit(task), "metric": pl.lit(metric), "category": pl.lit(None, pl.String)}
    return rows.with_columns(**kind)


def _scores(task: str, metric: str, values: _Floats, chance: float | None) -> pl.DataFrame:
    columns = {"intervention": _NAMES, "task": task, "metric": metric, "value": values}
    return pl.DataFrame(columns).with_columns(
        chance=pl.lit(chance, dtype=pl.Float64), higher_is_better=pl.lit(metric == "acc")
    )


def truth(world: World, model: str, rows: pl.DataFrame) -> pl.DataFrame:
    """The evidence of one model as the world has it, without error, for these rows of it."""
    left = _left(world, model)
    memory = ("exact_match", "exact_match_at_k", "suffix_log_prob")
    values = {(metric, "kept"): left["memory"] for metric in memory}
    values["teacher_forced_accuracy", "kept"] = left["tokens"]
    values["wikitext", "log_ratio"] = np.log(left["growth"])
    for task, (chance, accuracy) in TASKS.items():
        floor = chance or 0.0
        values[task, "kept"] = left[task]
        values[task, "difference"] = (left[task] - 1) * (accuracy - floor)

    def value(row: Mapping[str, str]) -> float:
        name = row["task"] if row["task"] != "memorization" else row["metric"]
        columns = dict(zip(_NAMES, values[name, row["quantity"]], strict=True))
        for part in ("all", "middle", "late"):
            single = [columns[f"block-{block:02d}"] for block in block_range(BLOCKS, part)]
            columns[part] = np.mean(single)
        columns["quarters"] = np.mean([columns[f"quartile-{q}"] for q in range(1, 5)])
        blocks = np.arange(1, BLOCKS)
        line = np.polyfit(blocks, [columns[f"block-{block:02d}"] for block in blocks], 1)
        columns["depth"] = line[0] * np.ptp(blocks)
        first, _, second = row["over"].partition(" minus ")
        return float(columns[first] - (columns[second] if second else 0.0))

    exact = [value(row) for row in rows.iter_rows(named=True)]
    return rows.with_columns(
        pl.Series("value", exact), stderr=pl.lit(1e-9), n_effective=pl.lit(1e12), scale=pl.lit(0.0)
    )


Key = tuple[str, str, str, str]
"""Claim, model, unit, and condition with its part."""


def verdicts(evidence: pl.DataFrame) -> dict[Key, str]:
    """Verdict of every condition of all claims."""
    rows = frame_of_verdicts(evidence).filter(pl.col("condition").is_not_null(), setup=MAIN)
    key = pl.format("{} {}", pl.col("part").fill_null(""), "condition")
    judged = rows.select("claim", "model", "unit", key, "verdict")
    return {row[:4]: row[4] for row in judged.iter_rows()}


def errors(world: World, runs: int) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Simulate a world so often.

    Returns:
        claim -> runs in which any condition was judged wrongly; claim -> conditions decided rightly
        over all runs; claim -> conditions judged over all runs.
    """
    random = np.random.default_rng(0)
    true: dict[Key, str] = {}
    wrong, decided, count = Counter[str](), Counter[str](), Counter[str]()
    for _ in range(runs):
        parts = [evidence_of(simulated(world, model, random)) for model in SIZES]
        if not true:
            pairs = zip(SIZES, parts, strict=True)
            true = verdicts(gathered(truth(world, model, rows) for model, rows in pairs))
        failed = set()
        for key, verdict in verdicts(gathered(parts)).items():
            count[key[0]] += 1
            if verdict != UNDECIDED:
                if verdict == true[key]:
                    decided[key[0]] += 1
                else:
                    failed.add(key[0])
        wrong.update(failed)
    return wrong, decided, count


Drawn = tuple[_Floats, NDArray[np.integer], float]
"""Values of N samples, their groups, and the true mean."""


def _clusters(random: np.random.Generator, sizes: Sequence[int], rate: float) -> Drawn:
    """Truth values; nine of ten samples do as their cluster does."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    together = (random.random(len(sizes)) < rate)[groups]
    alone = random.random(len(groups)) < rate
    outcomes = np.where(random.random(len(groups)) < 0.9, together, alone)
    return outcomes.astype(float), groups, rate


def _categories(random: np.random.Generator, size: int, agreement: float, rate: float) -> Drawn:
    """Each of 24 categories has a rate of its own, from a beta distribution."""
    groups = np.repeat(np.arange(24), size)
    together = (1 - agreement) / agreement
    own = random.beta(rate * together, (1 - rate) * together, size=24)
    return (random.random(len(groups)) < own[groups]).astype(float), groups, rate


def _ceiling(random: np.random.Generator, count: int) -> Drawn:
    """98% of the values are 1, the others anything."""
    low = random.random(count) < 0.02
    return np.where(low, random.random(count), 1.0), np.arange(count), 0.99


def _lognormal(random: np.random.Generator, count: int) -> Drawn:
    return np.exp(random.normal(size=count)), np.arange(count), math.exp(0.5)


def _normal(random: np.random.Generator, sizes: Sequence[int]) -> Drawn:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    shared = random.normal(size=len(sizes))[groups]
    return shared + 0.5 * random.normal(size=len(groups)), groups, 0.0


UNEVEN = [40, *[1] * 88]
SIX = [21, 21, 21, 21, 22, 22]
SIZES_OF_CLUSTERS = {
    "independent": [1] * 128,
    "32 clusters of 4": [4] * 32,
    "uneven clusters": UNEVEN,
    "six clusters": SIX,
}
DRAWS: dict[str, partial[Drawn]] = {
    **{
        f"{name}, rate {rate}": partial(_clusters, sizes=sizes, rate=rate)
        for name, sizes in SIZES_OF_CLUSTERS.items()
        for rate in (0.1, 0.5, 0.95)
    },
    **{
        f"24 categories of {size}, agreement {agreement}, rate {rate}": partial(
            _categories, size=size, agreement=agreement, rate=rate
        )
        for size in (7, 13)
        for agreement in (0.1, 0.3)
        for rate in (0.6, 0.8, 0.95)
    },
    **{f"98% at the ceiling, {count}": partial(_ceiling, count=count) for count in (64, 128)},
    **{f"lognormal, {count}": partial(_lognormal, count=count) for count in (64, 128)},
    "mean of six clusters": partial(_normal, sizes=SIX),
    "mean of uneven clusters": partial(_normal, sizes=UNEVEN),
}


def coverage(name: str, runs: int) -> float:
    """How often the 95% intervals of the summary hold the truth, of what is drawn so."""
    draw, random, held = DRAWS[name], np.random.default_rng(0), 0
    for _ in range(runs):
        values, groups, truth = draw(random)
        if draw.func is _clusters:
            made = clustered_rates(values[:, None].astype(bool), groups)
        elif draw.func is _categories:  # as the lead that is kept is judged, and its difference
            scale = np.array([scale_of_categories(groups)])
            nothing = np.zeros((len(values), 1))
            made = paired_differences(values[:, None], nothing, groups, 0, 1, scale=scale)
        else:
            scale = np.array([float(draw.func is _ceiling)])
            made = clustered_means(values[:, None], groups, scale=scale)
        held += int(made.low[0] - 1e-12 <= truth <= made.high[0] + 1e-12)
    return held / runs


def main() -> None:
    """Print the coverage of the intervals, and the shares of wrong verdicts, world by world."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--world", choices=list(WORLDS), action="append")
    arguments = parser.parse_args()
    print(f"share of {arguments.runs} intervals at 95% that hold the truth")
    for name in DRAWS:
        print(f"  {coverage(name, arguments.runs):6.3f}  {name}", flush=True)
    for name in arguments.world or WORLDS:
        wrong, decided, count = errors(WORLDS[name], arguments.runs)
        print(f"{name}, {arguments.runs} runs: share with a wrong verdict; conditions decided")
        for claim, number in count.items():
            rate, told = wrong[claim] / arguments.runs, decided[claim] / number
            print(f"  {rate:6.3f}  {told:6.1%}  {claim}", flush=True)


if __name__ == "__main__":
    main()
