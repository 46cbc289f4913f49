"""What each method removes and costs, whether it stays away, and what the design settles.

All intervals are at 95%, over clusters of items; changes are paired with the unmodified model, and
probes of durability with the twin, item by item.

Shapes: N items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.statistics import (
    Estimates,
    clustered_means,
    clustered_rates,
    paired_differences,
)
from pipeline.mitigations.schema import REMOVED
from pipeline.workflow.errors import bad_input
from pipeline.workflow.tables import Column, Schema, cast, dtypes

INTERVAL: Schema = {
    "value": Column(pl.Float64, "estimate"),
    "low": Column(pl.Float64, "lower end of the 95% interval; null where unknown", nullable=True),
    "high": Column(pl.Float64, "upper end; null where unknown", nullable=True),
    "n": Column(pl.UInt32, "items"),
}
MITIGATIONS: Schema = {
    "model": Column(pl.String, "model that was edited"),
    "method": Column(pl.String, "none, random, twin, oracle, kfac, …"),
    "dose": Column(pl.Float64, "strength, in the method's unit"),
    "split": Column(pl.String, "forget_seen, forget_held_out, keep_…, control, text, or a task"),
    "metric": Column(pl.String, "recited, kept, loss, loss_change, price, acc, acc_change, auc_…"),
    **INTERVAL,
    "chosen": Column(pl.Boolean, "whether the dose is the one whose durability is measured"),
}
DURABILITY: Schema = {
    "model": Column(pl.String, "model that was edited"),
    "method": Column(pl.String, "as in the table of mitigations"),
    "dose": Column(pl.Float64, "the chosen one"),
    "probe": Column(pl.String, "edited, sampling, int8, int4, relearning, prefix, undone, all"),
    "x": Column(pl.Float64, "tries, bits, steps, or tokens more of the prefix"),
    "variant": Column(pl.String, "how the prefix changed; area; else empty"),
    **{n: Column(c.dtype, c.meaning, nullable=True) for n, c in INTERVAL.items()},
    "verdict": Column(pl.String, "removed, hidden, untouched, undecided", nullable=True),
}
CLAIMS: Schema = {
    "model": Column(pl.String, "model that was edited"),
    "claim": Column(pl.String, "A, B, C, D, order, …: see docs/mitigation.md"),
    "contrast": Column(pl.String, "what the value is"),
    **INTERVAL,
    "bound": Column(pl.Float64, "what the interval is compared with"),
    "verdict": Column(pl.String, "supported, contradicted or undecided"),
}

SHARE_MARGIN, AREA_MARGIN = 0.2, 0.1
"""What comes back beyond the twin, and the area between the curves of relearning, from which on a
text counts as hidden; an interval that lies below counts as removed."""
FRONTIER = 0.02
"""Nats a token of unseen text within which two methods count as equally expensive."""
PRICED = 0.01
"""Nats a token of measured change below which no price is judged."""
TENTH = 0.1
DETECTS = 0.9
"""The area under the curve from which on a score counts as telling two kinds of windows apart."""
SCORES = ("flat_share", "likelihood", "min_k")
"""Of windows, by which recited ones are to be told from others."""
KEY, PROBE = ["split", "item"], ["probe", "x", "variant"]
CONTRASTS = (
    ("A", "noise", "kfac", 1.0, "text"),
    ("A", "identity", "kfac", 1.0, "text"),
    ("B", "coherent", "kfac", TENTH, "text"),
    ("B, same kind", "coherent", "kfac", 1.0, "control"),
    ("order", "kfac", "balanced-subnet", 1.0, "text"),
)
"""Claim, a method, the other, the factor of its cost, and the split that both are to cost."""
SPLITS = {"text": "text", "control": "records of the kinds to forget"}


Row = dict[str, Any]
"""Of a table, by column; ends of intervals are NaN where unknown."""


@dataclass(frozen=True)
class Measured:
    """What was measured of all methods on one model.

    Args:
        model: its name.
        methods: method -> schema `OUTCOMES`; ``none`` is among them, and ``twin`` if there is one:
            without it, nothing is expected to come back, and relearning has no verdict.

    Raises:
        InputError: the unmodified model recites none of the rows to forget of either half.
    """

    model: str
    methods: Mapping[str, pl.DataFrame]

    def __post_init__(self) -> None:
        lacking = {"forget_seen", "forget_held_out"} - set(self.recited()["split"])
        if lacking:
            raise bad_input(
                f"{self.model}: {', '.join(sorted(lacking))}",
                "no row that it recites before the edit",
                "some rows that it recites, in both halves",
                "train it longer, plant the records more often, or name samples that it recites",
            )

    def dose(self, method: str) -> float:
        """The dose whose durability was measured."""
        return float(self._probes(method)["dose"][0])

    def at(self, method: str, dose: float | None = None) -> pl.DataFrame:
        """The outcomes of one dose; None: of the chosen one."""
        wanted = self.dose(method) if dose is None else dose
        return self.methods[method].filter(probe="dose", dose=wanted)

    def doses(self, method: str) -> list[float]:
        """The doses, ascending."""
        return sorted(self.methods[method].filter(probe="dose")["dose"].unique().to_list())

    def recited(self) -> pl.DataFrame:
        """The rows that the unmodified model recites."""
        return self.at("none").filter(pl.col("value") > 0, metric="recited")

    def removes(self, method: str) -> bool:
        """Whether the chosen dose removes enough of what the method saw."""
        seen = self.paired(method, "forget_seen", "recited").filter(pl.col("before") > 0)
        return bool(len(seen)) and _mean(seen["value"]) <= REMOVED

    def paired(
        self, method: str, split: str, metric: str, dose: float | None = None
    ) -> pl.DataFrame:
        """Items of a split with their values before (``before``) and after an edit (``value``)."""
        wanted = {"split": split, "metric": metric}
        before = self.at("none").filter(**wanted).select(*KEY, before="value")
        return self.at(method, dose).filter(**wanted).join(before, on=KEY, maintain_order="left")

    def held_out(self, method: str) -> pl.DataFrame:
        """The probes of the held-out rows that the unmodified model recites."""
        edited = self.at(method).filter(metric="recited").with_columns(probe=pl.lit("edited"))
        rows = self.recited().filter(split="forget_held_out")
        made = pl.concat([edited, self._probes(method)])
        return made.join(rows, on=KEY, how="semi", maintain_order="left")

    def _probes(self, method: str) -> pl.DataFrame:
        return self.methods[method].filter(pl.col("probe") != "dose")


def mitigations(measured: Measured) -> pl.DataFrame:
    """Schema `MITIGATIONS`: every method, dose, split and metric."""
    rows = [
        {"method": method, "dose": dose, "chosen": dose == measured.dose(method), **row}
        for method in measured.methods
        for dose in measured.doses(method)
        for row in _of_dose(measured, method, dose)
    ]
    return _table(measured, rows, MITIGATIONS)


def durability(measured: Measured) -> pl.DataFrame:
    """Schema `DURABILITY`: every method and probe, with verdicts against the twin."""
    rows: list[Row] = []
    for method in measured.methods:
        of_method = list(_probed(measured, method))
        named = {"method": method, "dose": measured.dose(method)}
        rows += [named | row for row in (*of_method, _overall(of_method))]
    return _table(measured, rows, DURABILITY)


def claims(measured: Measured) -> pl.DataFrame:
    """Schema `CLAIMS`: each claim that the methods at hand can settle."""
    return _table(measured, list(_claims(measured)), CLAIMS)


TABLES = {
    "mitigations": (mitigations, MITIGATIONS),
    "durability": (durability, DURABILITY),
    "mitigation_claims": (claims, CLAIMS),
}
"""Name of the file -> what makes the table, and its schema."""


def area_under_curve(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> Estimates:
    """The probability that a positive scores above a negative, with DeLong's interval.

    Args:
        positive: scores of the ones to be found.
        negative: scores of the others.

    Source: DeLong et al. 1988.
    """
    above = positive[:, None] > negative[None]
    wins = above + 0.5 * (positive[:, None] == negative[None])
    value = wins.mean()
    spread = wins.mean(1).var(ddof=1) / len(positive) + wins.mean(0).var(ddof=1) / len(negative)
    half = 1.96 * np.sqrt(spread)
    ends = np.clip([value - half, value + half], 0, 1)
    return Estimates(*(np.array([end]) for end in (value, *ends)))


# ------------------------------------------------------------------------- what is removed


def _of_dose(measured: Measured, method: str, dose: float) -> Iterator[Row]:
    outcomes = measured.at(method, dose).filter(~pl.col("metric").is_in(SCORES))
    for (split, metric), frame in outcomes.group_by(["split", "metric"], maintain_order=True):
        shares = metric in ("recited", "acc")
        yield {"split": split, "metric": metric, **_level(frame, shares=shares)}
        both = measured.paired(method, str(split), str(metric), dose)
        if metric == "recited":
            recited = both.filter(pl.col("before") > 0)
            if len(recited):
                yield {"split": split, "metric": "kept", **_level(recited)}
        elif method != "none" and metric != "price":
            yield {"split": split, "metric": f"{metric}_change", **_change(both, shares=shares)}
    yield from _matched(measured, method, dose)
    if method == "none":
        yield from _detected(measured)


def _matched(measured: Measured, method: str, dose: float) -> Iterator[Row]:
    """What stays of recited rows of other kinds that were as likely as the rows to forget.

    Each held-out row is matched with the row to keep that is nearest in loss and not yet taken.
    """
    loss = measured.at("none").filter(metric="loss")
    loss = loss.join(measured.recited(), on=KEY, how="semi", maintain_order="left")
    left = dict(loss.filter(split="keep_held_out").select("item", "value").iter_rows())
    taken = []
    for wanted in loss.filter(split="forget_held_out")["value"].sort().to_list():
        if left:
            taken.append(min(left, key=lambda item: abs(left[item] - wanted)))
            del left[taken[-1]]
    if taken:
        both = measured.paired(method, "keep_held_out", "recited", dose)
        kept = _level(both.filter(pl.col("item").is_in(taken)))
        yield {"split": "keep_matched", "metric": "kept", **kept}


def _detected(measured: Measured) -> Iterator[Row]:
    """The areas under the curve of three scores, for recited records against other windows."""
    hit = measured.recited().filter(pl.col("split").str.contains("forget|keep"))
    for metric in SCORES:
        scored = measured.at("none").filter(metric=metric)
        positive = scored.join(hit, on=KEY, how="semi")["value"].to_numpy()
        for split in ("control", "text"):
            negative = scored.filter(split=split)["value"].to_numpy()
            if len(positive) > 1 and len(negative) > 1:
                found = area_under_curve(positive, negative)
                row = _row(found, len(positive) + len(negative))
                yield {"split": split, "metric": f"auc_{metric}", **row}


# ------------------------------------------------------------------------- does it stay away


def _probed(measured: Measured, method: str) -> Iterator[Row]:
    own = measured.held_out(method)
    twin = measured.held_out("twin") if "twin" in measured.methods else None
    for key, frame in own.group_by(PROBE, maintain_order=True):
        at = dict(zip(PROBE, key, strict=True))
        if at["variant"] == "reference":
            continue
        row, verdict = _level(frame), None
        if at["probe"] == "edited":
            verdict = "untouched" if row["low"] > 0.5 else None
        elif at["probe"] not in ("undone", "relearning"):
            reference = frame.with_columns(value=0.0) if twin is None else twin.filter(**at)
            beyond = _change(_with_before(frame, reference), shares=True)
            verdict = _verdict(beyond, SHARE_MARGIN, "removed", "hidden")
        yield {**at, **row, "verdict": verdict}
    # the area between the curves of relearning of a model and its twin; of no twin that below
    curve = _areas(own.filter(variant=""))
    other = curve.with_columns(value=0.0)
    if twin is not None:
        other = _areas(twin.filter(variant="reference"))
    area = _change(_with_before(curve, other), shares=True)
    verdict = None if twin is None else _verdict(area, AREA_MARGIN, "removed", "hidden")
    last = own.filter(probe="relearning")["x"].max()
    yield {"probe": "relearning", "x": last, "variant": "area", **area, "verdict": verdict}


def _overall(rows: list[Row]) -> Row:
    """The verdict of all probes together."""
    verdicts = {row["verdict"] for row in rows} - {None}
    edited = next(row for row in rows if row["probe"] == "edited")
    verdict = "removed" if verdicts == {"removed"} else "undecided"
    if edited["verdict"] == "untouched":
        verdict = "untouched"
    elif edited["high"] >= 0.5:
        verdict = "undecided"
    elif "hidden" in verdicts:
        verdict = "hidden"
    return {"probe": "all", "x": 0.0, "variant": "", "verdict": verdict}


def _areas(probes: pl.DataFrame) -> pl.DataFrame:
    """For each item the mean height of its curve of relearning over log(1 + steps)."""
    curve = probes.filter(probe="relearning").sort("item", "x")
    steps = np.log1p(curve["x"].unique().sort().to_numpy())
    heights = curve["value"].to_numpy().reshape(-1, len(steps))
    items = curve.select("item", "cluster").unique(maintain_order=True)
    return items.with_columns(pl.Series("value", np.trapezoid(heights, steps) / steps[-1]))


def _with_before(own: pl.DataFrame, reference: pl.DataFrame) -> pl.DataFrame:
    before = reference.select("item", before="value")
    return own.join(before, on="item", maintain_order="left")


# ------------------------------------------------------------------------- what is settled


def _claims(measured: Measured) -> Iterator[Row]:
    for claim, method, other, factor, split in CONTRASTS:
        if not {method, other} <= set(measured.methods):
            continue
        of_other = other if factor == 1 else f"a tenth of {other}"
        contrast = f"{method} minus {of_other}: loss of unseen {SPLITS[split]}"
        row, bound = _cost(measured, method, other, factor, split), 0.0
        verdict = _verdict(row, bound, "supported", "contradicted")
        if claim == "A":
            bound, verdict = FRONTIER, "undecided"
            if max(abs(row["low"]), abs(row["high"])) < bound:
                verdict = "supported"
            elif row["low"] > bound or row["high"] < -bound:
                verdict = "contradicted"
        if not (measured.removes(method) and measured.removes(other)):
            verdict = "undecided"
        yield {"claim": claim, "contrast": contrast, **row, "bound": bound, "verdict": verdict}
    yield from _priced(measured)
    for row in _detected(measured):
        if row["metric"] == "auc_flat_share":
            against = {"control": "records", "text": "text"}[row["split"]]
            contrast = f"flat share: recited records against unseen {against}"
            yield _above("D", contrast, row, DETECTS)


def _cost(measured: Measured, method: str, other: str, factor: float, split: str) -> Row:
    """The change of loss by a method minus a factor times that by another, at the chosen doses."""
    one, two = (measured.paired(each, split, "loss") for each in (method, other))
    both = one.join(two.select("item", other="value"), on="item")
    change = pl.col("value") - pl.col("before") - factor * (pl.col("other") - pl.col("before"))
    return _change(both.with_columns(value=change, before=0.0), shares=False)


def _priced(measured: Measured) -> Iterator[Row]:
    """The share of doses whose predicted price is within 10% of the measured change."""
    within = []
    for method in measured.methods:
        for dose in measured.doses(method):
            predicted = measured.at(method, dose).filter(metric="price")["value"]
            both = measured.paired(method, "text", "loss", dose)
            change = _mean(both["value"]) - _mean(both["before"])
            if len(predicted) and abs(change) >= PRICED:
                within.append(abs(_mean(predicted) - change) <= TENTH * abs(change))
    if within:
        found = clustered_rates(np.array(within)[:, None], np.arange(len(within)))
        contrast = "doses whose price is predicted within 10%"
        yield _above("C", contrast, _row(found, len(within)), 0.5)


def _above(claim: str, contrast: str, row: Row, bound: float) -> Row:
    verdict = _verdict(row, bound, "contradicted", "supported")
    return {**row, "claim": claim, "contrast": contrast, "bound": bound, "verdict": verdict}


def _verdict(row: Row, bound: float, below: str, above: str) -> str:
    """What is said where the whole interval lies below a bound, or above it."""
    if row["high"] < bound:
        return below
    return above if row["low"] > bound else "undecided"


# ------------------------------------------------------------------------- estimates


def _table(measured: Measured, rows: list[Row], schema: Schema) -> pl.DataFrame:
    frame = pl.DataFrame(
        rows, schema={n: kind for n, kind in dtypes(schema).items() if n != "model"}
    )
    return cast(frame.with_columns(model=pl.lit(measured.model)).fill_nan(None), schema)


def _mean(values: pl.Series) -> float:
    return float(values.to_numpy().mean())


def _level(frame: pl.DataFrame, *, shares: bool = True) -> Row:
    """The mean of ``value``, or the share of items where it is above 0."""
    values, groups = frame["value"].to_numpy()[:, None], frame["cluster"].to_numpy()
    found = clustered_rates(values > 0, groups) if shares else clustered_means(values, groups)
    return _row(found, len(frame))


def _change(both: pl.DataFrame, *, shares: bool) -> Row:
    """The mean of ``value`` minus that of ``before``, item by item; shares lie between 0 and 1."""
    values, before = (both[name].to_numpy()[:, None] for name in ("value", "before"))
    groups = both["cluster"].to_numpy()
    found = paired_differences(values, before, groups, 0, draws=1, scale=float(shares))
    return _row(found, len(both))


def _row(found: Estimates, n: int) -> Row:
    ends = (float(getattr(found, end)[0]) for end in ("value", "low", "high"))
    return dict(zip(INTERVAL, (*ends, n), strict=True))
