"""Measures a few samples token by token, and how far each intervention moves the stream on them.

Shapes: V interventions, N samples, S suffix tokens, L blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from pipeline.interventions.interventions import BASELINE, Intervention
from pipeline.interventions.memory import Journal
from pipeline.interventions.tokenwise import Tokenwise, look
from pipeline.measure.chosen import chosen
from pipeline.measure.schemas import ATTENTION_CHANGE, DISPLACEMENT, TOKENS
from pipeline.workflow.tables import Schema, cast, empty

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
    seed: int = 0,
) -> Looked:
    """Measure the samples of `chosen` token by token under every intervention.

    Args:
        model: in evaluation mode, on any device.
        samples: as `tables.SAMPLES`; all of one prefix and one suffix length.
        interventions: V of them, the baseline among them.
        token_budget: as for `memorization.measure`.
        journal: records halved batches.
        seed: for the samples that are chosen at random.

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
    names = pl.DataFrame({"intervention": [each.name for each in interventions]})
    right = seen.greedy.numpy() == suffix
    whole = names["intervention"].to_list().index(BASELINE.name)
    why = shown(right, whole, some["split"].to_numpy() == "memorized", seed)
    described = some.select("sample_id", "split").with_columns(
        shown=pl.Series(why, dtype=pl.String)
    )
    blocks = pl.DataFrame(
        {"last": [max(each.blocks, default=None) for each in interventions]},
        schema={"last": pl.UInt16},
    )
    return Looked(
        _tokens(seen, suffix, names, described),
        _pairs(
            names.with_columns(block=blocks["last"]),
            described,
            seen.moved.numpy(),
            DISPLACEMENT,
        ),
        _pairs(
            pl.DataFrame({"block": range(len(seen.attention_change))}),
            described,
            seen.attention_change.numpy(),
            ATTENTION_CHANGE,
        ),
    )


def shown(
    right: NDArray[np.bool_], whole: int, memorized: NDArray[np.bool_], seed: int
) -> list[str | None]:
    """The reason to show each sample token by token, or None.

    Args:
        right: (V, N, S) whether the argmax is the true token.
        whole: the baseline's row of `right`.
        memorized: (N,) whether the sample is of that split; the others are control samples.
        seed: for the samples that are chosen at random.

    Returns:
        (N,) ``survives`` (recited by the baseline, most tokens right under the interventions),
        ``fragile`` (recited, fewest), ``rejoins`` (under most interventions a wrong token, and
        later right ones to the end), ``random``, each for memorized samples; ``control`` (the most
        predictable control samples); or None. Up to `_A_KIND` of each, without repetition.
    """
    edited = np.delete(right, whole, axis=0)
    survival = edited.mean((0, 2)) if len(edited) else right[whole].mean(-1)
    wrong_somewhere = ~edited.all(-1)
    last_run = np.cumprod(edited[..., ::-1], axis=-1).sum(-1)
    rejoins = (wrong_somewhere & (last_run >= max(1, right.shape[-1] // 4))).sum(0)
    recited = memorized & right[whole].all(-1)
    at_random = np.random.default_rng(seed).permutation(len(memorized))
    why: list[str | None] = [None] * len(memorized)
    for kind, among, order in (
        ("survives", recited, -survival),
        ("fragile", recited, survival),
        ("rejoins", memorized & (rejoins > 0), -rejoins),
        ("random", memorized, at_random),
        ("control", ~memorized, -right[whole].mean(-1)),
    ):
        free = [n for n in np.argsort(order, kind="stable") if among[n] and why[n] is None]
        for n in free[:_A_KIND]:
            why[n] = kind
    return why


def _tokens(
    seen: Tokenwise, suffix: NDArray[np.integer], names: pl.DataFrame, described: pl.DataFrame
) -> pl.DataFrame:
    length = suffix.shape[1]
    positions = pl.DataFrame({"position": range(length)})
    # in a cross join the right side varies fastest: the order of a flattened (V, N, S)
    rows = names.join(described, how="cross", maintain_order="left_right").join(
        positions, how="cross", maintain_order="left_right"
    )
    columns = ("greedy", "log_prob", "rank", "entropy", "margin")
    values = {name: getattr(seen, name).flatten().numpy() for name in columns}
    values["token"] = np.tile(suffix.ravel(), len(names))
    return cast(rows.with_columns(pl.Series(k, v) for k, v in values.items()), TOKENS)


def _pairs(
    keys: pl.DataFrame, described: pl.DataFrame, values: NDArray[np.float64], schema: Schema
) -> pl.DataFrame:
    """Every row of `keys` with every sample, and beside them values (keys, N, 2)."""
    rows = keys.join(described, how="cross", maintain_order="left_right")
    first, others = (values[..., i].ravel() for i in (0, 1))
    return cast(
        rows.with_columns(
            pl.Series("first", first).fill_nan(None), pl.Series("others", others).fill_nan(None)
        ),
        schema,
    )
