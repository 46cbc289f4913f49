"""Does removed text stay away? Probes of an edited model, on the rows that no method has seen.

Sampling is not drawn but computed: a suffix of probability p appears within n tries with
probability 1 - (1 - p)^n; it counts as extracted from one half on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import polars as pl
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.measure.extraction import out_within
from pipeline.measure.mitigated import labelled
from pipeline.mitigations.parts import HELD_OUT, SEEN, Parts
from pipeline.mitigations.relearning import relearned
from pipeline.mitigations.rounding import BITS, quantized
from pipeline.mitigations.rows import Rows, log_probs, recited

TRIES = (1, 100, 10_000)
CHANGE = 4
"""The prefix is changed by the length of the suffix over this."""

Probe = tuple[str, float, str, str, Tensor]
"""Probe, x, variant, metric, and (N,) values of the held-out rows."""


def probes(
    model: PreTrainedModel,
    parts: Parts,
    seed: int,
    before: PreTrainedModel | None = None,
    reference: bool = False,
) -> pl.DataFrame:
    """Every probe of a model.

    Args:
        model: the edited one, in evaluation mode, on the CPU.
        parts: with the seen and the held-out rows to forget.
        seed: of the order of relearning.
        before: the model before the edit, whose weights are put back; None: this is left out.
        reference: whether this is the twin, which relearns in another order as well: the curve
            that all others, its own among them, are compared with.

    Returns:
        `OUTCOMES` without the dose.
    """
    held_out = parts.splits[HELD_OUT]
    found = list(_sampled(model, held_out.rows))
    found += [
        (f"int{bits}", float(bits), "", "recited", recited(quantized(model, bits), held_out.rows))
        for bits in BITS
    ]
    found += list(_prefixes(model, held_out.rows, seed))
    if before is not None:
        found.append(("undone", 0.0, "", "recited", recited(undone(model, before), held_out.rows)))
    orders = {"": seed} | ({"reference": seed + 1} if reference else {})
    for variant, order in orders.items():
        curve: list[Probe] = []
        relearned(model, parts.splits[SEEN].rows, order, _looking(curve, variant, held_out.rows))
        found += curve
    return pl.concat(
        labelled(held_out, HELD_OUT, metric, values.double()).with_columns(
            pl.lit(probe).alias("probe"), pl.lit(x).alias("x"), pl.lit(variant).alias("variant")
        )
        for probe, x, variant, metric, values in found
    )


@torch.no_grad()
def undone(model: PreTrainedModel, before: PreTrainedModel) -> PreTrainedModel:
    """A copy of an edited model in which the weights that differ are those before the edit.

    Weights that the edit has added are zero.
    """
    made = copy.deepcopy(model)
    weights = dict(before.named_parameters())
    for name, value in made.named_parameters():
        value.copy_(weights.get(name, torch.zeros_like(value)))
    return made


def changed_prefixes(rows: Rows, seed: int) -> Iterator[tuple[str, float, Rows]]:
    """The rows with other prefixes: name, change of the length, rows.

    Tokens of the suffix serve as more of the prefix, so where the prefix is longer or shifted, the
    suffix is shorter.
    """
    by = max(1, (rows.tokens.shape[1] - rows.first) // CHANGE)
    random = torch.Generator().manual_seed(seed)
    one = rows.tokens.clone()
    other = torch.randint(len(rows), (len(rows),), generator=random)
    middle = rows.first // 2
    one[:, middle] = rows.tokens[other, middle - 1]  # a token of these texts, from another place
    yield "longer", float(by), Rows(rows.tokens, rows.first + by)
    yield "shorter", float(-by), Rows(rows.tokens[:, by:], rows.first - by)
    yield "shifted", 0.0, Rows(rows.tokens[:, by:], rows.first)
    yield "one token changed", 0.0, Rows(one, rows.first)


@torch.no_grad()
def _sampled(model: PreTrainedModel, rows: Rows) -> Iterator[Probe]:
    scored = torch.cat([log_probs(model, part).double().sum(-1) for part in rows.batches()])
    for tries in TRIES:
        out = torch.from_numpy(out_within(scored.numpy(), tries))
        yield "sampling", float(tries), "", "extractable", out


def _prefixes(model: PreTrainedModel, rows: Rows, seed: int) -> Iterator[Probe]:
    for name, by, changed in changed_prefixes(rows, seed):
        yield "prefix", by, name, "recited", recited(model, changed)


def _looking(
    curve: list[Probe], variant: str, rows: Rows
) -> Callable[[int, PreTrainedModel], None]:
    def look(step: int, model: PreTrainedModel) -> None:
        curve.append(("relearning", float(step), variant, "recited", recited(model, rows)))

    return look
