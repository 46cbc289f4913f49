"""Runs every scorer on one planted model, and deletes the places that each names."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
import torch
from torch import Tensor

from pipeline.localization.planting import Planted
from pipeline.localization.schema import ORACLE, OWN_SCORERS, RANDOM
from pipeline.localization.scorers import SCORERS, Scorer, Subject, without
from pipeline.mitigations.rows import Rows, margins, recited
from pipeline.models.places import Place
from pipeline.workflow.errors import InputError, bad_input
from pipeline.workflow.own import load_own

HOW = "a function (model, memorized, control, places) that returns a finite number for each place"


def own_scorers(names: Sequence[str]) -> dict[str, Scorer]:
    """The functions of a study's own files.

    Raises:
        InputError: no such file in the folder, one that fails, or no function of four arguments.
    """
    found: dict[str, Scorer] = {}
    for name in names:
        refusal = _refusal(name)
        made: Any = load_own(name, OWN_SCORERS, refusal)
        try:
            inspect.signature(made).bind(None, None, None, None)
        except (TypeError, ValueError) as error:
            raise refusal(f"{type(made).__name__}: {error}") from error
        found[name] = made
    return found


def score(of: Subject, planted: Planted, own: Mapping[str, Scorer]) -> dict[str, list[float]]:
    """Scorer -> its score of each place, of those built in and those as of `own_scorers`.

    Raises:
        InputError: a scorer of the study's own fails, changes the model, or returns anything else
            than a finite number for each place.
    """
    rng = random.Random(planted.name)  # noqa: S311 - reproducible, not secret
    found = {
        ORACLE: [float(place.name in planted.places) for place in of.places],
        RANDOM: [rng.random() for _ in of.places],
    }
    for name, scorer in SCORERS.items():
        if planted.grid in scorer.grids:
            for quantity, values in scorer.score(of).items():
                found[f"{name}.{quantity}" if quantity else name] = [*values]
    return found | {name: _of_own(name, function, of) for name, function in own.items()}


def _of_own(name: str, function: Scorer, of: Subject) -> list[float]:
    refusal = _refusal(name)
    before = {key: value.clone() for key, value in of.model.state_dict().items()}
    try:
        values: Any = function(of.model, of.memorized, of.control, of.places)
        made = [float(v.detach() if isinstance(v, Tensor) else v) for v in values]
    except Exception as error:  # whatever a user's code raises
        raise refusal(f"{type(error).__name__}: {error}") from error
    if len(made) != len(of.places) or not all(map(math.isfinite, made)):
        wrong = [value for value in made if not math.isfinite(value)]
        raise refusal(f"{len(made)} scores for {len(of.places)} places, {len(wrong)} not finite")
    if not all(torch.equal(value, before[key]) for key, value in of.model.state_dict().items()):
        raise refusal("another model after the call: its weights were changed")
    return made


def _refusal(name: str) -> Callable[[str], InputError]:
    return lambda got: bad_input(
        f"the scorer {name}", got, HOW, "correct the file; docs/localization.md has an example"
    )


def scored(of: Subject, planted: Planted, own: Mapping[str, Scorer]) -> pl.DataFrame:
    """The scores as rows: place, is_truth, scorer, score."""
    rows = [
        (place.name, place.name in planted.places, scorer, value)
        for scorer, values in score(of, planted, own).items()
        for place, value in zip(of.places, values, strict=True)
    ]
    return pl.DataFrame(rows, schema=["place", "is_truth", "scorer", "score"], orient="row")


def removed(of: Subject, scores: pl.DataFrame) -> pl.DataFrame:
    """What remains of recitation and of accuracy without the places that each scorer names.

    It names its best places, as many as learned; the first of those with equal scores.

    Returns:
        scorer, places, and the four shares of `REMOVAL`.
    """
    by_name = {place.name: place for place in of.places}
    known: dict[tuple[str, ...], tuple[float, float]] = {(): shares(of, [])}
    rows = []
    for (scorer,), part in scores.group_by("scorer", maintain_order=True):
        best = part.sort("score", descending=True, maintain_order=True)["place"]
        chosen = tuple(sorted(best.head(int(part["is_truth"].sum()))))
        if chosen not in known:
            known[chosen] = shares(of, [by_name[name] for name in chosen])
        recitals, right = zip(known[()], known[chosen], strict=True)
        rows.append((scorer, " ".join(chosen), *recitals, *right))
    names = ("exact_match", "exact_match_left", "accuracy", "accuracy_left")
    return pl.DataFrame(rows, schema=["scorer", "places", *names], orient="row")


@torch.no_grad()
def shares(of: Subject, places: Sequence[Place]) -> tuple[float, float]:
    """Memorized rows that are recited, and tokens of control rows that are predicted."""
    with without(of.model, places):
        recitations = recited(of.model, of.memorized).double().mean()
        right = (margins(of.model, Rows(of.control.tokens, 1)) > 0).double().mean()
    return float(recitations), float(right)
