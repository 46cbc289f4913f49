"""One frame of verdicts of three values, from intervals, with a stated error rate.

A condition compares an estimate with a threshold, and counts only where the whole interval lies on
one side: *supported* or *contradicted*; else it is *undecided*. Every other verdict follows by
logic from those of the conditions: of a block or other unit from its conditions, of a model from
its units, of a claim from the models.

The intervals of all conditions of one claim, over all models, hold together with the stated
probability (Bonferroni: each is taken at the level 1 - error / number of conditions). Where they
all hold no condition is judged wrongly, so nothing that follows from them is: block by block,
model by model, and in the counts of blocks. The rate is one for each claim; it is not shared among
the claims, nor among the edits. Bonferroni's bound needs nothing of how the estimates depend on
each other.

Models of one recipe that differ in their training seed are one case: see `Measured.estimate`.

Source: for equivalence by inclusion of an interval Schuirmann (1987), J. Pharmacokinetics and
Biopharmaceutics 15, 657-680; the logic of three values is Kleene's.
"""

import math
from collections.abc import Sequence
from typing import Any

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.claims import CLAIMS, Claim, Condition, Rule
from pipeline.analysis.estimates import Estimate, combined, measured_models
from pipeline.analysis.schema import Thresholds
from pipeline.interventions.interventions import IDENTITY
from pipeline.workflow import tables
from pipeline.workflow.tables import Schema, float64, string, uint32

SUPPORTED, CONTRADICTED, UNDECIDED = VALUES = ("supported", "contradicted", "undecided")

MAIN = "acc, last quarter"
SETUPS = {
    MAIN: ("acc", "late", "early"),
    "acc_norm, last quarter": ("acc_norm", "late", "early"),
    "acc, second half": ("acc", "second half", "early"),
    "acc, from block 0": ("acc", "late", "from block 0"),
}
"""Setup -> metric of the benchmarks, and the ranges of blocks that count as late and as early."""

VERDICTS: Schema = {
    "edit": string("of the interventions by which it is judged"),
    "setup": string("metric of the benchmarks and range of late or early blocks"),
    "claim": string("its id; report/claims.yaml has its words"),
    "model": string("model, recipe or family; null: over all of them", nullable=True),
    "unit": string("block, quarter, …; null: the model as a whole", nullable=True),
    "condition": string("compared quantity; null: the unit as a whole", nullable=True),
    "part": string("task, …; null where the quantity has no parts", nullable=True),
    "estimate": float64("of a condition", nullable=True),
    "low": float64("end of its interval; null: unbounded", nullable=True),
    "high": float64("likewise", nullable=True),
    "level": float64("of the interval", nullable=True),
    "compare": string("at_least, at_most or above", nullable=True),
    "threshold": float64("with which the estimate is compared", nullable=True),
    "verdict": string("supported, contradicted or undecided; null: not measured", nullable=True),
    "needed": uint32(
        "independent samples without which no outcome could support the condition; null: enough",
        nullable=True,
    ),
    "lacks": string("what the study lacks to judge the condition; null: nothing", nullable=True),
}


def verdicts(evidence: pl.DataFrame, limits: Thresholds | None = None) -> pl.DataFrame:
    """Judge every claim under every edit, with the main choices and with others; see `SETUPS`.

    Returns:
        A frame of schema `VERDICTS`. Each claim has a row with a null model. The other setups are
        of the identity edit; their rows are of claims and models alone.
    """
    limits = limits or Thresholds()
    choices = [(edit, MAIN) for edit in views.edits(evidence)]
    choices += [(IDENTITY, setup) for setup in SETUPS if setup != MAIN]
    frames = []
    for edit, setup in choices:
        every = measured_models(evidence, edit, *SETUPS[setup])
        models = [model for model in every if model.recites()]
        for name, claim in CLAIMS.items():
            conditions = list(claim.conditions(models, limits))
            frame = _judged(name, claim, conditions, limits.significance)
            named = frame.with_columns(edit=pl.lit(edit), setup=pl.lit(setup))
            frames.append(named.select(*VERDICTS))
    # of the other setups only claims and models are told
    return pl.concat(frames).filter((pl.col("setup") == MAIN) | pl.col("unit").is_null())


def compared(estimate: Estimate, compare: str, threshold: float) -> str:
    """The verdict on a comparison, as far as the interval tells."""
    met, missed = {
        "at_least": (estimate.low >= threshold, estimate.high < threshold),
        "at_most": (estimate.high <= threshold, estimate.low > threshold),
        "above": (estimate.low > threshold, estimate.high <= threshold),
    }[compare]
    return SUPPORTED if met else CONTRADICTED if missed else UNDECIDED


def rule(name: Rule) -> pl.Expr:
    """From the column ``verdict`` of a group to one verdict; null of none.

    ``every``: supported where all are, contradicted where one is. ``some``: supported where one is,
    contradicted where all are. ``most``: supported where more than half are, contradicted where at
    least half are. So it is the first, the last or the middle one, from contradicted to supported.
    """
    places: dict[Rule, int | pl.Expr] = {"every": 0, "some": -1, "most": (pl.len() - 1) // 2}
    ascending = pl.col("verdict").cast(pl.Enum([CONTRADICTED, UNDECIDED, SUPPORTED])).sort()
    return ascending.get(places[name], null_on_oob=True).cast(pl.String)


def _judged(name: str, claim: Claim, conditions: Sequence[Condition], error: float) -> pl.DataFrame:
    """The rows of one claim: conditions, units, models, and the claim itself."""
    level = 1 - error / max(len(conditions), 1)
    judged = [_row(condition, level) for condition in conditions]
    rows = pl.DataFrame(judged, schema=tables.dtypes(VERDICTS))
    units, models = by_unit_and_model(rows, claim)
    parts = [tables.empty(VERDICTS), models.select(rule(claim.models)), models, units, rows]
    return pl.concat(parts, how="diagonal").with_columns(claim=pl.lit(name))


def by_unit_and_model(conditions: pl.DataFrame, claim: Claim) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The verdict on each unit, and on each model, of the conditions: schema `VERDICTS`."""
    units = conditions.group_by("model", "unit", maintain_order=True).agg(rule("every"))
    return units, units.group_by("model", maintain_order=True).agg(rule(claim.units))


def _row(condition: Condition, level: float) -> dict[str, Any]:
    sums = [
        model.estimate(terms, level, condition.offset, related=condition.related)
        for model, terms in condition.sums.items()
    ]
    estimate = combined([(1, each) for each in sums], related=True)
    (model, terms), *others = condition.sums.items()
    how = condition.compare, condition.threshold
    verdict, needed = compared(estimate, *how), None
    if verdict == UNDECIDED and len(terms) == 1 and not others:
        needed = model.needed(terms[0], level, condition.offset, *how)
    ends = (end if math.isfinite(end) else None for end in estimate)
    return {
        **{name: value for name, value in vars(condition).items() if name in VERDICTS},
        **dict(zip(("estimate", "low", "high"), ends, strict=True)),
        "model": condition.family or model.name,
        "level": level,
        "verdict": UNDECIDED if condition.lacks else verdict,
        "needed": needed,
    }
