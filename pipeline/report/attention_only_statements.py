"""The published statements about attention-only transformers, judged on measured numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from pipeline.analysis.text import number
from pipeline.analysis.theory import Theory
from pipeline.report.statements import Statement, times

SLIDES = "slides"
ARTICLE = "arXiv 2411.10115"

GRAIN = 1e-9
"""A number may exceed its bound by this share, to allow for rounding."""

SATURATED = 0.9
"""Above this accuracy a curve flattens, so its slope no longer measures how storage grows."""

_NOTHING = pl.DataFrame()


def attention_only_statements(theory: Theory) -> list[Statement]:
    """The statements about attention-only transformers for which there are tables."""
    made: list[Statement] = []
    for experiment, judge in (
        ("associative", _associative),
        ("low_rank", _low_rank),
        ("lookup", _lookup),
        ("constructive", _constructive),
        ("attention_only", _trained),
    ):
        rows = theory.experiments.get(experiment, _NOTHING)
        if rows.height:
            made += judge(rows)
    return made


def routing(rows: pl.DataFrame) -> dict[str, tuple[float, float]]:
    """Accuracy, unmodified and bypassed, of the models that store in their heads or in their MLP.

    Args:
        rows: as `columns.ATTENTION_ONLY`.

    Returns:
        ``heads`` and ``mlp``, where they were trained, each a mean over seeds.
    """
    rows = rows.filter(experiment="routing")
    own = pl.col("architecture") == "attention-only"
    found = {}
    for place, chosen in (("heads", own), ("mlp", ~own & (pl.col("hidden") > 0))):
        part = rows.filter(chosen)
        values = [
            part.filter(quantity=quantity)["value"].mean()
            for quantity in ("accuracy", "bypassed_accuracy")
        ]
        if None not in values:
            found[place] = (float(values[0]), float(values[1]))  # type: ignore[arg-type]
    return found


def lost_alike(found: dict[str, tuple[float, float]]) -> bool:
    """Whether a bypass takes as much from the MLP's model as from the heads', or half of it."""
    drops = {place: whole - bypassed for place, (whole, bypassed) in found.items()}
    return drops["mlp"] > 0 and drops["mlp"] >= drops["heads"] / 2


def above_lower_bound(rows: pl.DataFrame) -> pl.DataFrame:
    """Trained models to which the lower bound applies, with ``ratio``: accuracy over the bound.

    Args:
        rows: as `columns.ATTENTION_ONLY`.
    """
    model = ["vocabulary", "width", "heads", "head_width", "hidden", "seed"]
    spoken = rows.filter(pl.col("bound").is_not_null(), quantity="accuracy")
    ratio = (pl.col("value") / pl.col("bound")).alias("ratio")
    return spoken.unique(model, maintain_order=True).with_columns(ratio)


def _associative(rows: pl.DataFrame) -> Iterator[Statement]:
    held = rows.filter(pl.col("quantity").str.starts_with("capacity"), experiment="closed")
    curves = rows.filter(pl.col("predicted").is_not_null())
    evidence = [
        f"{share}% right: "
        + ", ".join(
            f"{mean:.0f} at D = {width}"
            for width, mean in held.filter(quantity=f"capacity_{share}")
            .group_by("width")
            .agg(pl.col("value").mean())
            .sort("width")
            .iter_rows()
        )
        for share in (50, 99)
    ]
    off = (curves["value"] - curves["predicted"]).abs().mean()
    yield Statement(
        "A sum of outer products stores “only d” pairs",
        SLIDES,
        _over(held),
        held.height,
        f"Pairs, {'; '.join(evidence)}.",
        "about D² / (2 ln N) pairs of which half are right; the accuracy that we predict is off by "
        f"{number(round(100 * float(off), 1) if off is not None else None)} points on average",  # type: ignore[arg-type]
    )


def _low_rank(rows: pl.DataFrame) -> Iterator[Statement]:
    formulas = {
        "ls": ("f_ls loses at most N‖π‖² σ² + (N‖π‖)^{3/2} σ³", "σ²/4, or the variance bound"),
        "wls": (
            "f_wls loses at most ‖π‖ σ² + (‖π‖/‖π‖₋)^{3/2} σ³",
            "a quarter of the squares of all singular values left out",
        ),
    }
    for experiment, (formula, corrected) in formulas.items():
        for reading in ("conditional", "joint"):
            part = rows.filter(experiment=experiment, statement=f"printed_{reading}")
            yield Statement(
                f"{formula}, with ‖π‖ the largest {reading} probability",
                SLIDES,
                _over(part),
                part.height,
                _gaps(part),
                corrected,
            )
    valid = rows.filter(~pl.col("statement").str.starts_with("printed"))
    by_name = ", ".join(
        f"{name} {times([_median_ratio(part)])}"
        for (name,), part in valid.group_by("statement", maintain_order=True)
    )
    yield Statement(
        "Our three bounds on the loss of a map of low rank",
        "ours",
        _over(valid),
        valid.height,
        f"Median of bound over loss: {by_name}.",
        printed=False,
    )


def _lookup(rows: pl.DataFrame) -> Iterator[Statement]:
    words = {
        "printed": (
            "Low entropy: the loss is at most E[(1 − π_g) log((N − 1)/(e^{−H} − 1))] (1 + 4C)/"
            "(1 − 2C)",
            "e^{H} − 1",
        ),
        "entropy_sign": (
            "the same with e^{H} − 1, and C = √(32 log(N + 1)/d)",
            "(1 + μ)/(1 − μ), with the coherence μ that is measured",
        ),
        "corrected": ("the same with the measured coherence", ""),
    }
    for statement, (text, corrected) in words.items():
        part = rows.filter(statement=statement)
        undefined = part["bound"].null_count()
        why = (
            f"Says nothing in {undefined:,} of {part.height:,} cases: a logarithm or a factor is "
            "undefined there. "
            if undefined
            else ""
        )
        yield Statement(
            text,
            SLIDES if statement == "printed" else "ours",
            _over(part),
            part.height - undefined,
            (why + _gaps(part)).strip(),
            corrected,
            undefined,
            printed=statement == "printed",
        )


def _constructive(rows: pl.DataFrame) -> Iterator[Statement]:
    for experiment, formula in (
        ("chosen", "H d_h + d sequences are stored exactly, the unembedding chosen too"),
        ("given", "H d_h sequences are stored exactly, whatever the unembedding"),
    ):
        solved = rows.filter(experiment=experiment, quantity="accuracy")
        claimed = solved.filter(pl.col("bound").is_not_null())
        beyond = solved.filter(pl.col("bound").is_null())
        yield Statement(
            formula,
            ARTICLE,
            int((claimed["value"] < claimed["bound"] - GRAIN).sum()),
            claimed.height,
            f"With more sequences than that, all are right in {_whole(beyond):,} of "
            f"{beyond.height:,} cases.",
            "H min(d_h, d)" + (" + d" if experiment == "chosen" else ""),
        )
    gaps = rows.filter(quantity="divergence_gap")
    largest = max(gaps["value"], default=None)
    yield Statement(
        "Built for all but a share ε, it differs from the best map by at most ε σ₁ C; no C is "
        "given, so judged with the largest range of the logits’ difference for σ₁ C",
        SLIDES,
        _over(gaps),
        gaps.height,
        f"The difference, here called loss, is at most {number(largest)} nats. {_gaps(gaps)}",
        "ε times that range",
    )


def _trained(rows: pl.DataFrame) -> Iterator[Statement]:
    spoken = above_lower_bound(rows)
    yield Statement(
        "Accuracy is at least 1/N + (1 − 1/N)(H d_h + d)/T₀, for the best transformer",
        ARTICLE,
        int((spoken["ratio"] < 1 - GRAIN).sum()),
        spoken.height,
        f"Trained models, which need not be the best, reach {times(spoken['ratio'].to_list())} "
        "the bound.",
        "H min(d_h, d) + d",
    )
    exponents = {
        architecture: _exponents(rows, architecture)
        for architecture in ("attention-only", "shared-bottleneck")
    }
    own, shared = exponents.values()
    yield Statement(
        "What is stored grows with the square of d_h",
        SLIDES,
        sum(round(each) != 2 for each in own),
        len(own),
        f"With projections of its own for every head it grows with d_h to the power of "
        f"{_span(own)} (one fit per seed, up to {SATURATED:.0%} accuracy); with one bottleneck for "
        f"all heads, {_span(shared)}.",
        "concave in d_h: a head has 4 d d_h parameters",
    )
    found = routing(rows)
    if len(found) == 2:
        (whole, bypassed), (other, other_bypassed) = found["heads"], found["mlp"]
        yield Statement(
            "A drop under bypass shows where a model stores what it knows",
            "a common reading",
            int(lost_alike(found)),
            1,
            f"Stored in the heads: {whole:.0%}, bypassed {bypassed:.0%}. Stored in the MLP, behind "
            f"a random head: {other:.0%}, bypassed {other_bypassed:.0%}.",
            "it shows that the answer depends on that attention",
        )


def _over(rows: pl.DataFrame) -> int:
    return int((rows["value"] > rows["bound"] * (1 + GRAIN)).sum())


def _whole(rows: pl.DataFrame) -> int:
    return int((rows["value"] > 1 - GRAIN).sum())


def _median_ratio(rows: pl.DataFrame) -> float:
    found = (rows["bound"] / rows["value"]).median()
    return float("nan") if found is None else float(found)  # type: ignore[arg-type]


def _gaps(rows: pl.DataFrame) -> str:
    """How far the loss is above the bound where it is, and below it elsewhere."""
    known = rows.filter(pl.col("bound").is_not_null())
    over = known.filter(pl.col("value") > pl.col("bound") * (1 + GRAIN))
    under = known.filter(pl.col("value") <= pl.col("bound") * (1 + GRAIN))
    parts = []
    if over.height:
        ratios = (over["value"] / over["bound"]).to_list()
        parts.append(f"Where it fails, the loss is {times(ratios)} the bound.")
    if under.height:
        ratio = number(float(f"{_median_ratio(under):.2g}"))
        where = "Elsewhere" if over.height else "In the median"
        parts.append(f"{where} the bound is {ratio} times the loss.")
    return " ".join(parts)


def _exponents(rows: pl.DataFrame, architecture: str) -> list[float]:
    """Slopes of log accuracy over log d_h, one per seed; correct guesses are subtracted."""
    part = rows.filter(experiment="head_width", architecture=architecture, quantity="accuracy")
    part = part.with_columns(pl.col("value") - 1 / pl.col("vocabulary"))
    part = part.filter(pl.col("value") > 0, pl.col("value") < SATURATED)
    found = []
    for _, one in part.group_by("seed", maintain_order=True):
        if one["head_width"].n_unique() > 1:
            x, y = np.log(one["head_width"].to_numpy()), np.log(one["value"].to_numpy())
            found.append(float(np.polyfit(x, y, 1)[0]))
    return found


def _span(values: list[float]) -> str:
    if not values:
        return "an unknown number"
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"
