"""Claims of ours on displacement: does harm follow it, and what holds at equal displacement?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.analysis import views
from pipeline.analysis.cases import Measured
from pipeline.analysis.conditions import OURS, Claim, correlation, ranked, unmeasured
from pipeline.analysis.displacement import DISPLACEMENT
from pipeline.analysis.schema import Thresholds
from pipeline.analysis.verdicts import Case, every

_BLOCKS = "Over all blocks but the first"


def harm_follows(models: Sequence[Measured], limits: Thresholds) -> Claim:
    """The loss of memory rises with how far a bypass moves the stream."""
    label = "displacement and loss of exact match have a rank correlation of"

    def pairs(model: Measured, level: float) -> list[NDArray[np.float64]]:
        lost = [1 - model.pooled(model.memory(o), level).value for o in model.blocks.values()]
        return [_displacements(model, level), np.array(lost)]

    return Claim(
        "The further a bypass moves the residual stream, the more memory it costs",
        OURS,
        _cases(models, label, pairs, lambda m, o: m.has(*_EXACT, "kept", o)),
        _BLOCKS,
        unmeasured("the displacement of at least three blocks, and a baseline that recites"),
        "Over the blocks, the loss of exact match rises with the relative norm of the change that "
        "the bypass makes right after the block (Spearman's rank correlation, by permutation of "
        "the blocks).",
        {label: correlation},
        noun="Tests",
    )


def at_equal_displacement(models: Sequence[Measured], limits: Thresholds) -> Claim:
    """The thesis, with the effect of displacement removed."""
    label = "at equal displacement, depth and memory loss minus ability loss have a rank "
    label += "correlation of"

    def pairs(model: Measured, level: float) -> list[NDArray[np.float64]]:
        gaps = [model.pooled(model.gap(over), level).value for over in model.blocks.values()]
        depth = np.array(list(model.blocks), dtype=np.float64)
        return [depth, np.array(gaps), _displacements(model, level)]

    return Claim(
        "Late attention serves memory more than ability at equal displacement of the stream",
        OURS,
        _cases(models, label, pairs, lambda m, o: m.gaps(o)),
        _BLOCKS,
        unmeasured("the displacement of at least three blocks, and a benchmark above chance"),
        "Memory loss minus ability loss rises with depth when the ranks of both are freed of what "
        "the rank of the displacement explains (partial rank correlation, by permutation).",
        {label: correlation},
        noun="Tests",
    )


_EXACT = (views.MEMORIZATION, "exact_match")
_MOVED = (views.MEMORIZATION, DISPLACEMENT, DISPLACEMENT)


def _displacements(model: Measured, level: float) -> NDArray[np.float64]:
    """Of each block but the first, by a bypass."""

    def of(over: str) -> float:
        return model.pooled(lambda seed, at: model.row(seed, at, *_MOVED, over), level).value

    return np.array([of(over) for over in model.blocks.values()])


def _cases(
    models: Sequence[Measured],
    label: str,
    pairs: Callable[[Measured, float], Sequence[NDArray[np.float64]]],
    known: Callable[[Measured, str], bool],
) -> list[Case]:
    """A case for each model with complete data, over every block but the first."""

    def of(model: Measured) -> Case:
        return Case(
            model.name, {"blocks": [ranked(label, lambda level: pairs(model, level))]}, every
        )

    return [
        of(model)
        for model in models
        if len(model.blocks) > 2
        and all(model.has(*_MOVED, o) and known(model, o) for o in model.blocks.values())
    ]
