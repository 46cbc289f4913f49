"""The claim on size: larger models of a family resist a bypass more.

Source: section 4.2.2 and Figure 3 of arXiv 2501.05078.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipeline.analysis import views
from pipeline.analysis.cases import Measured
from pipeline.analysis.conditions import Claim, in_points, points, written
from pipeline.analysis.schema import Thresholds
from pipeline.analysis.text import plural
from pipeline.analysis.verdicts import Case, Condition, Judged, combined, every


def larger_models(models: Sequence[Measured], limits: Thresholds) -> Claim:
    """The claim that more of exact match survives a bypass in larger models of a family.

    The slope over the sizes is given as the rise from the smallest to the largest, and the
    threshold, which is per tenfold of the parameters, is scaled likewise.
    """
    label = "the share of exact match kept changes with size by"
    families: dict[str, list[Measured]] = {}
    for model in models:
        if model.parameters and model.has(views.MEMORIZATION, "exact_match", "retained", "all"):
            families.setdefault(model.family, []).append(model)

    def trend(members: Sequence[Measured]) -> Condition:
        sizes = np.log10([float(model.parameters or 1) for model in members])
        span = float(np.ptp(sizes))
        factors = span * (sizes - sizes.mean()) / ((sizes - sizes.mean()) ** 2).sum()
        threshold = span * limits.resists

        def judge(level: float) -> Judged:
            left = [m.pooled(m.memory("all", "retained"), level) for m in members]
            # they see the same samples, so their errors may be correlated in any way
            rise = combined(list(zip(factors.tolist(), left, strict=True)), related=True)
            return Judged(
                rise.at_least(threshold),
                rise.value,
                written(rise, points),
                rise,
                (threshold, math.inf),
            )

        return Condition(label, judge, plural(len(members), "model"), points)

    several = {
        family: members
        for family, members in families.items()
        if len({model.parameters for model in members}) > 1
    }
    ratios = [
        f"{max(sizes) / min(sizes):.2f}"
        for members in several.values()
        for sizes in [[model.parameters or 1 for model in members]]
    ]
    between = (
        " to ".join(dict.fromkeys([min(ratios, key=float), max(ratios, key=float)]))
        if ratios
        else ""
    )
    return Claim(
        "Larger models resist more",
        "Section 4.2.2, Figure 3",
        [Case(family, {"trend": [trend(members)]}, every) for family, members in several.items()],
        "Averaged over the bypasses of single blocks, from the smallest to the largest model of a "
        f"family ({between} times the parameters)",
        "No family of this study can tell: it takes two models of different size that recite.",
        "The slope of a straight line through all sizes of a family, of the retained exact match "
        "against the logarithm of the number of parameters, is at least "
        f"{in_points(limits.resists)} for each tenfold. Rise and threshold are given for the "
        "range of sizes measured.",
        {label: points},
        unit="family",
    )
