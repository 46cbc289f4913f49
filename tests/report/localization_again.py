"""How scorers fare where the place of a memory is known, from the table of their scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl

from pipeline.report.localization import PARTS, SCORERS  # the names of parts and scorers
from tests.report.reading import Line
from tests.report.verdicts_again import percent
from tests.report.written_again import plural, shares

Z = 1.959963984540054
"""Of a normal distribution, for an interval of 95%."""


def rate(share: float, n: int) -> tuple[float, float, float]:
    """A share of `n`, with Wilson's interval."""
    middle = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2)) / (1 + Z**2 / n)
    return share, max(0.0, middle - half), min(1.0, middle + half)


def graded(scores: pl.DataFrame) -> dict[tuple[str, str, str], tuple[int, float, float]]:
    """Part, scorer and quantity -> models, recall at 1, mean reciprocal rank."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    keys = ("part", "scorer", "quantity", "model")
    for [*key, _], rows in scores.group_by(keys, maintain_order=True):
        true = rows.filter(pl.col("block") == pl.col("planted"))["score"].item()
        above, equal = (rows["score"] > true).sum(), (rows["score"] == true).sum()
        ranks = range(above + 1, above + equal + 1)  # of equal scores the order is by lot
        first = 0.0 if above else 1 / equal
        each = (first, sum(1 / rank for rank in ranks) / equal)
        found.setdefault((key[0], key[1], key[2]), []).append(each)
    return {
        key: (len(each), *(sum(values) / len(each) for values in zip(*each, strict=True)))
        for key, each in found.items()
    }


def table(scores: pl.DataFrame) -> list[list[str]]:
    """Scorer by scorer."""
    found = graded(scores)
    parts = [part for part in PARTS if any(key[0] == part for key in found)]
    heads = [(f"{PARTS[part]}: recall at 1", "mean reciprocal rank") for part in parts]
    rows = [["scorer", *(word for each in heads for word in each)]]
    for (scorer, quantity), name in SCORERS.items():
        row = [name]
        for part in parts:
            if (part, scorer, quantity) in found:
                n, recall, reciprocal = found[part, scorer, quantity]
                _, low, high = rate(reciprocal, n)
                row += [shares(*rate(recall, n)), f"{reciprocal:.2f} ({low:.2f}–{high:.2f})"]
        rows += [row] if len(row) > 1 else []
    blocks = scores["block"].max() + 1
    by_lot = sum(1 / rank for rank in range(1, blocks + 1)) / blocks
    return [*rows, ["chance", *[percent(1 / blocks), f"{by_lot:.2f}"] * len(parts)]]


def best(scores: pl.DataFrame) -> str:
    """What the figure finds: of equal recalls that of the larger mean reciprocal rank."""
    found = graded(scores)
    (part, *scorer), (_, recall, _) = max(found.items(), key=lambda each: each[1][1:])
    chance = percent(1 / (scores["block"].max() + 1))
    return (
        f"The block that learned is named most often, in {percent(recall)} of the models, by "
        f"{SCORERS[scorer[0], scorer[1]]} where {PARTS[part]}; chance is {chance}."
    )


def lines(scores: pl.DataFrame) -> list[Line]:
    """The sentences of the section."""
    models = scores.select("model", "exact_match").unique()
    recited = models["exact_match"]
    ends = dict.fromkeys(percent(end) for end in (min(recited), max(recited)))
    told = [
        Line(
            f"In {plural(models.height, 'model')} one block alone learned",
            [f"these models recite {' to '.join(ends)} of the samples."],
        )
    ]
    found = graded(scores)
    fell = scores.filter(scorer="identity", quantity="exact_match").with_columns(
        here=pl.col("block") == pl.col("planted"),
        fell=pl.col("score") >= 0.5 * pl.col("exact_match"),
    )
    for part, name in PARTS.items():
        own = {key[1:]: each for key, each in found.items() if key[0] == part}
        if own:
            told.append(Line(f"Where {name}: ", _of_part(own, fell.filter(part=part))))
    others = fell.filter(~pl.col("here")).group_by("block").agg(pl.mean("fell")).sort("block")
    by_block = ", ".join(f"block {block} {percent(share)}" for block, share in others.iter_rows())
    here, other = _stopped(fell)
    told.append(
        Line(
            "One block of each model learned the memorized samples.",
            [f"recitals in {here} of the models.", f"does so in {other} of the cases."],
        )
    )
    return [*told, Line("The depth decides where", [f"the recitals at {by_block} of the time."])]


def _of_part(
    own: dict[tuple[str, ...], tuple[int, float, float]], fell: pl.DataFrame
) -> Sequence[str]:
    n, recall, _ = own["identity", "exact_match"]
    best_n, best, _ = max(own.values(), key=lambda each: each[1])
    here, other = _stopped(fell)
    return [
        f"names the block in {shares(*rate(recall, n))} of {plural(n, 'model')};",
        f"the best of {plural(len(own), 'scorer')} (",
        f") in {shares(*rate(best, best_n))}.",
        f"half of the recitals at {here} of the blocks that learned, and at {other} of those",
    ]


def _stopped(fell: pl.DataFrame) -> list[str]:
    """The share of bypasses that stop half of the recitals: of the learned block, of others."""
    return [
        shares(*rate(rows["fell"].mean(), rows.height))
        for rows in (fell.filter("here"), fell.filter(~pl.col("here")))
    ]


def data(scores: pl.DataFrame) -> pl.DataFrame:
    """The data of the figure."""
    blocks = scores["block"].max() + 1
    by_lot = sum(1 / rank for rank in range(1, blocks + 1)) / blocks
    rows = []
    for (part, scorer, quantity), (n, recall, reciprocal) in graded(scores).items():
        names = {"part": part, "scorer": scorer, "quantity": quantity, "n": n}
        means = {"recall": recall, "reciprocal": reciprocal}
        chances = {"recall_chance": 1 / blocks, "reciprocal_chance": by_lot}
        ends = {
            f"{name}_{end}": value
            for name, mean in means.items()
            for end, value in zip(("low", "high"), rate(mean, n)[1:], strict=True)
        }
        called = SCORERS[scorer, quantity]
        rows.append({**names, **means, **chances, **ends, "called": called})
    order = ("recall_low", "recall_high", "reciprocal_low", "reciprocal_high", "called")
    first = ("part", "scorer", "quantity", "n", "recall", "reciprocal")
    return pl.DataFrame(rows).select(*first, "recall_chance", "reciprocal_chance", *order)
