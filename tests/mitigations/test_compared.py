"""Intervals, verdicts and claims, from outcomes that are made by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from lxml.html import fromstring
from sklearn.metrics import roc_auc_score

from pipeline.analysis.mitigations import (
    CLAIMS,
    DURABILITY,
    MITIGATIONS,
    TABLES,
    area_under_curve,
    claims,
    durability,
    measured,
    mitigations,
)
from pipeline.mitigations.schemas import OUTCOMES
from pipeline.report.mitigations import write_page
from pipeline.workflow import tables

N = 80
"""Records of each split; item 0 of each is not recited by the unmodified model."""
STEPS = (0, 1, 10)
SPLITS = ("forget_seen", "forget_held_out", "keep_seen", "keep_held_out", "control", "text")


def outcomes(
    dose: float,
    recited: Mapping[str, int],  # split -> how many; 0 by default
    loss: Mapping[str, float],  # split -> mean; 1 by default
    *,
    sampled: int = 0,  # held-out records that 100 tries show
    curve: Sequence[int] = (0, 0, 0),  # held-out records that are recited after each of `STEPS`
    reference: Sequence[int] | None = None,  # the same of another order
    price: float | None = None,  # predicted for text
    detects: bool = False,  # add the scores of windows
) -> pl.DataFrame:
    """Outcomes with so many recited records, from item 1 on, and these mean losses."""
    random = np.random.default_rng(round(1000 * dose))
    noise = random.normal(0, 0.002, N)
    rows: list[tuple[object, ...]] = []

    def add(probe: str, x: float, variant: str, split: str, metric: str, values: object) -> None:
        for item, value in enumerate(np.asarray(values, float)):
            rows.append((probe, dose, x, variant, split, metric, item, item, value))

    def hits(count: int) -> object:
        return (np.arange(N) >= 1) & (np.arange(N) <= count)

    for at, split in enumerate(SPLITS):
        own = np.random.default_rng(at).normal(0, 0.1, N)  # of the items, the same for all methods
        add("dose", 0, "", split, "loss", loss.get(split, 1.0) + own + noise)
        if split != "text":
            add("dose", 0, "", split, "recited", hits(recited.get(split, 0)))
        if detects:
            for metric in ("flat_share", "likelihood", "min_k"):
                high = {"control": 0.0, "text": -3.0}.get(split, 0.0)
                add("dose", 0, "", split, metric, high + random.normal(0, 1, N))
    if price is not None:
        add("dose", 0, "", "text", "price", price + noise)
    add("sampling", 100, "", "forget_held_out", "extractable", hits(sampled))
    add("int4", 4, "", "forget_held_out", "recited", hits(0))
    for variant, heights in (("", curve), ("reference", reference)):
        for step, height in zip(STEPS, heights or (), strict=bool(heights)):
            add("relearning", step, variant, "forget_held_out", "recited", hits(height))
    return pl.DataFrame(rows, schema=tables.dtypes(OUTCOMES), orient="row")


MOST = N - 1
ALL = dict.fromkeys(SPLITS[:4], MOST)


@pytest.fixture(scope="module")
def methods() -> Mapping[str, pl.DataFrame]:
    kept = {"keep_seen": 60, "keep_held_out": 52}
    cost = {"text": 1.1, "control": 1.2, "forget_held_out": 4.0}
    return {
        "none": outcomes(0, ALL, {}, curve=(MOST, MOST, MOST), detects=True),
        "twin": outcomes(0, {}, {"forget_held_out": 5.0}, reference=(0, 0, 2)),
        "random": outcomes(0.5, ALL, {"text": 1.3}, curve=(MOST, MOST, MOST), price=0.302),
        "kfac": outcomes(0.5, kept, cost, curve=(0, 1, 2), price=0.101),
        "noise": outcomes(0.6, kept, {**cost, "text": 1.105}, curve=(0, 0, 1), price=0.3),
        "identity": outcomes(0.4, kept, {**cost, "text": 1.4}, sampled=12, price=0.41),
        "coherent": outcomes(
            0.02, ALL | {"forget_seen": 4, "forget_held_out": 6},
            {"text": 1.005, "control": 2.0}, sampled=74, curve=(6, 60, 76), price=0.005,
        ),
        "balanced-subnet": outcomes(0.1, ALL, {"text": 1.2}, price=0.1),
    }  # fmt: skip


@pytest.fixture(scope="module")
def found(methods: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    return measured("m", methods)


def only(frame: pl.DataFrame, **wanted: object) -> dict[str, object]:
    found = frame.filter(**wanted)
    assert found.height == 1, found
    return found.row(0, named=True)


def test_what_is_kept_and_what_it_costs(found: pl.DataFrame) -> None:
    made = mitigations(found)
    tables._check(made, "x", MITIGATIONS)
    kept = only(made, method="kfac", split="keep_held_out", metric="kept")
    assert (kept["value"], kept["n"]) == (52 / 79, 79)  # of those recited before
    assert kept["low"] < 52 / 79 < kept["high"]
    assert only(made, method="kfac", split="keep_held_out", metric="recited")["value"] == 52 / 80
    change = only(made, method="kfac", split="text", metric="loss_change")
    assert change["value"] == pytest.approx(0.1, abs=2e-3)
    assert change["low"] <= change["value"] <= change["high"]
    assert made.filter(method="none", metric="loss_change").is_empty()
    price = only(made, method="kfac", split="text", metric="price")
    assert price["value"] == pytest.approx(0.101, abs=1e-3)
    assert made.filter(method="twin")["chosen"].all()


def test_kept_rows_are_matched_by_their_loss_before(methods: Mapping[str, pl.DataFrame]) -> None:
    """The nearest row to keep for each of 20 held-out rows, in the order of their losses."""
    lost = (pl.col("split") == "forget_held_out") & (pl.col("metric") == "recited")
    lost &= pl.col("item") > 20
    none = methods["none"].with_columns(pl.when(lost).then(0.0).otherwise("value").alias("value"))
    loss = none.filter(pl.col("metric") == "loss", pl.col("item") > 0)
    left = dict(loss.filter(split="keep_held_out").select("item", "value").iter_rows())
    taken = []
    held_out = loss.filter(pl.col("item") <= 20, split="forget_held_out")
    for wanted in sorted(held_out["value"].to_list()):
        taken.append(min(left, key=lambda item: abs(left[item] - wanted)))
        del left[taken[-1]]
    made = mitigations(measured("m", {**methods, "none": none}))
    matched = only(made, method="kfac", split="keep_matched", metric="kept")
    assert (matched["value"], matched["n"]) == (sum(item <= 52 for item in taken) / 20, 20)


def test_the_verdicts_of_all_probes_and_of_each(found: pl.DataFrame) -> None:
    probed = durability(found)
    tables._check(probed, "x", DURABILITY)
    untouched = dict.fromkeys(("none", "random", "balanced-subnet"), "untouched")
    expected = {**untouched, "kfac": "removed", "twin": "removed", "coherent": "hidden"}
    told = {method: only(probed, method=method, probe="all")["verdict"] for method in expected}
    assert told == expected
    sampled = only(probed, method="coherent", probe="sampling")
    assert (sampled["value"], sampled["verdict"], sampled["n"]) == (74 / 79, "hidden", 79)
    assert only(probed, method="coherent", probe="int4")["verdict"] == "removed"
    assert only(probed, method="identity", probe="sampling")["verdict"] == "undecided"  # 12 of 79
    assert probed.filter(method="twin", variant="reference").is_empty()
    area = only(probed, method="coherent", probe="relearning", variant="area")
    steps = np.log1p(STEPS)
    heights = (np.array((6, 60, 76)) - np.array((0, 0, 2))) / 79
    whole = sum((heights[i] + heights[i + 1]) / 2 * (steps[i + 1] - steps[i]) for i in (0, 1))
    assert area["value"] == pytest.approx(whole / steps[-1])
    assert area["verdict"] == "hidden"


def test_without_a_twin_relearning_is_undecided(methods: Mapping[str, pl.DataFrame]) -> None:
    """All come back in one step of fine-tuning, and by no other probe; or none do."""
    again = {"returns": (0, MOST, MOST), "stays": (0, 0, 0)}
    edited = {name: outcomes(0.5, {}, {}, curve=curve) for name, curve in again.items()}
    known = {name: methods[name] for name in ("none", "coherent")}
    found = durability(measured("m", known | edited))
    verdicts = {name: only(found, method=name, probe="all")["verdict"] for name in edited}
    assert verdicts == {"returns": "undecided", "stays": "removed"}
    wrecked = outcomes(0, ALL, {}, curve=(MOST, 20, 0))  # by a learning rate that is too high
    found_then = durability(measured("m", known | edited | {"none": wrecked}))
    assert only(found_then, method="stays", probe="all")["verdict"] == "undecided"
    assert only(found_then, method="stays", variant="area")["verdict"] == "undecided"
    assert only(found, method="returns", variant="area")["verdict"] == "undecided"
    assert only(found, method="coherent", probe="sampling")["verdict"] == "hidden"


def scored(values: object, groups: object = None) -> pl.DataFrame:
    """Scores with their clusters; by default each is its own."""
    array = np.asarray(values, float)
    return pl.DataFrame(
        {"value": array, "cluster": np.arange(len(array)) if groups is None else groups}
    )


def test_the_area_under_the_curve_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    one, two = random.normal(0.5, 1, 400).round(1), random.normal(0, 1, 300).round(1)  # with ties
    found = area_under_curve(scored(one), scored(two))
    truth = np.r_[np.ones(400), np.zeros(300)]
    assert found["value"] == pytest.approx(roc_auc_score(truth, np.r_[one, two]))
    drawn = [
        roc_auc_score(truth, np.r_[random.choice(one, 400), random.choice(two, 300)])
        for _ in range(400)
    ]
    assert found["low"] == pytest.approx(np.quantile(drawn, 0.025), abs=0.01)
    assert found["high"] == pytest.approx(np.quantile(drawn, 0.975), abs=0.01)


def test_the_area_under_the_curve_claims_no_certainty() -> None:
    """Scores that are all above the others have an interval, and copies of a row tell nothing."""
    random = np.random.default_rng(0)
    one, two = random.normal(1, 1, 20), random.normal(0, 1, 30)
    apart = area_under_curve(scored(one + 9), scored(two))
    assert apart["value"] == apart["high"] == 1
    assert 1 - apart["low"] == pytest.approx(2.093**2 / 20, rel=1e-3)  # Student's, 19 degrees
    plain = area_under_curve(scored(one), scored(two))
    often = area_under_curve(
        scored(one.repeat(10), np.arange(20).repeat(10)),
        scored(two.repeat(10), np.arange(30).repeat(10)),
    )
    for end in ("value", "low", "high"):
        assert often[end] == pytest.approx(plain[end])


def test_claims(found: pl.DataFrame) -> None:
    made = claims(found)
    tables._check(made, "x", CLAIMS)
    by_contrast = dict(made.select("contrast", "verdict").iter_rows())
    assert by_contrast["noise minus kfac: loss of unseen text"] == "supported"
    assert by_contrast["identity minus kfac: loss of unseen text"] == "contradicted"
    assert by_contrast["coherent minus a tenth of kfac: loss of unseen text"] == "supported"
    same_kind = "coherent minus kfac: loss of unseen records of the kinds to forget"
    assert by_contrast[same_kind] == "contradicted"
    # BalancedSubnet removes nothing, so nothing is compared at equal recitation
    assert by_contrast["kfac minus balanced-subnet: loss of unseen text"] == "undecided"
    # five doses change the loss by .01 or more; noise and balanced-subnet are mispriced
    priced = only(made, claim="C")
    assert (priced["value"], priced["n"], priced["verdict"]) == (3 / 5, 5, "undecided")
    assert by_contrast["flat share: recited records against unseen records"] == "contradicted"
    assert by_contrast["flat share: recited records against unseen text"] == "supported"


def test_records_to_keep_do_not_move_the_area(methods: Mapping[str, pl.DataFrame]) -> None:
    """A score that is low for the kinds to keep says nothing of the memory of those to forget."""
    kept = pl.col("split").str.starts_with("keep") & (pl.col("metric") == "flat_share")
    moved = methods["none"].with_columns(pl.when(kept).then(-9.0).otherwise("value").alias("value"))
    areas = [
        mitigations(measured("m", {"none": none})).filter(split="control", metric="auc_flat_share")
        for none in (methods["none"], moved)
    ]
    assert areas[0].equals(areas[1])
    assert areas[0]["value"][0] == pytest.approx(0.5, abs=0.1)


def test_the_page_shows_every_method_and_verdict(found: pl.DataFrame, tmp_path: Path) -> None:
    made = {name: make(found) for name, (make, _) in TABLES.items()}
    for name, table in made.items():
        tables.write(table, tmp_path / f"{name}.parquet", TABLES[name][1], {})
    page = tmp_path / "mitigations.html"
    write_page("arena", tmp_path, page)
    document = fromstring(page.read_text(encoding="utf-8"))
    costs, durable, settled = document.xpath("//table")
    cells = [[td.text_content() for td in row.xpath("th|td")] for row in costs.xpath(".//tr")]
    methods = found["method"].unique(maintain_order=True).to_list()
    assert [row[0].split()[0] for row in cells[1:]] == methods
    unreached = {row[0].split()[0] for row in cells[1:] if "†" in row[0]}
    assert unreached == {"random", "balanced-subnet"}
    kfac = next(row for row in cells if row[0] == "kfac")
    assert kfac[1] == "0.5"
    assert kfac[3].startswith("65.8%")  # 52 of 79
    verdicts = {
        row.xpath("th")[0].text_content(): row.xpath("td")[0].text_content()
        for row in durable.xpath(".//tbody/tr")
    }
    overall = made["durability"].filter(probe="all")
    assert verdicts == dict(overall.select("method", "verdict").iter_rows())
    assert len(settled.xpath(".//tbody/tr")) == made["mitigation_claims"].height
    assert len(document.xpath("//svg")) == 2
    write_page("arena", tmp_path, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()
