"""The claims for a reader: the frame of verdicts joined with the words of claims.yaml."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.claims import CLAIMS, OF_FIRST
from pipeline.analysis.schema import Thresholds
from pipeline.analysis.verdicts import MAIN, SUPPORTED, VALUES, by_unit_and_model
from pipeline.interventions.interventions import IDENTITY
from pipeline.report.numbers import SHARE, Number, Sentence, ends, spread, words, write

OURS = "ours"
"""How the source of claims begins that are not the paper's."""


@dataclass(frozen=True)
class Judged:
    """A condition as it was judged: a row of the frame with the words for it.

    Args:
        row: of the frame of verdicts, by column.
        says: the compared quantity, as the start of a sentence.
        unit: of `numbers.WRITE`.
    """

    row: Mapping[str, Any]
    says: Sentence
    unit: str

    @property
    def value(self) -> float:
        """The estimate; NaN where it is not defined."""
        return math.nan if self.row["estimate"] is None else float(self.row["estimate"])

    @property
    def number(self) -> Number:
        """The estimate with its interval."""
        key = ("claim", "model", "unit", "condition", "part")
        name = "/".join(["verdicts", *(str(self.row[c]) for c in key if self.row[c] is not None)])
        return Number(name, self.value, self.row["low"], self.row["high"], self.unit, "verdicts")

    @property
    def written(self) -> str:
        """``12.3% [4.5%, 20.1%]``, a question mark where the interval has no end."""
        return f"{self.write(self.value)} {ends(self.number)}"

    def write(self, value: float) -> str:
        """A value of the compared quantity, as text."""
        return write(value, self.unit)

    @property
    def zone(self) -> tuple[float, float]:
        """The range in which the whole interval must lie to support the claim."""
        threshold = self.row["threshold"]
        if self.row["compare"] == "at_most":
            return -math.inf, threshold
        return threshold, math.inf


@dataclass(frozen=True)
class Finding:
    """One claim and how it fared.

    Args:
        id: as in the frame of verdicts.
        words: its entry in claims.yaml: ``title``: what is claimed; ``source``: where the paper
            claims it, of other claims it begins with `OURS`; ``figures``: the paper's first figure
            of it, if it has one of its own; ``opening``: the start of the `Sentence` on the result;
            ``unmeasured``: the sentence where nothing could be judged; ``rule``: a `Sentence`, when
            it counts as supported, with the thresholds; ``units``: the plural name of the units of
            a model, for their counts; ``cases``: the kind of the cases, ``model`` or ``family``.
        word: supported, contradicted, undecided or not measured: the claim as a whole.
        cases: model or family -> verdict.
        units: model or family -> the verdicts of its units.
        conditions: all of them.
        changes: setup -> the cases' verdicts with it, where they differ.
        parts: see `PARTS` -> the cases' verdicts by a part of the conditions.
        edits: edits other than the bypass, those with equal verdicts together, such as
            ``zero, mean`` -> the cases' verdicts under them, and by each of `parts`.
        short: of what there are too few for any outcome to support some condition, and how many;
            None: of nothing.
        lacks: what the study lacks to judge it; empty: nothing.
    """

    id: str
    words: Mapping[str, Any]
    word: str
    cases: Mapping[str, str]
    units: Mapping[str, Sequence[str]]
    conditions: Sequence[Judged]
    changes: Mapping[str, Sentence] = field(default_factory=dict)
    parts: Mapping[str, Sentence] = field(default_factory=dict)
    edits: Mapping[str, tuple[Sentence, Mapping[str, Sentence]]] = field(default_factory=dict)
    short: Sentence | None = None
    lacks: str = ""

    @property
    def of_paper(self) -> bool:
        """Whether it is a claim of the paper."""
        return not self.words["source"].startswith(OURS)

    @property
    def verdict(self) -> Sentence:
        """``supported in 3 of 4 models, undecided in 1`` or ``not measured``."""
        return counted(f"claims/{self.id}", list(self.cases.values()), self.words["cases"])

    @property
    def degree(self) -> str:
        """``all``, ``some`` or ``none`` of those measured; ``undecided``; ``unmeasured``."""
        verdicts = set(self.cases.values())
        if not verdicts:
            return "unmeasured"
        if SUPPORTED in verdicts:
            return "all" if verdicts == {SUPPORTED} else "some"
        return "none" if "contradicted" in verdicts else "undecided"

    @property
    def ranges(self) -> list[tuple[Sentence, Number]]:
        """Each compared quantity and its numbers, from the smallest to the largest."""
        compared: dict[str, list[Judged]] = {}
        for condition in self.conditions:
            compared.setdefault(condition.row["condition"], []).append(condition)
        numbers = []
        for name, same in compared.items():
            values, unit = [each.value for each in same], same[0].unit
            number = spread(f"claims/{self.id}/{name}", values, unit, "verdicts")
            numbers.append((same[0].says, number))
        return numbers

    @property
    def counts(self) -> list[tuple[str, Sentence]]:
        """Each model and the counts of its units; empty where each has one unit."""
        if all(len(units) == 1 for units in self.units.values()):
            return []
        return [
            (model, counted(f"claims/{self.id}/{model}", units))
            for model, units in self.units.items()
        ]


def counted(name: str, verdicts: Sequence[str], noun: str = "") -> Sentence:
    """``supported in 3 of 4 models, undecided in 1``; without a noun ``3 of 4 supported, …``."""
    total = Number(f"{name}/total", len(verdicts), unit=noun, table="verdicts")
    counts = [
        (value, Number(f"{name}/{value}", verdicts.count(value), unit=noun, table="verdicts"))
        for value in VALUES
        if value in verdicts or (value == SUPPORTED and not noun)
    ]
    nouns = {"family": "families"}.get(noun, f"{noun}s")
    source = _IN if noun else _OF
    return Sentence(source, {"counts": counts, "total": total, "noun": noun, "nouns": nouns})


_IN = (
    "{% for value, n in counts %}{{ ', ' if not loop.first }}{{ value }} in {{ n|count }}"
    "{% if loop.first %} of {{ total|plural(noun, nouns) }}{% endif %}"
    "{% else %}not measured{% endfor %}"
)
_OF = (
    "{% for value, n in counts %}{{ ', ' if not loop.first }}{{ n|count }}"
    "{% if loop.first %} of {{ total|count }}{% endif %} {{ value }}{% endfor %}"
)


_JUDGED = (
    "{{ rule }} Judged by {{ intervals|plural('interval') }} at {{ level }} each, which hold "
    "together with {{ joint|percent(none) }}."
)


def findings(
    verdicts: pl.DataFrame, evidence: pl.DataFrame, limits: Thresholds | None = None
) -> list[Finding]:
    """The claims in the order of the page."""
    limits = limits or Thresholds()
    told = words("claims.yaml")
    fills = {
        name: Number(f"thresholds/{name}", value, unit="threshold", table="params")
        for name, value in limits.model_dump().items()
    }
    fills["resists_points"] = Number("thresholds/points", 100 * limits.resists, table="params")
    made = []
    _, *edits = views.edits(verdicts)
    for name, said in told["claims"].items():
        of_claim = verdicts.filter(claim=name)
        rows = of_claim.filter(edit=IDENTITY)
        main = rows.filter(setup=MAIN)
        cases = _cases(main)
        conditions = [
            Judged(row, Sentence(label, fills), unit)
            for row in main.drop_nulls("condition").iter_rows(named=True)
            for label, unit in [told["conditions"][row["condition"]]]
        ]
        units = main.drop_nulls("unit").filter(pl.col("condition").is_null())
        rule = Sentence(said["rule"], fills)
        if conditions:
            level = conditions[0].row["level"]
            values = {
                "rule": rule,
                "intervals": Number(f"claims/{name}/intervals", len(conditions)),
                "level": Number(f"claims/{name}/level", level, unit="threshold"),
                "joint": Number("claims/confidence", 1 - limits.significance, unit=SHARE),
            }
            rule = Sentence(_JUDGED, values)
        case = said.get("cases", "model")
        opening = {"ratio": _ratio(evidence, name, cases)}
        own = {
            "cases": case,
            "units": "Late blocks",
            "unmeasured": f"No {case} of this study can tell: it takes {said.get('needs')}.",
            **said,
            "opening": Sentence(said.get("opening", ""), opening),
            "rule": rule,
        }
        overall = main.filter(pl.col("model").is_null())["verdict"].to_list()
        made.append(
            Finding(
                id=name,
                words=own,
                word=next(iter(overall), None) or "not measured",
                cases=cases,
                units={model: units.filter(model=model)["verdict"].to_list() for model in cases},
                conditions=conditions,
                changes={
                    sentence: counted(f"claims/{name}/{setup}", list(other.values()), case)
                    for setup, sentence in told["setups"].items()
                    if (other := _cases(rows.filter(setup=setup))) != cases
                },
                parts=_counted_parts(f"claims/{name}", _by_part(main), case),
                edits=_by_verdicts(name, of_claim, edits, case),
                short=_short(name, main, evidence),
                lacks="; ".join(main["lacks"].drop_nulls().unique(maintain_order=True)),
            )
        )
    return made


_SHORT = (
    "a condition needs what {{ needed|count }} independent {{ what }} tell, and those of "
    "{{ model }} tell as much as {{ known|count }}"
)


def _short(claim: str, rows: pl.DataFrame, evidence: pl.DataFrame) -> Sentence | None:
    """The condition that needs most independent samples, or documents, and how many there are."""
    lacking = rows.drop_nulls("needed").sort("needed", maintain_order=True)
    if not lacking.height:
        return None
    model, task, needed = lacking.select("model", "part", "needed").row(-1)
    own = evidence.filter(
        pl.col("quantity").is_in(("kept", "log_ratio")),
        recipe=model,
        task=task or views.MEMORIZATION,
    )
    known = math.floor(own["n_effective"].min())  # type: ignore[arg-type]
    numbers = {
        "needed": Number(f"claims/{claim}/needed", needed, unit="samples", table="verdicts"),
        "known": Number(f"claims/{claim}/known", known, unit="samples", table="evidence"),
    }
    what = f"documents of {task}" if task else "memorized samples"
    return Sentence(_SHORT, {**numbers, "what": what, "model": model})


PARTS = {
    "by the first token alone": pl.col("condition").str.ends_with(OF_FIRST),
    "by the whole suffix alone": ~pl.col("condition").str.ends_with(OF_FIRST),
    "without perplexity": pl.col("condition") != "perplexity_growth",
}
"""Part -> the conditions that belong to it."""


def _by_part(rows: pl.DataFrame) -> dict[str, dict[str, str]]:
    """Part -> model -> verdict, for `PARTS` that hold some of a claim's conditions and not all."""
    conditions = rows.drop_nulls("condition")
    made = {}
    for name, belongs in PARTS.items():
        if 0 < (part := conditions.filter(belongs)).height < conditions.height:
            _, models = by_unit_and_model(part, CLAIMS[rows["claim"][0]])
            made[name] = _cases(models.with_columns(unit=None))
    return made


def _by_verdicts(
    claim: str, rows: pl.DataFrame, edits: Sequence[str], case: str
) -> dict[str, tuple[Sentence, dict[str, Sentence]]]:
    """Edits with equal verdicts -> these, and those by a part that differ; named by the first."""
    alike: dict[Any, tuple[list[str], Sentence, dict[str, Sentence]]] = {}
    for edit in edits:
        under, place = rows.filter(edit=edit), f"claims/{claim}/{edit}"
        cases, parts = _cases(under), _by_part(under)
        verdicts = tuple(tuple(sorted(each.values())) for each in (cases, *parts.values()))
        if verdicts not in alike:
            differing = {name: part for name, part in parts.items() if part != cases}
            told = counted(place, list(cases.values()), case)
            alike[verdicts] = [], told, _counted_parts(place, differing, case)
        alike[verdicts][0].append(edit)
    return {", ".join(names): (told, parts) for names, told, parts in alike.values()}


def _counted_parts(
    place: str, parts: Mapping[str, Mapping[str, str]], case: str
) -> dict[str, Sentence]:
    return {
        name: counted(f"{place}/{name.replace(' ', '-')}", list(verdicts.values()), case)
        for name, verdicts in parts.items()
    }


def _cases(rows: pl.DataFrame) -> dict[str, str]:
    """Model or family -> its verdict."""
    models = rows.drop_nulls("model").filter(pl.col("unit").is_null())
    return dict(models.select("model", "verdict").iter_rows())


def _ratio(evidence: pl.DataFrame, claim: str, families: Mapping[str, str]) -> Number:
    """How many times the parameters of its smallest model the largest of each family has."""
    sized = evidence.filter(pl.col("family").is_in(list(families)))
    parameters = pl.col("parameters")
    ratios = sized.group_by("family").agg(ratio=parameters.max() / parameters.min())
    return spread(f"claims/{claim}/ratio", ratios["ratio"], "ratio", "evidence")


def crosswalk(
    judged: Sequence[Finding], sections: Mapping[str, Sequence[str]]
) -> list[tuple[Mapping[str, str], str, Finding | None]]:
    """Each entry of crosswalk.yaml with the numbers of our figures, and its claim.

    `sections`: heading -> the numbers of this page's figures below it.
    """
    by_figure = {finding.words.get("figures"): finding for finding in judged}
    rows = []
    for entry in words("crosswalk.yaml"):
        labels = sections.get(entry.get("section", ""), ())
        here = " to ".join(dict.fromkeys([labels[0], labels[-1]])) if labels else ""
        rows.append((entry, here, by_figure.get(re.split("[,–]", entry["figures"])[0])))
    return rows
