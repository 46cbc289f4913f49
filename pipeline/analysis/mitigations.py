"""What each method removes and costs, whether it stays away, and what the design settles.

All intervals are at 95%, over clusters of items; changes are paired with the unmodified model, and
probes of durability with the twin, item by item.

Shapes: N items.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from pipeline.analysis.statistics import (
    LEVEL,
    Estimates,
    clustered_errors,
    clustered_means,
    clustered_rates,
    effective_number,
    paired_differences,
    reach,
)
from pipeline.mitigations.schema import REMOVED
from pipeline.workflow.errors import bad_input
from pipeline.workflow.tables import Column, Schema, boolean, dtypes, float64, string, uint32

INTERVAL: Schema = {
    "value": float64("estimate"),
    "low": float64("lower end of the 95% interval; null where unknown", nullable=True),
    "high": float64("upper end; null where unknown", nullable=True),
    "n": uint32("items"),
}
MITIGATIONS: Schema = {
    "model": string("model that was edited"),
    "method": string("none, random, twin, oracle, kfac, …"),
    "dose": float64("strength, in the method's unit"),
    "split": string("forget_seen, forget_held_out, keep_…, control, text, or a task"),
    "metric": string("recited, kept, loss, loss_change, price, acc, acc_change, auc_…"),
    **INTERVAL,
    "chosen": boolean("whether the dose is the one whose durability is measured"),
}
DURABILITY: Schema = {
    "model": string("model that was edited"),
    "method": string("as in the table of mitigations"),
    "dose": float64("the chosen one"),
    "probe": string("edited, sampling, int8, int4, relearning, prefix, undone, all"),
    "x": float64("tries, bits, steps, or tokens more of the prefix"),
    "variant": string("how the prefix changed; area; else empty"),
    **{n: Column(c.dtype, c.meaning, nullable=True) for n, c in INTERVAL.items()},
    "verdict": string("removed, hidden, untouched, undecided", nullable=True),
}
CLAIMS: Schema = {
    "model": string("model that was edited"),
    "claim": string("A, B, C, D, order, …: see docs/mitigation.md"),
    "contrast": string("what the value is"),
    **INTERVAL,
    "bound": float64("what the interval is compared with"),
    "verdict": string("supported, contradicted or undecided"),
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


def measured(model: str, methods: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """What was measured of all methods on one model, beside what it was before the edit.

    The methods' `OUTCOMES`, ``none`` among them, with model, method, ``chosen`` (whether the dose
    is that of the probes), ``before`` (the value of the unmodified model) and ``recited`` (whether
    it recites the row); the last two are null where it has no value.

    Raises:
        InputError: the unmodified model recites none of the rows to forget of either half.
    """
    known = methods["none"].filter(probe="dose").select(*KEY, "metric", before="value")
    recited = known.filter(metric="recited").select(*KEY, recited=pl.col("before") > 0)
    lacking = {"forget_seen", "forget_held_out"} - set(recited.filter("recited")["split"])
    if lacking:
        raise bad_input(
            f"{model}: {', '.join(sorted(lacking))}",
            "no row that it recites before the edit",
            "some rows that it recites, in both halves",
            "train it longer, plant the records more often, or name samples that it recites",
        )
    chosen = pl.col("dose") == pl.col("dose").filter(pl.col("probe") != "dose").first()
    found = pl.concat(
        outcomes.with_columns(model=pl.lit(model), method=pl.lit(method), chosen=chosen)
        for method, outcomes in methods.items()
    )
    found = found.join(known, on=[*KEY, "metric"], how="left", maintain_order="left")
    return found.join(recited, on=KEY, how="left", maintain_order="left")


def mitigations(found: pl.DataFrame) -> pl.DataFrame:
    """Schema `MITIGATIONS`: every method, dose, split and metric of what `measured` gives."""
    rows, taken = list[Row](), _matched(found)
    doses = found.filter(~pl.col("metric").is_in(SCORES), probe="dose")
    for named, own in _groups(doses, "method", "dose", "chosen"):
        rows += (named | row for row in _of_dose(own, taken))
        if named["method"] == "none":
            rows += (named | row for row in _detected(found))
    return _table(found, rows, MITIGATIONS)


def durability(found: pl.DataFrame) -> pl.DataFrame:
    """Schema `DURABILITY`: every method and probe, with verdicts against the method ``twin``.

    Without a twin nothing is expected to come back by other probes. What comes back by relearning
    may then be learned anew, so that it leaves the verdict undecided.
    """
    rows = list[Row]()
    of_probes = (pl.col("probe") != "dose") | (pl.col("metric") == "recited")
    held_out = found.filter(of_probes, "chosen", "recited", split="forget_held_out")
    unedited = held_out.filter(method="none", probe="relearning").sort("item", "x")
    endures = _mean(_areas(unedited.with_columns(twin=0.0)), "twin")["low"] > 0.5
    for named, own in _groups(held_out, "method", "dose"):
        of_method = list(_probed(own, held_out.filter(method="twin"), endures))
        rows += (named | row for row in (*of_method, _overall(of_method)))
    return _table(found, rows, DURABILITY)


def claims(found: pl.DataFrame) -> pl.DataFrame:
    """Schema `CLAIMS`: each claim that the methods at hand can settle."""
    return _table(found, _claims(found), CLAIMS)


TABLES = {
    "mitigations": (mitigations, MITIGATIONS),
    "durability": (durability, DURABILITY),
    "mitigation_claims": (claims, CLAIMS),
}
"""Name of the file -> what makes the table, and its schema."""


def area_under_curve(positive: pl.DataFrame, negative: pl.DataFrame) -> Row:
    """The probability that a positive is above a negative, with DeLong's error by cluster.

    The interval is widened as that of a share, so that it has a width even where all do.

    Source: DeLong et al. 1988; `statistics.reach`.
    """
    one, two = (side["value"].to_numpy() for side in (positive, negative))
    wins = (one[:, None] > two) + 0.5 * (one[:, None] == two)
    groups = [side["cluster"].to_numpy() for side in (positive, negative)]
    errors = [
        float(clustered_errors(wins.mean(1 - at)[:, None], own)[1][0])
        for at, own in enumerate(groups)
    ]
    value, fewest = float(wins.mean()), min(map(effective_number, groups))
    half = reach(math.hypot(*errors), fewest, 1.0, LEVEL)
    ends = max(value - half, 0.0), min(value + half, 1.0)
    return dict(zip(INTERVAL, (value, *ends, len(one) + len(two)), strict=True))


def _of_dose(own: pl.DataFrame, taken: list[int]) -> Iterator[Row]:
    """The rows of one dose of a method."""
    for at, part in _groups(own, "split", "metric"):
        metric = at["metric"]
        shares = metric in ("recited", "acc")
        yield at | _mean(part, shares=shares)
        if metric == "recited":
            if len(kept := part.filter("recited")):
                yield {**at, "metric": "kept", **_mean(kept)}
        elif own["method"][0] != "none" and metric != "price":
            yield {**at, "metric": f"{metric}_change", **_mean(part, "before", shares=shares)}
    if taken:
        matched = own.filter(pl.col("item").is_in(taken), split="keep_held_out", metric="recited")
        yield {"split": "keep_matched", "metric": "kept", **_mean(matched)}


def _matched(found: pl.DataFrame) -> list[int]:
    """Recited rows of other kinds that were as likely as the rows to forget.

    Each held-out row is matched with the row to keep that is nearest in loss and not yet taken.
    """
    loss = found.filter("recited", method="none", probe="dose", metric="loss")
    left = dict(loss.filter(split="keep_held_out").select("item", "value").iter_rows())
    taken: list[int] = []
    for wanted in loss.filter(split="forget_held_out")["value"].sort().head(len(left)):
        taken.append(min(left, key=lambda item: abs(left[item] - wanted)))
        del left[taken[-1]]
    return taken


def _detected(found: pl.DataFrame) -> Iterator[Row]:
    """The areas under the curve of three scores, for recited records against other windows.

    The recited ones are of the kinds to forget, as the unseen records are: a score that differs
    between kinds, as it does between the kinds that a method reads and others, shows no memory.
    """
    scores = found.filter(method="none", probe="dose")
    hit = scores.filter("recited", pl.col("split").str.starts_with("forget"))
    for metric in SCORES:
        positive = hit.filter(metric=metric)
        for split in ("control", "text"):
            negative = scores.filter(split=split, metric=metric)
            if len(positive) and len(negative):
                area = area_under_curve(positive, negative)
                yield {"split": split, "metric": f"auc_{metric}", **area}


def _probed(own: pl.DataFrame, twin: pl.DataFrame, endures: bool) -> Iterator[Row]:
    """The rows of one method; relearning is compared with the twin's in its other order.

    It shows no removal unless recitations of the unmodified model endure it.
    """
    learned = (pl.col("probe") == "relearning") & (pl.col("variant") == "")
    variant = pl.col("variant").replace("reference", "")
    expected = twin.filter(~learned).select("probe", "x", variant, "item", twin="value")
    own = own.filter(pl.col("variant") != "reference")
    own = own.join(expected, on=[*PROBE, "item"], how="left", maintain_order="left")
    if not len(twin):
        own = own.with_columns(twin=0.0)
    for at, part in _groups(own, *PROBE):
        row = at | _mean(part)
        if at["probe"] == "dose":
            row |= {"probe": "edited", "verdict": "untouched" if row["low"] > 0.5 else None}
        elif at["probe"] not in ("undone", "relearning"):
            row["verdict"] = _verdict(_mean(part, "twin"), SHARE_MARGIN, "removed", "hidden")
        yield row
    curve = own.filter(probe="relearning").sort("item", "x")
    area = {"x": curve["x"].max(), "variant": "area", **_mean(_areas(curve), "twin")}
    below, above = "removed" if endures else "undecided", "hidden" if len(twin) else "undecided"
    verdict = _verdict(area, AREA_MARGIN, below, above)
    yield {"probe": "relearning", **area, "verdict": verdict}


def _overall(rows: list[Row]) -> Row:
    """The verdict of all probes together."""
    verdicts = {row.get("verdict") for row in rows} - {None}
    most_left = next(row["high"] for row in rows if row["probe"] == "edited")
    verdict = "undecided"
    if "untouched" in verdicts:
        verdict = "untouched"
    elif most_left < 0.5 and "hidden" in verdicts:
        verdict = "hidden"
    elif most_left < 0.5 and verdicts == {"removed"}:
        verdict = "removed"
    return {"probe": "all", "x": 0.0, "variant": "", "verdict": verdict}


def _areas(curves: pl.DataFrame) -> pl.DataFrame:
    """For each item the mean height over log(1 + steps) of its curve, and of the twin's."""
    steps = np.log1p(curves["x"].unique().sort().to_numpy())
    heights = curves.select("value", "twin").to_numpy().reshape(-1, len(steps), 2)
    value, twin = np.trapezoid(heights, steps, axis=1).T / steps[-1]
    clusters = curves.gather_every(len(steps))["cluster"]
    return pl.DataFrame({"value": value, "twin": twin, "cluster": clusters})


def _claims(found: pl.DataFrame) -> Iterator[Row]:
    chosen = found.filter("chosen", probe="dose")
    seen = chosen.filter("recited", split="forget_seen", metric="recited")
    left = dict(seen.group_by("method").agg(pl.mean("value")).iter_rows())
    for claim, method, other, factor, split in CONTRASTS:
        if not {method, other} <= left.keys():
            continue
        of_other = other if factor == 1 else f"a tenth of {other}"
        contrast = f"{method} minus {of_other}: loss of unseen {SPLITS[split]}"
        row = _cost(chosen.filter(split=split), method, other, factor)
        judged, bound = row, 0.0
        if claim == "A":  # the size of the difference, of either sign
            low, high = row["low"], row["high"]
            judged, bound = {"low": max(low, -high), "high": max(high, -low)}, FRONTIER
        verdict = _verdict(judged, bound, "supported", "contradicted")
        if max(left[method], left[other]) > REMOVED:
            verdict = "undecided"
        yield {"claim": claim, "contrast": contrast, **row, "bound": bound, "verdict": verdict}
    yield from _priced(found.filter(probe="dose", split="text"))
    for row in _detected(found):
        if row["metric"] == "auc_flat_share":
            against = "text" if row["split"] == "text" else "records"
            contrast = f"flat share: recited records against unseen {against}"
            yield _above("D", contrast, row, DETECTS)


def _cost(chosen: pl.DataFrame, method: str, other: str, factor: float) -> Row:
    """The change of loss by a method minus a factor times that by another."""
    change = pl.col("value") - pl.col("before")
    one, two = (chosen.filter(method=each, metric="loss") for each in (method, other))
    own = one.select("item", "cluster", value=change)
    both = own.join(two.select("item", other=factor * change), on="item")
    return _mean(both, "other", shares=False)


def _priced(text: pl.DataFrame) -> Iterator[Row]:
    """The share of doses whose predicted price is within 10% of the measured change."""
    price = pl.col("value").filter(metric="price").mean()
    change = (pl.col("value") - pl.col("before")).filter(metric="loss").mean()
    doses = text.group_by("method", "dose", maintain_order=True).agg(price=price, change=change)
    doses = doses.drop_nulls("price").filter(pl.col("change").abs() >= PRICED)
    within = (pl.col("price") - pl.col("change")).abs() <= TENTH * pl.col("change").abs()
    if len(doses):
        share = _mean(doses.select(value=within, cluster=pl.int_range(pl.len())))
        yield _above("C", "doses whose price is predicted within 10%", share, 0.5)


def _above(claim: str, contrast: str, row: Row, bound: float) -> Row:
    verdict = _verdict(row, bound, "contradicted", "supported")
    return {**row, "claim": claim, "contrast": contrast, "bound": bound, "verdict": verdict}


def _verdict(row: Row, bound: float, below: str, above: str) -> str:
    """What is said where the whole interval lies below a bound, or above it."""
    if row["high"] < bound:
        return below
    return above if row["low"] > bound else "undecided"


def _groups(frame: pl.DataFrame, *keys: str) -> Iterator[tuple[Row, pl.DataFrame]]:
    """The values of the keys, and the rows that have them, in their order."""
    for values, part in frame.group_by(*keys, maintain_order=True):
        yield dict(zip(keys, values, strict=True)), part


def _table(found: pl.DataFrame, rows: Iterable[Row], schema: Schema) -> pl.DataFrame:
    named = [{"model": found["model"][0]} | row for row in rows]
    return pl.DataFrame(named, schema=dtypes(schema)).fill_nan(None)


def _mean(part: pl.DataFrame, than: str | None = None, *, shares: bool = True) -> Row:
    """The mean of ``value``, or of its difference from another column, item by item.

    Shares are values between 0 and 1.
    """
    values, groups = part["value"].to_numpy()[:, None], part["cluster"].to_numpy()
    found: Estimates
    if than:
        before, scale = part[than].to_numpy()[:, None], float(shares)
        found = paired_differences(values, before, groups, 0, draws=1, scale=scale)
    else:
        found = clustered_rates(values > 0, groups) if shares else clustered_means(values, groups)
    return dict(zip(INTERVAL, (*found.first, len(part)), strict=True))
