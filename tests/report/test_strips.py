"""The strips of the claims show what was judged."""

import json
import math
import re

import pytest

from pipeline.analysis.evidence import evidence
from pipeline.analysis.verdicts import CONTRADICTED, SUPPORTED, UNDECIDED, verdicts
from pipeline.report import strips
from pipeline.report.claims import Finding, findings
from pipeline.report.markup import plain
from tests.analysis import synthetic


@pytest.fixture(scope="module")
def judged(study: synthetic.Study) -> list[Finding]:
    rows = evidence(study.models)
    return findings(verdicts(rows), rows)


def test_every_condition_is_a_mark_of_its_verdict(judged: list[Finding]) -> None:
    seen = 0
    for finding in judged:
        for strip in strips.strips(finding):
            cells = [c for c in finding.conditions if plain(c.says) == strip.label]
            for verdict, name in ((SUPPORTED, "yes"), (CONTRADICTED, "no"), (UNDECIDED, "open")):
                count = sum(cell.row["verdict"] == verdict for cell in cells)
                assert strip.paths[name].count("M") == count
            told = json.loads(strip.marks)
            written = [f"{each.written}: {each.row['verdict']}" for each in cells]
            assert sorted(mark[4] for mark in told["marks"]) == sorted(written)
            seen += len(cells)
    assert seen > 50


def test_the_zone_is_where_an_interval_counts(judged: list[Finding]) -> None:
    """A mark inside the zone has a value that meets its threshold, and no other has."""
    for finding in judged:
        for strip in strips.strips(finding):
            zone = re.match(r"M([\d.]+) \d+H([\d.]+)", strip.paths["zone"])
            assert zone
            left, right = float(zone[1]), float(zone[2])
            places = {mark[4]: mark[5] for mark in json.loads(strip.marks)["marks"]}
            for cell in (c for c in finding.conditions if plain(c.says) == strip.label):
                if not math.isfinite(cell.value):
                    continue
                x = places[f"{cell.written}: {cell.row['verdict']}"]
                low, high = cell.zone
                if abs(x - left) > 0.2 and abs(x - right) > 0.2:
                    assert (left < x < right) == (low <= cell.value <= high)
                if cell.row["low"] is not None and cell.row["verdict"] == SUPPORTED:
                    assert low <= cell.row["low"]
                    assert cell.row["high"] <= high


def test_a_claim_that_cannot_be_judged_has_no_strip() -> None:
    nothing = evidence([])
    unmeasured = [each for each in findings(verdicts(nothing), nothing) if not each.cases]
    assert unmeasured
    assert all(strips.strips(each) == [] for each in unmeasured)
