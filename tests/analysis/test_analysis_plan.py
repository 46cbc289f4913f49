"""The page on the analysis plan says what the code does."""

import re

from pipeline.analysis.claims import CLAIMS
from pipeline.analysis.schema import Thresholds
from tests.project import ROOT, composed

PLAN = (ROOT / "docs" / "analysis-plan.md").read_text(encoding="utf-8")


def cells(heading: str) -> dict[str, list[str]]:
    """The rows of the table below a heading, by their first cell."""
    section = PLAN.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [
        line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_thresholds_are_those_of_code_and_params_and_precede_the_results_where_it_says_so() -> None:
    """The first run of the study tiny ended on 2026-11-21 at 13:26."""
    rows = cells("Thresholds")
    told = {name: float(row[0]) for name, row in rows.items()}
    assert told == Thresholds().model_dump() == composed("tiny")["statistics"]["thresholds"]
    for name, (_, since, before) in rows.items():
        assert (since < "2026-11-21 13:26") == (before == "yes"), name


def test_every_claim_has_its_dates() -> None:
    rows = cells("Rules")
    assert list(rows) == list(CLAIMS)
    for since, changed, why in rows.values():
        assert re.fullmatch(r"2026-\d\d-\d\d", since)
        assert since <= changed
        assert why
