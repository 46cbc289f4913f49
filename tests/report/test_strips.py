"""The strips of the claims show what was judged."""

import json
import re

import pytest

from pipeline.analysis.evidence import evidence
from pipeline.analysis.findings import Finding, findings
from pipeline.analysis.verdicts import Verdict
from pipeline.report import strips
from tests.analysis import synthetic


@pytest.fixture(scope="module")
def judged(study: synthetic.Study) -> list[Finding]:
    return findings(evidence(study.models))


def _drawn(svg: str, name: str) -> int:
    path = re.search(rf'<path class="{name}" d="([^"]*)"', svg)
    return path[1].count("M") if path else 0


def test_every_condition_is_a_mark_of_its_verdict(judged: list[Finding]) -> None:
    seen = 0
    for finding in judged:
        for strip in strips.strips(finding):
            cells = [
                result
                for case in finding.cases
                for _, condition, result in case.cells
                if condition.label == strip.label
            ]
            for verdict, name in (
                (Verdict.SHOWN, "yes"),
                (Verdict.NOT_SHOWN, "no"),
                (Verdict.UNDECIDED, "open"),
            ):
                assert _drawn(strip.svg, name) == sum(each.verdict is verdict for each in cells)
            told = json.loads(strip.marks)
            written = [f"{each.written}: {each.verdict.value}" for each in cells]
            assert sorted(mark[4] for mark in told["marks"]) == sorted(written)
            seen += len(cells)
    assert seen > 50


def test_the_zone_is_where_an_interval_counts(judged: list[Finding]) -> None:
    """A mark inside the zone has a value that meets its threshold, and no other has."""
    for finding in judged:
        for strip in strips.strips(finding):
            zone = re.search(r'class="zone" d="M([\d.]+) \d+H([\d.]+)', strip.svg)
            assert zone
            left, right = float(zone[1]), float(zone[2])
            places = {mark[4]: mark[5] for mark in json.loads(strip.marks)["marks"]}
            for case in finding.cases:
                for _, condition, result in case.cells:
                    if condition.label != strip.label:
                        continue
                    x = places[f"{result.written}: {result.verdict.value}"]
                    low, high = result.zone
                    if abs(x - left) > 0.2 and abs(x - right) > 0.2:
                        assert (left < x < right) == (low <= result.value <= high)
                    if result.estimate and result.verdict is Verdict.SHOWN:
                        assert low <= result.estimate.low
                        assert result.estimate.high <= high


def test_a_claim_that_cannot_be_judged_has_no_strip() -> None:
    unmeasured = [each for each in findings(evidence([])) if not each.cases]
    assert unmeasured
    assert all(strips.strips(each) == [] for each in unmeasured)
