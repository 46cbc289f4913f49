"""The claims that are judged: which numbers of a model each compares with which thresholds.

A claim is a list of conditions, and two rules: from the conditions' units, such as blocks, to the
model, and from the models to the claim. What a claim says to a reader is in report/claims.yaml.

*Late* is the last quarter of the blocks, as in section 4.2.1 of the paper; block 0 is in no range,
since the paper warns against it. Memory loss minus ability loss compares shares of two leads: over
control samples, and over chance; see `evidence`. Every claim is judged for every edit of a study.

Source: sections 4.2 and A.3 of arXiv 2501.05078.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.analysis import views
from pipeline.analysis.estimates import Measured, Row, Terms, scaled
from pipeline.analysis.evidence import (
    CONTRAST,
    DEPTH,
    DEPTH_AT_EQUAL,
    LOG_PROB,
    MOVED,
    MOVED_AT_EQUAL,
    QUARTERS,
    TOKENS,
)
from pipeline.analysis.schema import Thresholds

Compare = Literal["at_least", "at_most", "above"]
Rule = Literal["every", "some", "most"]


@dataclass(frozen=True)
class Condition:
    """A number of one model, or of several, and the threshold with which it is compared.

    Args:
        sums: model and terms, added over the models.
        unit: what is judged within the case, such as ``block 7``; all conditions of a unit must
            hold.
        condition: the compared quantity; report/claims.yaml names it for readers.
        compare: how; `threshold`: with what.
        part: tells apart conditions of one quantity, such as by a task's name; None: it has none.
        offset: added to the sum.
        related: whether the terms are of the same samples, see `estimates.combined`.
        lacks: what the study lacks, without which the condition is undecided; None: nothing.
        family: the case, if it is a family; None: it is the model.
    """

    sums: Mapping[Measured, Terms]
    unit: str
    condition: str
    compare: Compare
    threshold: float
    part: str | None = None
    offset: float = 0.0
    related: bool = False
    lacks: str | None = None
    family: str | None = None


Conditions = Iterator[Condition]


@dataclass(frozen=True)
class Claim:
    """A claim.

    Args:
        conditions: of all models that can be judged.
        units: the rule from the verdicts of the units to that of a model.
        models: the rule from the verdicts of the models to that of the claim.
    """

    conditions: Callable[[Sequence[Measured], Thresholds], Conditions]
    units: Rule = "every"
    models: Rule = "every"


def _reduced(model: Measured, unit: str, over: str, share: float) -> Condition:
    """Exact match loses at least a share of its baseline."""
    sums = {model: scaled(-1, model.memory(over))}
    return Condition(sums, unit, "exact_match_lost", "at_least", share, offset=1)


def _cheap_perplexity(model: Measured, unit: str, over: str, share: float) -> Conditions:
    """Word perplexity grows by at most a share of the baseline."""
    limit = math.log1p(share)
    for task in model.perplexities:
        sums = {model: [(1.0, Row(task, views.WORD_PERPLEXITY, "log_ratio", over))]}
        yield Condition(sums, unit, "perplexity_growth", "at_most", limit, task)


def _late_block(model: Measured, limits: Thresholds) -> Conditions:
    least = -limits.little_cost
    for unit, over in model.late.items() if model.metrics else ():
        yield _reduced(model, unit, over, limits.reduced)
        for task in model.metrics:
            sums = {model: model.ability(task, over)}
            yield Condition(sums, unit, "lead_change", "at_least", least, task, offset=-1)
        yield from _cheap_perplexity(model, unit, over, limits.little_cost)


def _early_block(model: Measured, limits: Thresholds) -> Conditions:
    alone = next(iter(model.metrics)) if len(model.metrics) == 1 else None
    most = -limits.collapsed
    for unit, over in model.early.items() if model.metrics else ():
        yield _reduced(model, unit, over, limits.collapsed)
        sums = {model: model.abilities(over)}
        yield Condition(sums, unit, "mean_lead_change", "at_most", most, alone, offset=-1)


def _perplexity(model: Measured, limits: Thresholds) -> Conditions:
    for unit, over in model.late.items():
        yield from _cheap_perplexity(model, unit, over, limits.little_cost)


def _gains(model: Measured, limits: Thresholds) -> Conditions:
    for block, over in model.blocks.items():
        for task in model.metrics:
            sums = {model: model.ability(task, over, "difference")}
            yield Condition(sums, f"block {block}, {task}", "score_change", "above", 0.0, task)


LEAST_SIZES = LEAST_SEEDS = 3
"""Sizes of a family, and seeds of each, without which no trend over sizes is judged."""


def _larger_models(models: Sequence[Measured], limits: Thresholds) -> Conditions:
    """The slope over the sizes, as the rise from the smallest to the largest model of a family.

    Every model has a quarter of its blocks edited, since one block is less of a deeper model. What
    is kept is of the log probability, since hardly any exact match is left. The threshold, which is
    per tenfold of the parameters, is scaled to the sizes measured.
    """
    kept = {model.name: model.memory(QUARTERS, LOG_PROB) for model in models}
    sized = [model for model in models if model.parameters and model.has(kept[model.name])]
    for family in dict.fromkeys(model.family for model in sized):
        members = [model for model in sized if model.family == family]
        sizes = np.log10([float(model.parameters or 1) for model in members])
        span = float(np.ptp(sizes))
        if not span:
            continue
        slope = span * (sizes - sizes.mean()) / ((sizes - sizes.mean()) ** 2).sum()
        seeds, different = min(len(model.seeds) for model in members), len(set(sizes))
        lacks = [
            f"{LEAST_SIZES} sizes, not {different}" if different < LEAST_SIZES else "",
            f"{LEAST_SEEDS} seeds of each size, not {seeds}" if seeds < LEAST_SEEDS else "",
        ]
        # they see the same samples, so their errors may be correlated in any way
        yield Condition(
            {
                model: scaled(factor, kept[model.name])
                for factor, model in zip(slope.tolist(), members, strict=True)
            },
            "trend",
            "kept_by_size",
            "at_least",
            span * limits.resists,
            f"{len(members)} models",
            related=True,
            lacks=", and ".join(filter(None, lacks)) or None,
            family=family,
        )


def _reasoning(model: Measured, limits: Thresholds) -> Conditions:
    reasoning, language = (
        [
            task
            for task in model.metrics
            if task.removeprefix(views.GENERATED) in views.ABILITIES[ability]
            and model.has(model.ability(task, "all"))
        ]
        for ability in ("reasoning", "language")
    )
    if reasoning and language:
        less, least = scaled(-1, model.abilities("all", language)), limits.resists
        sums = {model: [*model.abilities("all", reasoning), *less]}
        yield Condition(sums, "average", "language_minus_reasoning", "at_least", least)


def _quarters(model: Measured, limits: Thresholds) -> Conditions:
    for over in model.quartiles:
        sums = {model: model.memory(over)}
        yield Condition(sums, over, "exact_match_kept", "at_most", limits.near_zero)


def _last_quarter(model: Measured, limits: Thresholds) -> Conditions:
    *others, last = model.quartiles or [""]
    contrasts = {other: model.abilities(f"{last} minus {other}") for other in others}
    if len(contrasts) == 3 and all(model.has(terms) for terms in contrasts.values()):
        for other, terms in contrasts.items():
            yield Condition({model: terms}, other, "last_minus_other", "above", 0.0)


OF_FIRST = "_of_first"
"""How a quantity by the first token of the suffix ends; one without it is by the whole suffix."""


def _of_gap(
    model: Measured, unit: str, name: str, over: str, compare: Compare, threshold: float
) -> Conditions:
    """Memory loss minus ability loss, by the first token and by the whole suffix, if by both."""
    both = {f"{name}{OF_FIRST}": model.gap(over, k=1), name: model.gap(over)}
    for condition, terms in both.items() if all(map(model.has, both.values())) else ():
        yield Condition({model: terms}, unit, condition, compare, threshold)


def _gap(model: Measured, limits: Thresholds) -> Conditions:
    for unit, over in model.late.items():
        yield from _of_gap(model, unit, "gap", over, "at_least", limits.resists)


def _thesis(model: Measured, limits: Thresholds) -> Conditions:
    if model.has(model.gap(CONTRAST)):
        yield from _of_gap(model, "depth", "gap_by_depth", DEPTH, "above", 0.0)
        yield from _of_gap(model, "quarters", "gap_excess", CONTRAST, "above", 0.0)


def _length(model: Measured, limits: Thresholds) -> Conditions:
    for unit, over in model.late.items():
        exact, tokens = model.memory(over), model.memory(over, metric=TOKENS)
        if model.has(tokens):
            yield _reduced(model, unit, over, limits.reduced)
            # the share of the loss of exact match, minus the loss of tokens
            share = limits.by_length
            sums = {model: [*scaled(-share, exact), *tokens]}
            yield Condition(
                sums, unit, "loss_beyond_tokens", "at_least", 0.0, offset=share - 1, related=True
            )


def _harm_follows(model: Measured, limits: Thresholds) -> Conditions:
    if model.has(model.memory(MOVED_AT_EQUAL)):
        for end, over in (("", MOVED), ("_at_equal", MOVED_AT_EQUAL)):
            sums = {model: scaled(-1, model.memory(over))}
            yield Condition(sums, "blocks", f"loss_by_displacement{end}", "above", 0.0)


def _at_equal_displacement(model: Measured, limits: Thresholds) -> Conditions:
    yield from _of_gap(model, "blocks", "gap_by_depth_at_equal", DEPTH_AT_EQUAL, "above", 0.0)


def _each(
    of_model: Callable[[Measured, Thresholds], Conditions],
) -> Callable[[Sequence[Measured], Thresholds], Conditions]:
    """The conditions of all models, from those of one whose numbers every seed of it has."""
    return lambda models, limits: (
        condition
        for model in models
        for condition in of_model(model, limits)
        if all(each.has(terms) for each, terms in condition.sums.items())
    )


CLAIMS = {
    "late-block": Claim(_each(_late_block), "most"),
    "early-block": Claim(_each(_early_block), "most"),
    "late-perplexity": Claim(_each(_perplexity), "most"),
    "gains": Claim(_each(_gains), "some", "some"),
    "larger-models": Claim(_larger_models),
    # a few prompts are too few to judge, and no threshold on the collapse of texts was set
    "texts": Claim(lambda models, limits: iter(())),
    "reasoning": Claim(_each(_reasoning)),
    "quarters": Claim(_each(_quarters)),
    "last-quarter": Claim(_each(_last_quarter)),
    "gap": Claim(_each(_gap), "most"),
    "thesis": Claim(_each(_thesis)),
    "length": Claim(_each(_length), "most"),
    "displacement": Claim(_each(_harm_follows)),
    "equal-displacement": Claim(_each(_at_equal_displacement)),
}
"""Those of the paper in its order, then those on memory loss minus ability loss, then ours."""
