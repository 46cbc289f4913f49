"""The page's two sections on theory: sentences, tables and statements from measured numbers.

The sentences are chosen here by the numbers, so that they stay true when the numbers change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from pipeline.analysis import link
from pipeline.analysis.kept import kept
from pipeline.analysis.text import plural
from pipeline.analysis.theory import ATTENTION_ONLY_TITLE, THEOREMS_TITLE, VIOLATED, Theory
from pipeline.report.attention_only_statements import (
    above_lower_bound,
    attention_only_statements,
    lost_alike,
    routing,
)
from pipeline.report.statements import Statement, slack, theorem_statements, times, violations


@dataclass(frozen=True)
class TheorySection:
    """The content of a section beside its figures.

    Args:
        title: the section's title, as in the figures.
        opening: sentences before the figures.
        statements: each judged, in a table after the figures.
        heading, rows: heading and rows of one more table; empty: no such table.
        about: a description of that table.
    """

    title: str
    opening: Sequence[str]
    statements: Sequence[Statement]
    heading: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    about: str = ""


def theory_sections(
    summary: pl.DataFrame, evidence: pl.DataFrame, theory: Theory
) -> list[TheorySection]:
    """The sections for which there are tables.

    Args:
        summary: as `aggregate.aggregate` gives it.
        evidence: schema `evidence.EVIDENCE`, for what a bypass keeps.
        theory: as `theory.read_theory` gives it.
    """
    made = []
    if theory.bounds.height:
        made.append(_theorems(summary, evidence, theory))
    if theory.experiments:
        made.append(_attention_only(theory))
    return made


def _theorems(summary: pl.DataFrame, evidence: pl.DataFrame, theory: Theory) -> TheorySection:
    shares = kept(evidence, pooled=False)
    found = link.correlations(link.pairs(summary, shares, theory.quantities))
    heading, rows = link.table(found)
    models = theory.bounds["model"].n_unique()
    opening = [
        "If a block’s attention is bypassed, the token from which the next one is predicted ends "
        "up elsewhere. The paper’s two theorems bound how far: right after the bypassed block, "
        f"and one block later. The paper measures neither; here both sides were computed in "
        f"{plural(models, 'model')}, block by block and sample by sample.",
        _holds(theory.bounds),
        _told(found),
    ]
    return TheorySection(
        THEOREMS_TITLE,
        opening,
        theorem_statements(theory.bounds),
        heading,
        rows,
        "Spearman’s rank correlation, over the single blocks of a model, between a quantity that "
        "may predict the damage and the damage. 1: a block with more of the quantity always loses "
        "more; −1: it always loses less. Brackets: 95% bootstrap intervals over the blocks, which "
        "are few and not independent of each other.",
    )


def _holds(bounds: pl.DataFrame) -> str:
    printed, cases = violations(bounds, VIOLATED[1]["printed"])
    second, _ = violations(bounds, VIOLATED[2]["printed"])
    corrected = sum(violations(bounds, VIOLATED[theorem]["corrected"])[0] for theorem in (1, 2))
    exceeded = (
        f"is exceeded in {printed:,} of {cases:,} cases"
        if printed
        else f"is exceeded in none of {cases:,} cases"
    )
    other = "nor is that of Theorem 2"
    if second or printed:
        other = f"that of Theorem 2 in {second:,}"
    return (
        f"As printed, the bound of Theorem 1 {exceeded}, {other}; it allows "
        f"{times(slack(bounds, 1, 'printed'))} the change that is measured. The bounds that we "
        "correct for real blocks (norms, heads, projections) "
        + (f"are exceeded {corrected:,} times" if corrected else "are never exceeded")
        + f". The tightest of them allows {times(slack(bounds, 1, 'corrected'))} the change of "
        f"Theorem 1; that of norms and spread {times(slack(bounds, 1, 'coarse'))}; that from the "
        f"weights alone {times(slack(bounds, 1, 'bound_from_weights'))} (medians of each model)."
    )


def _told(found: pl.DataFrame) -> str:
    """Whether the theory's quantities predict the damage."""
    if not found.height:
        return "No block's loss was measured, so it is unknown whether the change predicts damage."
    bound, printed = _verdict(found, "printed")
    logits, changed = _verdict(found, "logits")
    return (
        f"The bound as printed {bound} which blocks memorization needs: over the blocks of a "
        f"model, its rank correlation ρ with the loss of exact match is above 0, beyond chance, "
        f"{printed}. The change that reaches the logits {logits}: that correlation is above 0 "
        f"{changed}, and that with the loss of the benchmarks "
        f"{link.predicts(found, 'logits', 'benchmarks')}."
        + (
            " But that change is the damage itself, measured at the output; a useful bound would "
            "have to predict it."
            if logits == "tells"
            else ""
        )
    )


def _verdict(found: pl.DataFrame, quantity: str) -> tuple[str, str]:
    """Whether a quantity predicts the damage (tells, in part, does not tell), and how often."""
    judged = found.filter(quantity=quantity, measure="exact_match").height
    times_along = link.along(found, quantity, "exact_match").height
    if not times_along:
        tells = "does not tell"
    else:
        tells = "tells" if times_along == judged else "tells only in part"
    return tells, link.predicts(found, quantity, "exact_match")


def _attention_only(theory: Theory) -> TheorySection:
    statements = attention_only_statements(theory)
    printed = [each for each in statements if each.printed and each.degree != "unmeasured"]
    hold = sum(each.degree == "all" for each in printed)
    opening = [
        "How much can attention store without an MLP? arXiv 2411.10115, and slides on it, give "
        "formulas. They do not apply to the models above. To test them, we built small models, "
        "trained them on tables of random answers, and measured how much they store.",
        f"Of {plural(len(printed), 'statement')} as printed, {hold} "
        f"{'holds' if hold == 1 else 'hold'} in every case that was tried"
        + (
            ". Each of the others fails in some cases, or is undefined where it was tried. The "
            "table below shows where, and gives a corrected statement."
            if hold < len(printed)
            else "."
        ),
    ]
    trained = theory.experiments.get("attention_only")
    if trained is not None:
        ratios = above_lower_bound(trained)["ratio"].to_list()
        if ratios:
            opening[-1] += f" Trained models reach {times(ratios)} the guaranteed accuracy."
        found = routing(trained)
        if len(found) == 2:
            opening.append(_stored(found))
    return TheorySection(ATTENTION_ONLY_TITLE, opening, statements)


def _stored(found: dict[str, tuple[float, float]]) -> str:
    heads, mlp = (f"from {whole:.0%} to {bypassed:.0%}" for whole, bypassed in found.values())
    if lost_alike(found):
        return (
            "A drop under bypass shows dependence, not storage. Under a bypass, a model that "
            f"stores its table in its heads falls {heads}; one that stores it in its MLP, behind "
            f"a single random head that was never trained, falls {mlp}. The bypass does not tell "
            "them apart, because the MLP, too, needs the output of attention to find its answers."
        )
    return (
        "A drop under bypass need not show storage. Here, though, a bypass tells two models apart: "
        f"one that stores its table in its heads goes {heads}; one that stores it in its MLP, "
        f"behind a random head, goes {mlp}."
    )
