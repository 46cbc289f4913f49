"""The published statements of the theory, judged on what was measured; their words: theory.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from ruamel.yaml import YAML

from pipeline.analysis.theory import THEOREMS, Theory
from pipeline.report.numbers import SHARE, Number, Sentence, named, spread

GRAIN = 1e-9
"""A number may exceed its bound by this share, to allow for rounding."""

SATURATED = 0.9
"""Above this accuracy a curve flattens, so its slope no longer measures how storage grows."""

WORDS: Mapping[str, Any] = YAML(typ="safe").load(Path(__file__).with_name("theory.yaml"))


@dataclass(frozen=True)
class Statement:
    """A statement, and how often it holds here.

    Args:
        name: its numbers are named by it; unique.
        failures: number of cases in which it does not hold.
        cases: number of cases that were tested and in which it is defined; 0: none.
        values: the numbers and names that its words format.
        undefined: number of further cases, in which it is undefined, such as by a logarithm of a
            negative number.
        kind: its entry in theory.yaml; empty: `name`.
    """

    name: str
    failures: int
    cases: int
    values: Mapping[str, Any] = field(default_factory=dict)
    undefined: int = 0
    kind: str = ""

    @property
    def degree(self) -> str:
        """``all``, ``some`` or ``none`` of the cases; ``undefined``; ``unmeasured``."""
        if not self.cases:
            return "undefined" if self.undefined else "unmeasured"
        if not self.failures:
            return "all"
        return "some" if self.failures < self.cases else "none"

    @property
    def printed(self) -> bool:
        """Whether it is a statement of a source, and not one of ours."""
        return "source" in self._entry

    @property
    def source(self) -> str:
        """Where it is printed, or ``ours``."""
        return str(self._entry.get("source", "ours"))

    @property
    def text(self) -> Sentence:
        """As printed, or ours."""
        return self._words(self._entry["text"])

    @property
    def verdict(self) -> Sentence:
        """``holds in all 40``, ``fails in 3 of 40``, ``undefined in all 36``, ``not measured``."""
        return self._words(WORDS["verdict"])

    @property
    def evidence(self) -> Sentence:
        """How far it is off, with numbers; a counterexample where there is one."""
        return self._words(self._entry["evidence"])

    @property
    def corrected(self) -> Sentence | None:
        """The statement that holds instead, where there is one."""
        return self._words(self._entry["corrected"]) if "corrected" in self._entry else None

    @property
    def _entry(self) -> Mapping[str, str]:
        entry: Mapping[str, str] = WORDS["statements"][self.kind or self.name]
        return entry

    def _words(self, source: str) -> Sentence:
        counts = {key: Number("", getattr(self, key)) for key in ("failures", "cases", "undefined")}
        return Sentence(source, named({**counts, **self.values}, f"theory/{self.name}", "theory"))


def slack(bounds: pl.DataFrame, theorem: int, bound: str) -> Number:
    """The range over the models of the median of bound / measured change.

    Args:
        bounds: as in `theory.Theory`.
        theorem: 1 or 2.
        bound: a column, or of `theory.THEOREMS`.
    """
    measured = pl.col(THEOREMS[theorem]["change"])
    ratio = pl.col(THEOREMS[theorem].get(bound, bound)) / measured
    medians = bounds.filter(measured > 0).group_by("model").agg(ratio.median().alias("slack"))
    return ratios(medians["slack"])


def ratios(column: pl.Series) -> Number:
    """The range of some ratios, to two digits."""
    return spread("", column.drop_nulls(), "factor")


def violations(bounds: pl.DataFrame, column: str) -> tuple[int, int]:
    """The number of true values in a boolean column, and the number of all its values."""
    known = bounds[column].drop_nulls()
    return int(known.sum()), len(known)


def theorem_statements(bounds: pl.DataFrame) -> list[Statement]:
    """The statements about one bypassed block, in the order of the paper.

    Args:
        bounds: as in `theory.Theory`; with rows.
    """

    def judged(
        name: str, column: str, theorem: int, slacks: Mapping[str, str], **values: Number
    ) -> Statement:
        allowed = {key: slack(bounds, theorem, bound) for key, bound in slacks.items()}
        return Statement(name, *violations(bounds, column), {**allowed, **values})

    fails = {
        name: Number("", violations(bounds, f"printed_{name}_violated")[0])
        for name in ("generous", "normalized")
    }
    best = {"slack": "corrected", "coarse": "coarse"}
    weights = {"weights": "bound_from_weights"}
    return [
        judged("theorem-1", "printed_violated", 1, {"slack": "printed"}, **fails),
        judged("theorem-1-corrected", "violated", 1, best | weights),
        judged("theorem-2", "next_printed_violated", 2, {"slack": "printed"}),
        judged("theorem-2-proved", "next_proved_violated", 2, {"slack": "next_proved"}),
        judged("theorem-2-corrected", "next_violated", 2, best),
        *_growth(bounds),
    ]


def _growth(bounds: pl.DataFrame) -> Iterator[Statement]:
    moved = bounds.filter(pl.col("next_change").is_not_null())
    grown = moved.select(pl.col("next_change") / pl.col("change"))["next_change"]
    later = bounds.select(
        "model", "sample_id", pl.col("block").cast(pl.Int32) - 1, pl.col("change").alias("later")
    )
    pairs = moved.with_columns(pl.col("block").cast(pl.Int32)).join(
        later, on=["model", "sample_id", "block"], maintain_order="left"
    )
    median = Number("", grown.median(), unit="factor")  # type: ignore[arg-type]
    yield Statement("growth", int((grown <= 1).sum()), moved.height, {"median": median})
    yield Statement("order", int((pairs["next_change"] <= pairs["later"]).sum()), pairs.height)


def attention_only_statements(theory: Theory) -> list[Statement]:
    """The statements about attention-only transformers for which there are tables."""
    judges = {
        "associative": _associative,
        "low_rank": _low_rank,
        "lookup": _lookup,
        "constructive": _constructive,
        "attention_only": _trained,
    }
    return [
        statement
        for experiment, judge in judges.items()
        if (rows := theory.experiments.get(experiment, pl.DataFrame())).height
        for statement in judge(rows)
    ]


def routing(rows: pl.DataFrame) -> dict[str, dict[str, Number]]:
    """Accuracy before and after a bypass of the models that store in their heads or in their MLP.

    Args:
        rows: as `columns.ATTENTION_ONLY`.

    Returns:
        ``heads`` and ``mlp``, each with ``before`` and ``after``, means over seeds; empty unless
        both were trained.
    """
    rows = rows.filter(experiment="routing")
    attention_only = pl.col("architecture") == "attention-only"
    places = {"heads": attention_only, "mlp": ~attention_only & (pl.col("hidden") > 0)}
    means = {
        place: {
            key: Number("", rows.filter(chosen, quantity=name)["value"].mean(), unit=SHARE)  # type: ignore[arg-type]
            for key, name in (("before", "accuracy"), ("after", "bypassed_accuracy"))
        }
        for place, chosen in places.items()
    }
    known = [number.value is not None for pair in means.values() for number in pair.values()]
    return means if all(known) else {}


def lost_alike(stored: Mapping[str, Mapping[str, Number]]) -> bool:
    """Whether a bypass takes as much from the MLP's model as from the heads', or half of it."""
    heads, mlp = (
        (stored[place]["before"].value or 0) - (stored[place]["after"].value or 0)
        for place in ("heads", "mlp")
    )
    return mlp > 0 and mlp >= heads / 2


def above_lower_bound(rows: pl.DataFrame) -> pl.DataFrame:
    """Trained models to which the lower bound applies, with ``ratio``: accuracy over the bound.

    Args:
        rows: as `columns.ATTENTION_ONLY`.
    """
    model = ["vocabulary", "width", "heads", "head_width", "hidden", "seed"]
    bounded = rows.filter(pl.col("bound").is_not_null(), quantity="accuracy")
    ratio = (pl.col("value") / pl.col("bound")).alias("ratio")
    return bounded.unique(model, maintain_order=True).with_columns(ratio)


def _associative(rows: pl.DataFrame) -> Iterator[Statement]:
    held = rows.filter(pl.col("quantity").str.starts_with("capacity"), experiment="closed")
    curves = rows.filter(pl.col("predicted").is_not_null())
    means = held.group_by("quantity", "width").agg(pl.col("value").mean()).sort("width")
    pairs = {
        share: {
            str(width): Number("", mean, unit="pairs")
            for width, mean in means.filter(quantity=f"capacity_{share}")
            .select("width", "value")
            .iter_rows()
        }
        for share in ("50", "99")
    }
    off = (curves["value"] - curves["predicted"]).abs().mean()
    points = Number("", None if off is None else 100 * float(off), unit="points")  # type: ignore[arg-type]
    yield Statement("associative", _over(held), held.height, {"pairs": pairs, "off": points})


def _low_rank(rows: pl.DataFrame) -> Iterator[Statement]:
    for experiment in ("ls", "wls"):
        for reading in ("conditional", "joint"):
            part = rows.filter(experiment=experiment, statement=f"printed_{reading}")
            name, kind = f"low-rank-{experiment}-{reading}", f"low-rank-{experiment}"
            values = {"reading": reading, "gaps": _gaps(part)}
            yield Statement(name, _over(part), part.height, values, kind=kind)
    valid = rows.filter(~pl.col("statement").str.starts_with("printed"))
    by_name = {
        str(name): Number("", _median_ratio(part), unit="factor")
        for (name,), part in valid.group_by("statement", maintain_order=True)
    }
    yield Statement("low-rank-corrected", _over(valid), valid.height, {"ratios": by_name})


def _lookup(rows: pl.DataFrame) -> Iterator[Statement]:
    for statement in ("printed", "entropy_sign", "corrected"):
        part = rows.filter(statement=statement)
        undefined = part["bound"].null_count()
        values = {"all": Number("", part.height), "gaps": _gaps(part)}
        defined = part.height - undefined
        yield Statement(f"lookup-{statement}", _over(part), defined, values, undefined)


def _constructive(rows: pl.DataFrame) -> Iterator[Statement]:
    for experiment in ("chosen", "given"):
        solved = rows.filter(experiment=experiment, quantity="accuracy")
        claimed = solved.filter(pl.col("bound").is_not_null())
        beyond = solved.filter(pl.col("bound").is_null())
        failures = claimed.filter(pl.col("value") < pl.col("bound") - GRAIN).height
        right = beyond.filter(pl.col("value") > 1 - GRAIN).height
        values = {"right": Number("", right), "beyond": Number("", beyond.height)}
        yield Statement(f"constructive-{experiment}", failures, claimed.height, values)
    gaps = rows.filter(quantity="divergence_gap")
    largest = Number("", gaps["value"].max(), unit="nats")  # type: ignore[arg-type]
    share: dict[str, Any] = {"largest": largest, "gaps": _gaps(gaps)}
    yield Statement("constructive-share", _over(gaps), gaps.height, share)


def _trained(rows: pl.DataFrame) -> Iterator[Statement]:
    bounded = above_lower_bound(rows)
    failures = bounded.filter(pl.col("ratio") < 1 - GRAIN).height
    yield Statement("accuracy", failures, bounded.height, {"ratio": ratios(bounded["ratio"])})
    single, shared = (
        _exponents(rows, name).drop_nulls() for name in ("attention-only", "shared-bottleneck")
    )
    values: dict[str, Any] = {
        "single": spread("", single, "power"),
        "shared": spread("", shared, "power"),
        "saturated": Number("", SATURATED, unit=SHARE),
    }
    yield Statement("head-width", int((single.round() != 2).sum()), single.len(), values)
    stored = routing(rows)
    if stored:
        yield Statement("routing", int(lost_alike(stored)), 1, stored)


def _over(rows: pl.DataFrame) -> int:
    return int((rows["value"] > rows["bound"] * (1 + GRAIN)).sum())


def _median_ratio(rows: pl.DataFrame) -> float | None:
    return (rows["bound"] / rows["value"]).median()  # type: ignore[return-value]


def _gaps(rows: pl.DataFrame) -> Sentence:
    """How far the loss is above the bound where it is, and below it elsewhere."""
    known = rows.filter(pl.col("bound").is_not_null())
    fails = pl.col("value") > pl.col("bound") * (1 + GRAIN)
    over, under = known.filter(fails), known.filter(~fails)
    values = {
        "over": ratios(over["value"] / over["bound"]) if over.height else None,
        "under": Number("", _median_ratio(under), unit="factor") if under.height else None,
    }
    return Sentence(WORDS["gaps"], values)


def _exponents(rows: pl.DataFrame, architecture: str) -> pl.Series:
    """Slopes of log accuracy over log d_h, one per seed; correct guesses are subtracted."""
    part = rows.filter(experiment="head_width", architecture=architecture, quantity="accuracy")
    part = part.with_columns(pl.col("value") - 1 / pl.col("vocabulary"))
    part = part.filter(pl.col("value") > 0, pl.col("value") < SATURATED)
    slopes = [
        float(np.polyfit(np.log(one["head_width"]), np.log(one["value"]), 1)[0])
        for _, one in part.group_by("seed", maintain_order=True)
        if one["head_width"].n_unique() > 1
    ]
    return pl.Series(slopes, dtype=pl.Float64)
