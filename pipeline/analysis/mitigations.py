"""What each method removes and costs, whether it stays away, and what the design settles.

All intervals are at 95%, over clusters of items; changes are paired with the unmodified model, and
probes of durability with the twin, item by item.

Shapes: N items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.statistics import (
    Estimates,
    clustered_means,
    clustered_rates,
    paired_differences,
)
from pipeline.workflow.errors import bad_input
from pipeline.workflow.tables import Column, Schema, cast

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

KEPT_AT_MOST = 0.1
"""The share of the seen recitations that stays where a dose counts as removing them."""
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
KEY = ["split", "item"]


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
        recited = self.at("none").filter((pl.col("metric") == "recited") & (pl.col("value") > 0))
        lacking = {"forget_seen", "forget_held_out"} - set(recited["split"].to_list())
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
        return self.methods[method].filter((pl.col("probe") == "dose") & (pl.col("dose") == wanted))

    def doses(self, method: str) -> list[float]:
        """The doses, ascending."""
        frame = self.methods[method].filter(pl.col("probe") == "dose")
        return sorted(frame["dose"].unique().to_list())

    def removes(self, method: str) -> bool:
        """Whether the chosen dose removes enough of what the method saw."""
        seen = self.paired(method, "forget_seen", "recited")
        recited = seen.filter(pl.col("before") > 0)
        return bool(len(recited)) and float(_mean(recited["value"])) <= KEPT_AT_MOST

    def paired(
        self, method: str, split: str, metric: str, dose: float | None = None
    ) -> pl.DataFrame:
        """Items of a split with their values before (``before``) and after an edit (``value``)."""
        wanted = (pl.col("split") == split) & (pl.col("metric") == metric)
        before = self.at("none").filter(wanted).select(*KEY, pl.col("value").alias("before"))
        return self.at(method, dose).filter(wanted).join(before, on=KEY, maintain_order="left")

    def held_out(self, method: str) -> pl.DataFrame:
        """The probes of the held-out rows that the unmodified model recites."""
        recited = self.at("none").filter(
            (pl.col("split") == "forget_held_out")
            & (pl.col("metric") == "recited")
            & (pl.col("value") > 0)
        )
        edited = self.at(method).filter(pl.col("metric") == "recited")
        made = pl.concat(
            [edited.with_columns(pl.lit("edited").alias("probe")), self._probes(method)]
        )
        return made.join(recited.select(KEY), on=KEY, how="semi", maintain_order="left")

    def _probes(self, method: str) -> pl.DataFrame:
        return self.methods[method].filter(pl.col("probe") != "dose")


def mitigations(measured: Measured) -> pl.DataFrame:
    """Schema `MITIGATIONS`: every method, dose, split and metric."""
    rows = [
        {"model": measured.model, "method": method, "dose": dose, **row}
        | {"chosen": dose == measured.dose(method)}
        for method in measured.methods
        for dose in measured.doses(method)
        for row in _of_dose(measured, method, dose)
    ]
    return cast(pl.DataFrame(rows, infer_schema_length=None), MITIGATIONS)


def durability(measured: Measured) -> pl.DataFrame:
    """Schema `DURABILITY`: every method and probe, with verdicts against the twin."""
    rows = []
    for method in measured.methods:
        of_method = list(_probed(measured, method))
        of_method.append(_overall(of_method))
        named = {"model": measured.model, "method": method, "dose": measured.dose(method)}
        rows += [named | row for row in of_method]
    return cast(pl.DataFrame(rows, infer_schema_length=None), DURABILITY)


def claims(measured: Measured) -> pl.DataFrame:
    """Schema `CLAIMS`: each claim that the methods at hand can settle."""
    rows = [{"model": measured.model, **row} for row in _claims(measured)]
    return cast(pl.DataFrame(rows, schema=_types(CLAIMS)), CLAIMS)


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


def _of_dose(measured: Measured, method: str, dose: float) -> Iterator[dict[str, object]]:
    outcomes = measured.at(method, dose)
    for (split, metric), frame in outcomes.group_by(["split", "metric"], maintain_order=True):
        where = {"split": split, "metric": metric}
        if metric in ("flat_share", "likelihood", "min_k"):
            continue
        yield where | _row(_mean_of(frame))
        if metric == "price":
            continue
        both = measured.paired(method, str(split), str(metric), dose)
        if metric == "recited":
            recited = both.filter(pl.col("before") > 0)
            if len(recited):
                yield {"split": split, "metric": "kept"} | _row(_rates(recited), len(recited))
        elif method != "none":
            yield {"split": split, "metric": f"{metric}_change"} | _row(
                _change(both, shares=metric == "acc"), len(both)
            )
    if matched := _matched(measured, method, dose):
        yield {"split": "keep_matched", "metric": "kept"} | matched
    if method == "none":
        yield from _detected(measured)


def _matched(measured: Measured, method: str, dose: float) -> dict[str, object] | None:
    """What stays of recited rows of other kinds that were as likely as the rows to forget.

    Each held-out row is matched with the row to keep that is nearest in loss and not yet taken.
    """
    loss = {
        split: measured.paired("none", split, "loss").filter(_recited(measured, split))
        for split in ("forget_held_out", "keep_held_out")
    }
    left = dict(loss["keep_held_out"].select("item", "before").iter_rows())
    taken = []
    for wanted in loss["forget_held_out"]["before"].sort().to_list():
        if left:
            nearest = min(left, key=lambda item: abs(left[item] - wanted))
            del left[nearest]
            taken.append(nearest)
    if not taken:
        return None
    both = measured.paired(method, "keep_held_out", "recited", dose)
    chosen = both.filter(pl.col("item").is_in(taken))
    return _row(_rates(chosen), len(chosen))


def _recited(measured: Measured, split: str) -> pl.Expr:
    recited = measured.paired("none", split, "recited").filter(pl.col("before") > 0)
    return pl.col("item").is_in(recited["item"].to_list())


def _detected(measured: Measured) -> Iterator[dict[str, object]]:
    """The areas under the curve of three scores, for recited records against other windows."""
    outcomes = measured.at("none")
    records = outcomes.filter(pl.col("split").str.contains("forget|keep"))
    hit = records.filter((pl.col("metric") == "recited") & (pl.col("value") > 0)).select(KEY)
    for metric in ("flat_share", "likelihood", "min_k"):
        scored = outcomes.filter(pl.col("metric") == metric)
        positive = scored.join(hit, on=KEY, how="semi")["value"].to_numpy()
        for split in ("control", "text"):
            negative = scored.filter(pl.col("split") == split)["value"].to_numpy()
            if len(positive) > 1 and len(negative) > 1:
                found = area_under_curve(positive, negative)
                n = len(positive) + len(negative)
                yield {"split": split, "metric": f"auc_{metric}"} | _row(found, n)


# ------------------------------------------------------------------------- does it stay away


def _probed(measured: Measured, method: str) -> Iterator[dict[str, object]]:
    own = measured.held_out(method)
    twin = measured.held_out("twin") if "twin" in measured.methods else None
    at = ["probe", "x", "variant"]
    for (probe, x, variant), frame in own.group_by(at, maintain_order=True):
        if variant == "reference":
            continue
        row = {"probe": probe, "x": x, "variant": variant} | _row(_rates(frame), len(frame))
        verdict = None
        if probe == "edited":
            verdict = "untouched" if _number(row["low"]) > 0.5 else None
        elif probe not in ("undone", "relearning"):
            same = (pl.col("probe") == probe) & (pl.col("x") == x) & (pl.col("variant") == variant)
            reference = frame.with_columns(value=0.0) if twin is None else twin.filter(same)
            beyond = _change(_with_before(frame, reference), shares=True)
            verdict = _judged(float(beyond.low[0]), float(beyond.high[0]), SHARE_MARGIN)
        yield row | {"verdict": verdict}
    yield _relearned(own, twin)


def _relearned(own: pl.DataFrame, twin: pl.DataFrame | None) -> dict[str, object]:
    """The area between the curves of relearning of a model and its twin; of no twin that below."""
    curve = _areas(own.filter(pl.col("variant") == ""))
    other = curve.with_columns(value=0.0)
    if twin is not None:
        other = _areas(twin.filter(pl.col("variant") == "reference"))
    found = _change(_with_before(curve, other), shares=True)
    verdict = _judged(float(found.low[0]), float(found.high[0]), AREA_MARGIN)
    last = float(own.filter(pl.col("probe") == "relearning")["x"].to_numpy().max())
    where = {"probe": "relearning", "x": last, "variant": "area"}
    return where | _row(found, len(curve)) | {"verdict": None if twin is None else verdict}


def _overall(rows: list[dict[str, object]]) -> dict[str, object]:
    """The verdict of all probes together."""
    verdicts = [row["verdict"] for row in rows if row["verdict"] is not None]
    edited = next(row for row in rows if row["probe"] == "edited")
    if edited["verdict"] == "untouched":
        verdict = "untouched"
    elif _number(edited["high"]) >= 0.5:
        verdict = "undecided"
    elif "hidden" in verdicts:
        verdict = "hidden"
    else:
        verdict = "removed" if set(verdicts) == {"removed"} else "undecided"
    nothing = dict.fromkeys(INTERVAL)
    return {"probe": "all", "x": 0.0, "variant": "", **nothing, "verdict": verdict}


def _judged(low: float, high: float, margin: float) -> str:
    if low > margin:
        return "hidden"
    return "removed" if high < margin else "undecided"


def _areas(probes: pl.DataFrame) -> pl.DataFrame:
    """For each item the mean height of its curve of relearning over log(1 + steps)."""
    curve = probes.filter(pl.col("probe") == "relearning").sort("x")
    rows = []
    for (item, cluster), frame in curve.group_by(["item", "cluster"], maintain_order=True):
        steps = np.log1p(frame["x"].to_numpy())
        area = np.trapezoid(frame["value"].to_numpy(), steps) / steps[-1]
        rows.append((item, cluster, float(area)))
    schema = {"item": pl.UInt32, "cluster": pl.UInt32, "value": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row").sort("item")


def _with_before(own: pl.DataFrame, reference: pl.DataFrame) -> pl.DataFrame:
    before = reference.select("item", pl.col("value").alias("before"))
    return own.join(before, on="item", maintain_order="left")


# ------------------------------------------------------------------------- what is settled


def _claims(measured: Measured) -> Iterator[dict[str, object]]:
    text = partial(_cost, measured, split="text")
    for method in ("noise", "identity"):
        if {method, "kfac"} <= set(measured.methods):
            found, n, known = text(method, "kfac", 1.0)
            verdict = "undecided"
            if known and np.abs([found.low, found.high]).max() < FRONTIER:
                verdict = "supported"
            elif known and (found.low[0] > FRONTIER or found.high[0] < -FRONTIER):
                verdict = "contradicted"
            contrast = f"{method} minus kfac: loss of unseen text"
            yield _claim("A", contrast, found, n, FRONTIER, verdict)
    if {"coherent", "kfac"} <= set(measured.methods):
        found, n, known = text("coherent", "kfac", TENTH)
        contrast = "coherent minus a tenth of kfac: loss of unseen text"
        yield _claim("B", contrast, found, n, 0, _below(found, 0, known=known))
        found, n, known = _cost(measured, "coherent", "kfac", 1.0, split="control")
        contrast = "coherent minus kfac: loss of unseen records of the kinds to forget"
        yield _claim("B, same kind", contrast, found, n, 0, _below(found, 0, known=known))
    if {"balanced-subnet", "kfac"} <= set(measured.methods):
        found, n, known = text("kfac", "balanced-subnet", 1.0)
        contrast = "kfac minus balanced-subnet: loss of unseen text"
        yield _claim("order", contrast, found, n, 0, _below(found, 0, known=known))
    yield from _priced(measured)
    for row in _detected(measured):
        if row["metric"] == "auc_flat_share":
            found = Estimates(*(np.array([_number(row[end])]) for end in ("value", "low", "high")))
            against = {"control": "unseen records", "text": "unseen text"}[str(row["split"])]
            contrast = f"flat share: recited records against {against}"
            n = int(_number(row["n"]))
            yield _claim("D", contrast, found, n, DETECTS, _above(found, DETECTS))


def _cost(
    measured: Measured, method: str, other: str, factor: float, *, split: str
) -> tuple[Estimates, int, bool]:
    """The change of loss by a method minus a factor times that by another, at the chosen doses.

    Also the number of items, and whether both doses remove enough.
    """
    one, two = (measured.paired(each, split, "loss") for each in (method, other))
    both = one.join(two.select("item", pl.col("value").alias("other")), on="item")
    change = pl.col("value") - pl.col("before") - factor * (pl.col("other") - pl.col("before"))
    alone = both.with_columns(change.alias("value"), pl.lit(0.0).alias("before"))
    found = _change(alone, shares=False)
    return found, len(both), measured.removes(method) and measured.removes(other)


def _priced(measured: Measured) -> Iterator[dict[str, object]]:
    """The share of doses whose predicted price is within 10% of the measured change."""
    within = []
    for method in measured.methods:
        for dose in measured.doses(method):
            predicted = measured.at(method, dose).filter(pl.col("metric") == "price")["value"]
            both = measured.paired(method, "text", "loss", dose)
            change = _mean(both["value"]) - _mean(both["before"])
            if len(predicted) and abs(change) >= PRICED:
                within.append(abs(_mean(predicted) - change) <= TENTH * abs(change))
    if within:
        found = clustered_rates(np.array(within)[:, None], np.arange(len(within)))
        contrast = "doses whose price is predicted within 10%"
        yield _claim("C", contrast, found, len(within), 0.5, _above(found, 0.5))


def _above(found: Estimates, bound: float) -> str:
    if found.low[0] > bound:
        return "supported"
    return "contradicted" if found.high[0] < bound else "undecided"


def _below(found: Estimates, bound: float, *, known: bool) -> str:
    if known and found.high[0] < bound:
        return "supported"
    return "contradicted" if known and found.low[0] > bound else "undecided"


def _claim(
    claim: str, contrast: str, found: Estimates, n: int, bound: float, verdict: str
) -> dict[str, object]:
    return {"claim": claim, "contrast": contrast, **_row(found, n)} | {
        "bound": float(bound),
        "verdict": verdict,
    }


# ------------------------------------------------------------------------- estimates


def _mean(values: pl.Series) -> float:
    return float(values.to_numpy().mean())


def _number(value: object) -> float:
    return float("nan") if value is None else float(str(value))


def _rates(frame: pl.DataFrame) -> Estimates:
    hits = frame["value"].to_numpy()[:, None] > 0
    return clustered_rates(hits, frame["cluster"].to_numpy())


def _mean_of(frame: pl.DataFrame) -> tuple[Estimates, int]:
    if frame["metric"][0] in ("recited", "acc"):
        return _rates(frame), len(frame)
    values = frame["value"].to_numpy()[:, None]
    return clustered_means(values, frame["cluster"].to_numpy()), len(frame)


def _change(both: pl.DataFrame, *, shares: bool) -> Estimates:
    """The mean of ``value`` minus that of ``before``, item by item; shares lie between 0 and 1."""
    values, before = (both[name].to_numpy()[:, None] for name in ("value", "before"))
    groups, scale = both["cluster"].to_numpy(), np.ones(1) if shares else None
    return paired_differences(values, before, groups, 0, draws=1, scale=scale)


def _row(found: Estimates | tuple[Estimates, int], n: int | None = None) -> dict[str, object]:
    estimate, count = found if isinstance(found, tuple) else (found, n)
    ends = (float(getattr(estimate, end)[0]) for end in ("value", "low", "high"))
    numbers = [None if np.isnan(end) else end for end in ends]
    return dict(zip(INTERVAL, [*numbers, count], strict=True))


def _types(schema: Schema) -> dict[str, pl.DataType | type[pl.DataType]]:
    return {name: column.dtype for name, column in schema.items()}
