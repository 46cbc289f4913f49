"""The published statements of the theory, judged on what was measured; their words: theory.yaml."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from pipeline.analysis.statistics import GRAIN
from pipeline.analysis.theory import Theory, stored_in
from pipeline.report.numbers import Number, Sentence, named, words
from pipeline.report.plots.plot import count, extent, share

SATURATED = 0.9
"""Above this accuracy a curve flattens, so its slope no longer measures how storage grows."""

POWERS = (np.arange(10, 401) / 100).tolist()
"""Powers of d_h that are tried."""

WORDS: Mapping[str, Any] = words("theory.yaml")


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
    def words(self) -> Mapping[str, Sentence]:
        """Its sentences: text, verdict, evidence and, where there is one, corrected.

        The text is as printed, or ours; the verdict is such as ``fails in 3 of 40``; the evidence
        says how far it is off, with numbers, and may hold a counterexample; corrected is the
        statement that holds instead.
        """
        counts = {each: count(getattr(self, each)) for each in ("failures", "cases", "undefined")}
        values = named({**counts, **self.values}, f"theory/{self.name}", "theory")
        sources = {"verdict": WORDS["verdict"], **self._entry}
        return {key: Sentence(source, values) for key, source in sources.items()}

    @property
    def _entry(self) -> Mapping[str, str]:
        entry: Mapping[str, str] = WORDS["statements"][self.kind or self.name]
        return entry


def slack(bounds: pl.DataFrame, bound: str) -> Number:
    """The range over the models of the median of bound / measured change."""
    measured = pl.col("next_change" if bound.startswith("next_") else "change")
    ratio = pl.col(bound) / measured
    medians = bounds.filter(measured > 0).group_by("model").agg(slack=ratio.median())
    return extent(medians["slack"], "factor")


def theorem_statements(bounds: pl.DataFrame) -> list[Statement]:
    """The statements about one bypassed block, in the order of the paper."""

    def judged(name: str, column: str, slacks: Mapping[str, str], *fails: str) -> Statement:
        values = {key: slack(bounds, bound) for key, bound in slacks.items()}
        values |= {key: count(int(bounds[f"printed_{key}_violated"].sum())) for key in fails}
        return Statement(name, int(bounds[column].sum()), bounds[column].count(), values)

    best = {"slack": "bound", "coarse": "bound_a1", "weights": "bound_from_weights"}
    next_best = {"slack": "next_bound", "coarse": "next_bound_coarse"}
    # a change one block later, beside that of a bypass of this later block
    later = bounds.select("model", "sample_id", "block", later="change")
    moved = bounds.drop_nulls("next_change").with_columns(pl.col("block") + 1)
    pairs = moved.join(later, ["model", "sample_id", "block"], maintain_order="left")
    grown = pairs["next_change"] / pairs["change"]
    shrunk, ordered = int((grown <= 1).sum()), pairs["next_change"] > pairs["later"]
    median = Number("", grown.median(), unit="factor")  # type: ignore[arg-type]
    return [
        judged("theorem-1", "printed_violated", {"slack": "printed"}, "generous", "normalized"),
        judged("theorem-1-corrected", "violated", best),
        judged("theorem-2", "next_printed_violated", {"slack": "next_printed"}),
        judged("theorem-2-proved", "next_proved_violated", {"slack": "next_proved"}),
        judged("theorem-2-corrected", "next_violated", next_best),
        Statement("growth", shrunk, pairs.height, {"median": median}),
        Statement("order", int((~ordered).sum()), pairs.height),
    ]


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

    Returns:
        ``heads`` and ``mlp``, each with ``before`` and ``after``, means over seeds; empty unless
        both were trained.
    """
    means = stored_in(rows).group_by("stored_in", "quantity").agg(pl.mean("value"))
    found = {(place, quantity): value for place, quantity, value in means.iter_rows()}
    ends = {"before": "accuracy", "after": "bypassed_accuracy"}
    try:
        return {
            place: {key: share(found[place, name]) for key, name in ends.items()}
            for place in ("heads", "mlp")
        }
    except KeyError:
        return {}


def lost_alike(stored: Mapping[str, Mapping[str, Number]]) -> bool:
    """Whether a bypass takes as much from the MLP's model as from the heads', or half of it."""
    heads, mlp = (
        (stored[place]["before"].value or 0) - (stored[place]["after"].value or 0)
        for place in ("heads", "mlp")
    )
    return mlp > 0 and mlp >= heads / 2


def above_lower_bound(rows: pl.DataFrame) -> pl.DataFrame:
    """Trained models to which the lower bound applies.

    Added are ``ratio``, accuracy over the bound, and ``of_printed``, over that which is printed: in
    place of H min(K, D) + D it has H K + D.
    """
    model = ["vocabulary", "width", "heads", "head_width", "hidden", "seed"]
    bounded = rows.filter(quantity="accuracy").drop_nulls("bound")
    guess, known = 1 / pl.col("vocabulary"), _PRINTED + pl.col("width")
    share = (known / pl.col("vocabulary") ** 2).clip(upper_bound=1)  # of all pairs of tokens
    return bounded.unique(model, maintain_order=True).with_columns(
        ratio=pl.col("value") / pl.col("bound"),
        of_printed=pl.col("value") / (guess + (1 - guess) * share),
    )


_PRINTED = pl.col("heads").cast(pl.Int64) * pl.col("head_width")
"""H K, the sequences that the source says are stored with any unembedding."""


def _associative(rows: pl.DataFrame) -> Iterator[Statement]:
    held = rows.filter(pl.col("quantity").str.starts_with("capacity"), experiment="closed")
    means = held.group_by("quantity", "width").agg(pl.mean("value")).sort("quantity", "width")
    pairs: dict[str, dict[str, Number]] = {"50": {}, "99": {}}
    for quantity, width, mean in means.iter_rows():
        pairs[quantity.removeprefix("capacity_")][str(width)] = Number("", mean, unit="pairs")
    off = rows.select((pl.col("value") - pl.col("predicted")).abs().mean() * 100).item()
    yield _judged("associative", held, pairs=pairs, off=Number("", off, unit="points"))


def _low_rank(rows: pl.DataFrame) -> Iterator[Statement]:
    for experiment in ("ls", "wls"):
        for reading in ("conditional", "joint"):
            part = rows.filter(experiment=experiment, statement=f"printed_{reading}")
            kind = f"low-rank-{experiment}"
            yield _judged(f"{kind}-{reading}", part, kind, reading=reading, gaps=_gaps(part))
    valid = rows.filter(~pl.col("statement").str.starts_with("printed"))
    by_name = {
        str(name): _median_ratio(part)
        for (name,), part in valid.group_by("statement", maintain_order=True)
    }
    yield _judged("low-rank-corrected", valid, ratios=by_name)


def _lookup(rows: pl.DataFrame) -> Iterator[Statement]:
    for statement in ("printed", "entropy_sign", "corrected"):
        part = rows.filter(statement=statement)
        yield _judged(f"lookup-{statement}", part, all=count(part.height), gaps=_gaps(part))


def _constructive(rows: pl.DataFrame) -> Iterator[Statement]:
    for experiment in ("chosen", "given"):
        solved = rows.filter(experiment=experiment, quantity="accuracy")
        held = pl.col("sequences") <= _PRINTED + (pl.col("width") if experiment == "chosen" else 0)
        claimed, beyond = solved.filter(held), solved.filter(~held)
        failures = claimed.filter(pl.col("value") < 1 - GRAIN).height
        right = beyond.filter(pl.col("value") > 1 - GRAIN).height
        values = {"right": count(right), "beyond": count(beyond.height)}
        yield Statement(f"constructive-{experiment}", failures, claimed.height, values)
    gaps = rows.filter(quantity="divergence_gap")
    largest = Number("", gaps["value"].max(), unit="nats")  # type: ignore[arg-type]
    yield _judged("constructive-share", gaps, largest=largest, gaps=_gaps(gaps))


def _trained(rows: pl.DataFrame) -> Iterator[Statement]:
    ratio = above_lower_bound(rows)["of_printed"]
    failures = int((ratio < 1 - GRAIN).sum())
    yield Statement("accuracy", failures, ratio.len(), {"ratio": extent(ratio, "factor")})
    single, shared = (_exponents(rows, name) for name in ("attention-only", "shared-bottleneck"))
    values = {"single": extent(single, "power"), "shared": extent(shared, "power")}
    values["saturated"] = share(SATURATED)
    yield Statement("head-width", int((single.round() != 2).sum()), single.len(), values)
    if stored := routing(rows):
        yield Statement("routing", int(lost_alike(stored)), 1, stored)


def _judged(name: str, rows: pl.DataFrame, kind: str = "", **values: Any) -> Statement:
    """The statement that each value is at most its bound; it is undefined where that is null."""
    defined = rows.drop_nulls("bound")
    failures = defined.filter(_FAILS).height
    return Statement(name, failures, defined.height, values, rows.height - defined.height, kind)


_FAILS = pl.col("value") > pl.col("bound") * (1 + GRAIN)
"""A number may exceed its bound by rounding."""


def _median_ratio(rows: pl.DataFrame) -> Number:
    return Number("", (rows["bound"] / rows["value"]).median(), unit="factor")  # type: ignore[arg-type]


def _gaps(rows: pl.DataFrame) -> Sentence:
    """How far the loss is above the bound where it is, and below it elsewhere."""
    defined = rows.drop_nulls("bound")
    over, under = defined.filter(_FAILS), defined.filter(~_FAILS)
    values = {
        "over": extent(over["value"] / over["bound"], "factor") if over.height else None,
        "under": _median_ratio(under) if under.height else None,
    }
    return Sentence(WORDS["gaps"], values)


def _exponents(rows: pl.DataFrame, architecture: str) -> pl.Series:
    """The power p of d_h, one per seed, by which a d_h^p + b fits the accuracy best.

    The source fits the square, with a constant as here.
    """
    part = rows.filter(experiment="head_width", architecture=architecture, quantity="accuracy")
    part = part.filter(pl.col("value") < SATURATED)

    def apart(power: float, one: pl.DataFrame) -> float:
        terms = np.stack([one["head_width"] ** power, np.ones(one.height)], 1)
        fitted = terms @ np.linalg.lstsq(terms, one["value"], rcond=None)[0]
        return float(((fitted - one["value"].to_numpy()) ** 2).sum())

    fits = [
        min(POWERS, key=partial(apart, one=one))
        for _, one in part.group_by("seed", maintain_order=True)
        if one["head_width"].n_unique() > 2
    ]
    return pl.Series(fits, dtype=pl.Float64)
