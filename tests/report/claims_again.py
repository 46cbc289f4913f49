"""The study's claims: what each compares, and the numbers in its rule."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import polars as pl

from pipeline.analysis.schema import Thresholds
from tests.report.verdicts_again import (
    MEMORY,
    Cell,
    Claim,
    Estimate,
    Model,
    claim,
    combined,
    correlation,
    every,
    growth,
    percent,
    some,
)

LATE = "With one late block bypassed"
SINGLE = "Averaged over the bypasses of single blocks"
NOT_FIRST = "Over all blocks but the first"
GAP = "memory loss minus ability loss"
EXACT = "exact match loses"
RANK = "have a rank correlation of"
TOKENS = "teacher_forced_accuracy"


def lost(left: Estimate) -> Estimate:
    return combined([(-1, left)], 1)


def changed(left: Estimate) -> Estimate:
    return combined([(1, left)], -1)


def signed(value: float) -> str:
    return f"{100 * value:+.1f}%"


def claims(
    evidence: pl.DataFrame, limits: Thresholds, metric: str = "acc", *, half: bool = False
) -> list[Claim]:
    """Every claim, in the order of the page.

    Args:
        evidence: the table.
        limits: the study's thresholds.
        metric: of the benchmarks that have it.
        half: whether the second half of the blocks counts as late.
    """
    groups = evidence.group_by("model", maintain_order=True)
    every_model = [Model(rows, metric, half=half) for _, rows in groups]
    models = [model for model in every_model if (*MEMORY, "kept", "all") in model.rows]
    moved = [model for model in models if _moved(model)]
    error = limits.significance
    share = {name: f"{100 * value:g}%" for name, value in limits.model_dump().items()}
    apart = f"at least {100 * limits.resists:.4g} percentage points"
    first, length = "Section 4.2.1, Figure 1", f"{share['by_length']} of the loss of exact match"
    quarters = "Section A.3.2, Figures A12–A17"
    equal = "at equal displacement, depth and"
    return [
        claim(
            "Bypassing one late block reduces memorization at little cost to the benchmarks",
            first,
            LATE,
            [cell for m in models for b in m.late for cell in _cheap(m, b, limits)],
            rule=[
                f"exact match loses at least {share['reduced']} of its baseline, each benchmark at "
                f"most {share['little_cost']} of its lead over chance, and word perplexity grows "
                f"by at most {share['little_cost']}."
            ],
            significance=error,
        ),
        claim(
            "Bypassing one early block collapses memorization and benchmarks alike",
            first,
            "With one early block bypassed",
            [cell for m in models for b in m.early for cell in _collapsed(m, b, limits)],
            noun="Early blocks",
            rule=[f"both lose at least {share['collapsed']}."],
            significance=error,
        ),
        claim(
            "Bypassing one late block hardly raises perplexity",
            "Section 4.2.3, Figure 5",
            LATE,
            [cell for m in models for b in m.late for cell in _perplexity(m, b, limits)],
            rule=[f"word perplexity grows by at most {share['little_cost']}."],
            significance=error,
        ),
        claim(
            "Some bypasses of one block improve a benchmark",
            "Section 4.2.1, Figure A7c",
            "Over all blocks but the first and all benchmarks",
            [
                Cell(
                    m.name,
                    f"block {b}, {task}",
                    "the score changes by",
                    m.ability(over, task, "difference"),
                    "above",
                )
                for m in models
                for b, over in m.blocks.items()
                for task in m.metric
            ],
            (some, some),
            noun="Blocks and benchmarks",
            rule=["block 0 excluded."],
            significance=error,
        ),
        claim(
            "Larger models resist more",
            "Section 4.2.2, Figure 3",
            f"{SINGLE}, from the smallest to the largest model of a family "
            f"({_ratios(models)} times the parameters)",
            list(_trends(models, limits)),
            (every, every),
            rule=[f"{apart} for each tenfold."],
            significance=error,
            unit="family",
        ),
        claim(
            "Bypassing an early block breaks free text, bypassing a late one does not",
            "Section 4.2.3, Figure 4",
            "",
            [],
            significance=error,
        ),
        claim(
            "Reasoning resists more than language understanding",
            "Section 4.2.4, Figures 6 and A22",
            f"{SINGLE}, of the documents that the model answers correctly, corrected for chance",
            [
                Cell(
                    m.name,
                    "average",
                    "the loss of language understanding minus that of reasoning is",
                    combined(
                        [
                            (1, m.abilities("all", "retained", "reasoning")),
                            (-1, m.abilities("all", "retained", "language")),
                        ]
                    ),
                    threshold=limits.resists,
                )
                for m in models
                if m.has_kinds()
            ],
            (every, every),
            rule=[f"{apart} more of the documents"],
            significance=error,
        ),
        claim(
            "Bypassing any quarter of the blocks at once brings exact match near zero",
            quarters,
            "With a quarter of the blocks bypassed at once",
            [
                Cell(
                    m.name,
                    quarter,
                    "exact match keeps",
                    m.memory(quarter),
                    "at most",
                    limits.near_zero,
                    percent,
                )
                for m in models
                for quarter in m.quartiles
            ],
            (every, every),
            noun="Quarters",
            rule=[f"at most {share['near_zero']} of the baseline."],
            significance=error,
        ),
        claim(
            "Of the four quarters of the blocks, the last costs the benchmarks least",
            quarters,
            "With the last quarter of the blocks bypassed",
            [
                Cell(
                    m.name,
                    other,
                    "the share that the benchmarks keep of their lead over chance, minus that "
                    "with another quarter, is",
                    m.abilities(f"{m.quartiles[-1]} minus {other}"),
                    "above",
                )
                for m in models
                for other in m.quartiles[:-1]
            ],
            (every, every),
            noun="Comparisons with another quarter",
            significance=error,
        ),
        claim(
            "Bypassing one late block costs memory more than ability",
            "Abstract; on equal terms, which the paper does not have",
            LATE,
            [
                Cell(m.name, f"block {b}", f"{GAP} is", m.gap(over), threshold=limits.resists)
                for m in models
                for b, over in m.late.items()
            ],
            rule=[f"{GAP} is {apart}."],
            significance=error,
        ),
        claim(
            "Late attention serves memory more than ability",
            "Abstract, sections 4.2.1 and 5",
            NOT_FIRST,
            [cell for m in models for cell in _thesis(m)],
            (every, every),
            noun="Tests",
            significance=error,
        ),
        claim(
            "Exact match exaggerates the loss: it needs every token of a suffix right in a row",
            "ours",
            LATE,
            [cell for m in models for b in m.late for cell in _length(m, b, limits, length)],
            rule=[
                f"exact match loses at least {share['reduced']} of its baseline, and teacher-"
                f"forced accuracy loses at most {share['by_length']} of what exact match loses"
            ],
            significance=error,
        ),
        claim(
            "The further a bypass moves the residual stream, the more memory it costs",
            "ours",
            NOT_FIRST,
            [
                _ranked(
                    m, "blocks", f"displacement and loss of exact match {RANK}", _moved(m), loss
                )
                for m in moved
                for loss in [[1 - _value(m.memory(over)) for over in m.blocks.values()]]
            ],
            (every, every),
            noun="Tests",
            significance=error,
        ),
        claim(
            "Late attention serves memory more than ability at equal displacement of the stream",
            "ours",
            NOT_FIRST,
            [
                _ranked(m, "blocks", f"{equal} {GAP} {RANK}", list(m.blocks), _gaps(m), _moved(m))
                for m in moved
            ],
            (every, every),
            noun="Tests",
            significance=error,
        ),
    ]


def _value(estimate: Estimate) -> float:
    return estimate(0.95)[0]


def _gaps(model: Model) -> list[float]:
    return [_value(model.gap(over)) for over in model.blocks.values()]


def _moved(model: Model) -> list[float]:
    key = (MEMORY[0], "displacement", "displacement")
    known = [model.rows.get((*key, over)) for over in model.blocks.values()]
    return [row[0] for row in known if row]


def _ranked(model: Model, unit: str, label: str, *lists: list[float]) -> Cell:
    estimate = model.memory("all")  # of no use: the lists are compared
    return Cell(model.name, unit, label, estimate, write=correlation, correlated=lists)


def _perplexity(model: Model, block: int, limits: Thresholds) -> list[Cell]:
    return [
        Cell(
            model.name,
            f"block {block}",
            "word perplexity changes by",
            model.row(task, "word_perplexity", "log_ratio", model.blocks[block]),
            "at most",
            math.log1p(limits.little_cost),
            growth,
            task,
        )
        for task in model.perplexities
    ]


def _reduced(model: Model, block: int, share: float) -> Cell:
    left = lost(model.memory(model.blocks[block]))
    return Cell(model.name, f"block {block}", EXACT, left, "at least", share, percent)


def _cheap(model: Model, block: int, limits: Thresholds) -> list[Cell]:
    tasks = [
        Cell(
            model.name,
            f"block {block}",
            "a benchmark’s lead over chance changes by",
            changed(model.ability(model.blocks[block], task)),
            "at least",
            -limits.little_cost,
            signed,
            task,
        )
        for task in model.metric
    ]
    return [_reduced(model, block, limits.reduced), *tasks, *_perplexity(model, block, limits)]


def _collapsed(model: Model, block: int, limits: Thresholds) -> list[Cell]:
    left = changed(model.abilities(model.blocks[block]))
    label = "the benchmarks’ mean lead over chance changes by"
    what = (model.name, f"block {block}", label, left, "at most")
    return [
        _reduced(model, block, limits.collapsed),
        Cell(*what, -limits.collapsed, signed),
    ]


def _ratios(models: list[Model]) -> str:
    """How many times the parameters of its smallest model the largest of a family has."""
    sizes: dict[str, list[int]] = {}
    for model in models:
        sizes.setdefault(model.family, []).append(model.parameters)
    ratios = sorted(max(own) / min(own) for own in sizes.values() if len(set(own)) > 1)
    return " to ".join(dict.fromkeys(f"{each:.2f}" for each in (ratios[0], ratios[-1])))


def _trends(models: list[Model], limits: Thresholds) -> Iterator[Cell]:
    for family in dict.fromkeys(model.family for model in models):
        own = [model for model in models if model.family == family]
        sizes = np.log10([float(model.parameters) for model in own])
        if len(set(sizes)) < 2:
            continue
        span = max(sizes) - min(sizes)
        sizes -= sizes.mean()
        factors = (span * sizes / (sizes**2).sum()).tolist()
        rise = [
            (factor, model.memory("all", "retained"))
            for factor, model in zip(factors, own, strict=True)
        ]
        yield Cell(
            family,
            "trend",
            "the share of exact match kept changes with size by",
            combined(rise, related=True),
            threshold=span * limits.resists,
            part=f"{len(own)} models",
        )


def _thesis(model: Model) -> list[Cell]:
    blocks = [float(block) for block in model.blocks]
    excess = f"{GAP}, last quarter minus middle quarters, is"
    return [
        _ranked(model, "depth", f"depth and {GAP} {RANK}", blocks, _gaps(model)),
        Cell(model.name, "quarters", excess, model.gap("late minus middle"), "above"),
    ]


def _length(model: Model, block: int, limits: Thresholds, label: str) -> list[Cell]:
    over = model.blocks[block]
    exact, tokens = lost(model.memory(over)), lost(model.memory(over, metric=TOKENS))
    less = combined([(limits.by_length, exact), (-1, tokens)], related=True)
    return [
        _reduced(model, block, limits.reduced),
        Cell(
            model.name,
            f"block {block}",
            f"{label} minus the loss of teacher-forced accuracy is",
            less,
        ),
    ]
