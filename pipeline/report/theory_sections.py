"""The page's two sections on theory: sentences, tables and statements from measured numbers.

The sentences stand in theory.yaml. They are chosen by the numbers, so that they stay true when the
numbers change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipeline.analysis import link
from pipeline.analysis.theory import ATTENTION_ONLY_TITLE, QUANTITIES, THEOREMS_TITLE, Theory
from pipeline.report.numbers import Number, Sentence, named
from pipeline.report.plots.plot import count, extent, panels
from pipeline.report.statements import (
    WORDS,
    Statement,
    above_lower_bound,
    attention_only_statements,
    lost_alike,
    routing,
    theorem_statements,
)


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
    opening: Sequence[Sentence]
    statements: Sequence[Statement]
    heading: Sequence[str] = ()
    rows: Sequence[Sequence[Number | str]] = ()
    about: str = ""


def theory_sections(
    summary: pl.DataFrame, evidence: pl.DataFrame, theory: Theory
) -> list[TheorySection]:
    """The sections for which there are tables."""
    made = []
    if theory.bounds.height:
        made.append(_theorems(summary, evidence, theory))
    if theory.experiments:
        made.append(_attention_only(theory))
    return made


def _sentence(key: str, **values: Any) -> Sentence:
    """A sentence of theory.yaml; its numbers are named by `key`."""
    return Sentence(WORDS["sections"][key], named(values, f"theory/{key}", "theory"))


def _theorems(summary: pl.DataFrame, evidence: pl.DataFrame, theory: Theory) -> TheorySection:
    ranks = link.correlations(link.pairs(summary, evidence, theory.quantities))
    statements = theorem_statements(theory.bounds)
    first, ours, second, _, ours_later, *_ = statements
    values = {**ours.values, "corrected": ours.values["slack"], "printed": first.values["slack"]}
    counts = {
        "first": first.failures,
        "cases": first.cases,
        "second": second.failures,
        "later": second.cases,
        "exceeded": ours.failures + ours_later.failures,
    }
    holds = _sentence("holds", **values, **{name: count(n) for name, n in counts.items()})
    opening = [_sentence("moved", models=panels(theory.bounds)), holds, _predicts(ranks)]
    about = WORDS["sections"]["about"]
    return TheorySection(THEOREMS_TITLE, opening, statements, *_table(ranks), about)


def _predicts(ranks: pl.DataFrame) -> Sentence:
    """Whether the theory's quantities predict the damage."""
    if not ranks.height:
        return _sentence("predicts", bound=None)
    return _sentence(
        "predicts",
        bound=_told(ranks, "printed", "exact_match"),
        logits=_told(ranks, "logits", "exact_match"),
        benchmarks=_told(ranks, "logits", "benchmarks"),
    )


def _told(ranks: pl.DataFrame, quantity: str, measure: str) -> dict[str, Any]:
    """Whether a quantity predicts a loss (tells, in part, is not found to tell), and how often."""
    rows = ranks.filter(quantity=quantity, measure=measure)
    along = link.along(rows).height
    part = "tells" if along == rows.height else "tells only in part"
    often = {
        "of": count(rows.height) if rows.height else None,
        "along": count(along),
        "ranks": extent(rows["value"], "correlation"),
        "beyond": extent(rows["beyond"], "correlation") if rows["beyond"].count() else None,
        "beyond_along": count(link.along(rows, "beyond").height),
    }
    words = Sentence(WORDS["sections"]["often"], often)
    against = {
        name: count(link.along(rows, value, sign=-1).height)
        for name, value in (("against", "value"), ("beyond_against", "beyond"))
    }
    return {"tells": part if along else "is not found to tell", "often": words, **against}


_RANKS = (("value", "low", "high"), ("beyond", "beyond_low", "beyond_high"))
"""The two correlations of a row, each with its interval."""


def _table(ranks: pl.DataFrame) -> tuple[list[str], list[list[Number | str]]]:
    """Heading and rows: a row for each model and quantity, two columns for each loss."""
    measures = [measure for measure in link.LOSSES if measure in set(ranks["measure"])]
    rows = []
    for (model, quantity), part in ranks.group_by("model", "quantity", maintain_order=True):
        cells = {row["measure"]: row for row in part.iter_rows(named=True)}
        place = f"theory/ranks/{model}/{quantity}"
        row: list[Number | str] = [str(model), QUANTITIES[str(quantity)]]
        for measure in measures:
            of = cells.get(measure, {})
            for value, low, high in _RANKS:
                numbers = of.get(value), of.get(low), of.get(high)
                row.append(Number(f"{place}/{measure}/{value}", *numbers, "correlation", "theory"))
        rows.append(row)
    beyond = ", at equal depth and displacement"
    losses = [link.LOSSES[measure] + where for measure in measures for where in ("", beyond)]
    return ["model", "over its blocks", *losses], rows


def _attention_only(theory: Theory) -> TheorySection:
    statements = attention_only_statements(theory)
    printed = [each for each in statements if each.printed and each.degree != "unmeasured"]
    trained = theory.experiments.get("attention_only")
    reached = pl.Series([]) if trained is None else above_lower_bound(trained)["ratio"]
    counted = _sentence(
        "counted",
        printed=count(len(printed)),
        hold=count(sum(each.degree == "all" for each in printed)),
        reached=extent(reached, "factor") if reached.len() else None,
    )
    opening = [_sentence("attention-only"), counted]
    stored = {} if trained is None else routing(trained)
    if stored:
        opening.append(_sentence("stored", alike=lost_alike(stored), **stored))
    return TheorySection(ATTENTION_ONLY_TITLE, opening, statements)
