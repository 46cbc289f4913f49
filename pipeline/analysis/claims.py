"""The claims that are judged: what each says of a model, and with which thresholds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.analysis import views
from pipeline.analysis.cases import Measured, Number
from pipeline.analysis.conditions import (
    EXACT,
    GAP,
    OURS,
    PERPLEXITY,
    TASK,
    Claim,
    as_share,
    block_cases,
    change,
    changed,
    cheap,
    cheap_perplexity,
    condition,
    correlation,
    growth,
    in_points,
    lost,
    points,
    ranked,
    reduced,
    unmeasured,
)
from pipeline.analysis.displacement_claims import at_equal_displacement, harm_follows
from pipeline.analysis.evidence import CONTRAST, TOKENS
from pipeline.analysis.schema import Thresholds
from pipeline.analysis.size_claim import larger_models
from pipeline.analysis.text import percent
from pipeline.analysis.verdicts import (
    Case,
    Condition,
    Estimate,
    combined,
    every,
    some,
)


def _late(models: Sequence[Measured], limits: Thresholds) -> Claim:
    return Claim(
        "Bypassing one late block reduces memorization at little cost to the benchmarks",
        "Section 4.2.1, Figure 1",
        block_cases(
            [model for model in models if model.metrics],
            lambda model: model.late,
            lambda model, over: [
                reduced(model, over, limits.reduced),
                *cheap(model, over, limits.little_cost),
            ],
        ),
        "With one late block bypassed",
        unmeasured("a late block and a benchmark above chance"),
        f"In more than half of the late blocks, exact match loses at least "
        f"{as_share(limits.reduced)} of its baseline, each benchmark at most "
        f"{as_share(limits.little_cost)} of its lead over chance, and word perplexity grows by at "
        f"most {as_share(limits.little_cost)}.",
        {EXACT: percent, TASK: change, PERPLEXITY: growth},
    )


_MEAN = "the benchmarks’ mean lead over chance changes by"


def _early(models: Sequence[Measured], limits: Thresholds) -> Claim:
    def conditions(model: Measured, over: str) -> list[Condition]:
        return [
            reduced(model, over, limits.collapsed),
            condition(
                model,
                _MEAN,
                changed(model.abilities(over)),
                "at_most",
                -limits.collapsed,
                change,
            ),
        ]

    return Claim(
        "Bypassing one early block collapses memorization and benchmarks alike",
        "Section 4.2.1, Figure 1",
        block_cases([m for m in models if m.metrics], lambda model: model.early, conditions),
        "With one early block bypassed",
        unmeasured("an early block and a benchmark above chance"),
        f"In more than half of the early blocks, exact match and the benchmarks' mean lead over "
        f"chance both lose at least {as_share(limits.collapsed)}.",
        {EXACT: percent, _MEAN: change},
        noun="Early blocks",
    )


def _perplexity(models: Sequence[Measured], limits: Thresholds) -> Claim:
    return Claim(
        "Bypassing one late block hardly raises perplexity",
        "Section 4.2.3, Figure 5",
        block_cases(
            models,
            lambda model: model.late,
            lambda model, over: cheap_perplexity(model, over, limits.little_cost),
        ),
        "With one late block bypassed",
        unmeasured("a late block and a word perplexity whose documents are known"),
        "In more than half of the late blocks, word perplexity grows by at most "
        f"{as_share(limits.little_cost)}.",
        {PERPLEXITY: growth},
    )


def _gains(models: Sequence[Measured], limits: Thresholds) -> Claim:
    label = "the score changes by"
    cases = []
    for model in models:
        units = {
            f"block {block}, {task}": [
                condition(
                    model,
                    label,
                    model.ability(task, over, "difference"),
                    "above",
                    0.0,
                    points,
                )
            ]
            for block, over in model.blocks.items()
            for task in model.metrics
        }
        if units:
            cases.append(Case(model.name, units, some))
    return Claim(
        "Some bypasses of one block improve a benchmark",
        "Section 4.2.1, Figure A7c",
        cases,
        "Over all blocks but the first and all benchmarks",
        unmeasured("a benchmark above chance"),
        "In at least one block and benchmark, the score is above the baseline's, block 0 excluded.",
        {label: points},
        overall=some,
        noun="Blocks and benchmarks",
    )


def _texts(models: Sequence[Measured], limits: Thresholds) -> Claim:
    return Claim(
        "Bypassing an early block breaks free text, bypassing a late one does not",
        "Section 4.2.3, Figure 4",
        [],
        "",
        "The page shows the texts and how far they collapse. A few prompts are too few to judge.",
        "No threshold on the collapse of texts was set.",
        {},
    )


def _reasoning(models: Sequence[Measured], limits: Thresholds) -> Claim:
    label = "the loss of language understanding minus that of reasoning is"
    cases = []
    for model in models:
        kinds = {
            ability: [
                task
                for task, metric in model.metrics.items()
                if task.removeprefix(views.GENERATED) in names
                and model.has(task, metric, "retained", "all")
            ]
            for ability, names in views.ABILITIES.items()
        }
        if not all(kinds.values()):
            continue
        reasoning, language = (
            model.abilities("all", "retained", kinds[kind]) for kind in ("reasoning", "language")
        )

        def more(
            seed: str, level: float, one: Number = reasoning, other: Number = language
        ) -> Estimate:
            return combined([(1, one(seed, level)), (-1, other(seed, level))])

        found = condition(model, label, more, "at_least", limits.resists, points)
        cases.append(Case(model.name, {"average": [found]}, every))
    return Claim(
        "Reasoning resists more than language understanding",
        "Section 4.2.4, Figures 6 and A22",
        cases,
        "Averaged over the bypasses of single blocks, of the documents that the model answers "
        "correctly, corrected for chance",
        unmeasured("benchmarks of both kinds, above chance"),
        "Averaged over all single blocks and the benchmarks of a kind, language understanding "
        f"(HellaSwag, LAMBADA) loses at least {in_points(limits.resists)} more of the documents "
        "that the model answers correctly than reasoning (PIQA, ARC-Easy), corrected for chance.",
        {label: points},
    )


def _quartiles(models: Sequence[Measured], limits: Thresholds) -> Claim:
    label = "exact match keeps"
    cases = []
    for model in models:
        units = {
            over: [
                condition(
                    model,
                    label,
                    model.memory(over),
                    "at_most",
                    limits.near_zero,
                    percent,
                )
            ]
            for over in model.quartiles
            if model.has(views.MEMORIZATION, "exact_match", "kept", over)
        }
        if units:
            cases.append(Case(model.name, units, every))
    return Claim(
        "Bypassing any quarter of the blocks at once brings exact match near zero",
        "Section A.3.2, Figures A12–A17",
        cases,
        "With a quarter of the blocks bypassed at once",
        unmeasured("four blocks and a baseline that recites"),
        "With each quarter of the blocks, exact match keeps at most "
        f"{as_share(limits.near_zero)} of the baseline.",
        {label: percent},
        noun="Quarters",
    )


def _last_quartile(models: Sequence[Measured], limits: Thresholds) -> Claim:
    label = (
        "the share that the benchmarks keep of their lead over chance, minus that with another "
        "quarter, is"
    )
    cases = []
    for model in models:
        *others, last = model.quartiles or [""]
        contrasts = {other: f"{last} minus {other}" for other in others}
        units = {
            other: [condition(model, label, model.abilities(over), "above", 0.0, points)]
            for other, over in contrasts.items()
            if model.metrics
            and all(model.has(task, m, "kept", over) for task, m in model.metrics.items())
        }
        if len(units) == 3:
            cases.append(Case(model.name, units, every))
    return Claim(
        "Of the four quarters of the blocks, the last costs the benchmarks least",
        "Section A.3.2, Figures A12–A17",
        cases,
        "With the last quarter of the blocks bypassed",
        unmeasured("four quarters of the blocks and a benchmark above chance"),
        "With the last quarter of the blocks, the benchmarks keep on average more of their lead "
        "over chance than with each of the other three.",
        {label: points},
        noun="Comparisons with another quarter",
    )


def _gap(models: Sequence[Measured], limits: Thresholds) -> Claim:
    def conditions(model: Measured, over: str) -> list[Condition]:
        if not model.gaps(over):
            return []
        return [condition(model, GAP, model.gap(over), "at_least", limits.resists, points)]

    return Claim(
        "Bypassing one late block costs memory more than ability",
        "Abstract; on equal terms, which the paper does not have",
        block_cases(models, lambda model: model.late, conditions),
        "With one late block bypassed",
        unmeasured("a late block and a benchmark above chance"),
        f"In more than half of the late blocks, memory loss minus ability loss is at least "
        f"{in_points(limits.resists)}.",
        {GAP: points},
    )


_DEPTH = "depth and memory loss minus ability loss have a rank correlation of"
_EXCESS = "memory loss minus ability loss, last quarter minus middle quarters, is"


def _thesis(models: Sequence[Measured], limits: Thresholds) -> Claim:
    def depth(model: Measured) -> Condition:
        blocks = [(b, over) for b, over in model.blocks.items() if model.gaps(over)]

        def pairs(level: float) -> Sequence[NDArray[np.float64]]:
            gaps = [model.pooled(model.gap(over), level).value for _, over in blocks]
            return np.array([block for block, _ in blocks], dtype=np.float64), np.array(gaps)

        return ranked(_DEPTH, pairs)

    return Claim(
        "Late attention serves memory more than ability",
        "Abstract, sections 4.2.1 and 5",
        [
            Case(
                model.name,
                {
                    "depth": [depth(model)],
                    "quarters": [
                        condition(model, _EXCESS, model.gap(CONTRAST), "above", 0.0, points)
                    ],
                },
                every,
            )
            for model in models
            if model.gaps(CONTRAST)
        ],
        "Over all blocks but the first",
        unmeasured("at least four blocks and a benchmark above chance"),
        "Memory loss minus ability loss rises with depth (Spearman's rank correlation, by "
        "permutation of the blocks), and is larger in the last quarter of the blocks than in the "
        "middle two, on average.",
        {_DEPTH: correlation, _EXCESS: points},
        noun="Tests",
    )


def _length(models: Sequence[Measured], limits: Thresholds) -> Claim:
    tokens_lose = "single tokens, each after the true ones before it, lose"
    label = f"{as_share(limits.by_length)} of the loss of exact match minus the loss of tokens is"

    def conditions(model: Measured, over: str) -> list[Condition]:
        if not model.has(views.MEMORIZATION, TOKENS, "kept", over):
            return []
        exact, tokens = lost(model.memory(over)), lost(model.memory(over, metric=TOKENS))

        def less(seed: str, level: float) -> Estimate:
            parts = [(limits.by_length, exact(seed, level)), (-1.0, tokens(seed, level))]
            return combined(parts, related=True)  # of the same samples

        return [
            reduced(model, over, limits.reduced),
            condition(model, label, less, "at_least", 0.0, points),
        ]

    return Claim(
        "Exact match exaggerates the loss: it needs every token of a suffix right in a row",
        OURS,
        block_cases(models, lambda model: model.late, conditions),
        "With one late block bypassed",
        unmeasured("a late block, memorized and control samples"),
        f"In more than half of the late blocks, exact match loses at least "
        f"{as_share(limits.reduced)} of its baseline, and single tokens lose at most "
        f"{as_share(limits.by_length)} of what exact match loses; both measured from what the "
        "baseline reaches on control samples.",
        {EXACT: percent, label: points, tokens_lose: percent},
    )


CLAIMS: Sequence[Callable[[Sequence[Measured], Thresholds], Claim]] = (
    *(
        _late,
        _early,
        _perplexity,
        _gains,
        larger_models,
        _texts,
        _reasoning,
        _quartiles,
        _last_quartile,
    ),
    *(_gap, _thesis, _length, harm_follows, at_equal_displacement),
)
"""Those of the paper in its order, then those on memory loss minus ability loss, then ours."""
