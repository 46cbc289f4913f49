"""Runs every scorer on one planted model, and deletes the places that each names."""

import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

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
    for name, (scorer, grids) in SCORERS.items():
        if planted.grid in grids:
            for quantity, values in scorer(of).items():
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


def removed(
    of: Subject, scores: Mapping[str, Sequence[float]], count: int
) -> Iterator[dict[str, str | float]]:
    """What remains of recitation and of accuracy without the `count` best places of each scorer.

    Of those with equal scores the first are named. The scores are those of `score`.

    Yields:
        The columns of `REMOVAL` from ``scorer`` on.
    """
    whole, known = shares(of, []), dict[str, tuple[float, float]]()
    for scorer, values in scores.items():
        pairs = sorted(zip(values, of.places, strict=True), key=itemgetter(0), reverse=True)
        chosen = sorted((place for _, place in pairs[:count]), key=attrgetter("name"))
        names = " ".join(place.name for place in chosen)
        if names not in known:
            known[names] = shares(of, chosen)
        yield {
            "scorer": scorer,
            "places": names,
            "exact_match": whole[0],
            "exact_match_left": known[names][0],
            "accuracy": whole[1],
            "accuracy_left": known[names][1],
        }


@torch.no_grad()
def shares(of: Subject, places: Sequence[Place]) -> tuple[float, float]:
    """Memorized rows that are recited, and tokens of control rows that are predicted."""
    with without(of.model, places):
        recitations = recited(of.model, of.memorized).double().mean()
        right = (margins(of.model, Rows(of.control.tokens, 1)) > 0).double().mean()
    return float(recitations), float(right)
