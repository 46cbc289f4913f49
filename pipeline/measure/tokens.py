"""Measures a few samples token by token, and how far each intervention moves the stream on them.

Shapes: V interventions, N samples, S suffix tokens, L blocks.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions.certificates import CHECKS, certificates
from pipeline.interventions.interventions import BASELINE, Intervention
from pipeline.interventions.memory import Journal
from pipeline.interventions.tokenwise import look
from pipeline.measure.chosen import chosen
from pipeline.measure.schemas import ATTENTION_CHANGE, CERTIFICATES, DISPLACEMENT, TOKENS
from pipeline.workflow.tables import Schema, cast, crossed, empty

_BY_TOKEN = ("greedy", "log_prob", "rank", "entropy", "margin")
_A_KIND = 4
"""Samples to show of each kind."""


class Looked(NamedTuple):
    """The result of `measure`.

    Args:
        tokens: as `TOKENS`, V x N x S rows.
        displacement: as `DISPLACEMENT`, V x N rows.
        attention_change: as `ATTENTION_CHANGE`, L x N rows.
    """

    tokens: pl.DataFrame
    displacement: pl.DataFrame
    attention_change: pl.DataFrame


def measure(
    model: PreTrainedModel,
    samples: pl.DataFrame,
    interventions: Sequence[Intervention],
    token_budget: int | None = None,
    journal: Journal | None = None,
) -> Looked:
    """Measure the samples of `chosen` token by token under every intervention.

    Args:
        model: in evaluation mode, on any device.
        samples: as `SAMPLES`; all of one prefix and one suffix length.
        interventions: V of them, the baseline among them.
        token_budget: as for `memorization.measure`.
        journal: records halved batches.

    Returns:
        Rows by intervention or block, then by sample: memorized, then control.

    Raises:
        InputError: as for `completion.complete`.
    """
    some = chosen(samples)
    if some.is_empty():
        return Looked(*(empty(schema) for schema in (TOKENS, DISPLACEMENT, ATTENTION_CHANGE)))
    every = torch.tensor(samples["tokens"].to_list())
    tokens = torch.tensor(some["tokens"].to_list())
    length = int(samples["suffix_length"][0])
    seen = look(model, tokens, length, interventions, every, token_budget, journal)
    suffix = tokens[:, -length:].numpy()
    names = pl.DataFrame({"intervention": [one.name for one in interventions]})
    baseline_index = names["intervention"].to_list().index(BASELINE.name)
    right = seen.greedy.numpy() == suffix
    reasons = shown(right, baseline_index, some["split"].to_numpy() == "memorized")
    described = some.select("sample_id", "split").with_columns(
        shown=pl.Series(reasons, dtype=pl.String)
    )
    last_edited = [max(one.blocks, default=None) for one in interventions]
    values = {name: getattr(seen, name).flatten().numpy() for name in _BY_TOKEN}
    values["token"] = np.tile(suffix.ravel(), len(names))
    by_token = crossed(names, described, pl.DataFrame({"position": range(length)}))
    blocks = pl.DataFrame({"block": range(len(seen.attention_change))})
    return Looked(
        cast(by_token.with_columns(pl.Series(k, v) for k, v in values.items()), TOKENS),
        _first_and_others(
            names.with_columns(block=pl.Series(last_edited, dtype=pl.UInt16)),
            described,
            seen.moved,
            DISPLACEMENT,
        ),
        _first_and_others(blocks, described, seen.attention_change, ATTENTION_CHANGE),
    )


def certified(model: PreTrainedModel) -> pl.DataFrame:
    """The certificates of the edits that a model was run with, as `CERTIFICATES`."""
    rows = [{**asdict(each), "passed": [*CHECKS]} for each in certificates(model)]
    return cast(pl.DataFrame(rows), CERTIFICATES) if rows else empty(CERTIFICATES)


def shown(
    right: NDArray[np.bool_], baseline_index: int, memorized: NDArray[np.bool_]
) -> list[str | None]:
    """The reason to show each sample token by token, or None.

    Args:
        right: (V, N, S) whether the argmax is the true token.
        baseline_index: the baseline's row of `right`.
        memorized: (N,) whether the sample is of that split; the others are control samples.

    Returns:
        (N,) ``survives`` (recited by the baseline, most tokens right under the interventions),
        ``fragile`` (recited, fewest), ``rejoins`` (under most interventions a wrong token, and
        later right ones to the end), ``random``, each for memorized samples; ``control`` (the most
        predictable control samples); or None. Up to `_A_KIND` of each, without repetition.
    """
    edited = np.delete(right, baseline_index, axis=0)
    survival = edited.mean((0, 2)) if len(edited) else right[baseline_index].mean(-1)
    wrong_somewhere = ~edited.all(-1)
    last_run = np.cumprod(edited[..., ::-1], axis=-1).sum(-1)
    rejoins = (wrong_somewhere & (last_run >= max(1, right.shape[-1] // 4))).sum(0)
    recited = memorized & right[baseline_index].all(-1)
    at_random = np.random.default_rng(0).permutation(len(memorized))
    why: list[str | None] = [None] * len(memorized)
    for kind, among, order in (
        ("survives", recited, -survival),
        ("fragile", recited, survival),
        ("rejoins", memorized & (rejoins > 0), -rejoins),
        ("random", memorized, at_random),
        ("control", ~memorized, -right[baseline_index].mean(-1)),
    ):
        free = [n for n in np.argsort(order, kind="stable") if among[n] and why[n] is None]
        for n in free[:_A_KIND]:
            why[n] = kind
    return why


def _first_and_others(
    keys: pl.DataFrame, described: pl.DataFrame, values: Tensor, schema: Schema
) -> pl.DataFrame:
    """Every row of `keys` with every sample, and beside them values (keys, N, 2)."""
    pairs = zip(("first", "others"), values.flatten(0, 1).unbind(-1), strict=True)
    columns = [pl.Series(name, value.numpy()).fill_nan(None) for name, value in pairs]
    return cast(crossed(keys, described).with_columns(columns), schema)
