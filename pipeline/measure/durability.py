"""Does removed text stay away? Probes of an edited model, on the rows that no method has seen.

Sampling is not drawn but computed: a suffix of probability p appears within n tries with
probability 1 - (1 - p)^n; it counts as extracted from one half on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import polars as pl
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.measure.extraction import out_within
from pipeline.measure.mitigated import labelled, origin
from pipeline.mitigations.parts import HELD_OUT, SEEN, Parts
from pipeline.mitigations.relearning import relearned
from pipeline.mitigations.rounding import FORMATS, quantized
from pipeline.mitigations.rows import Rows, log_probs, recited

TRIES = (1, 100, 10_000)
CHANGE = 4
"""The prefix is changed by the length of the suffix over this."""


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
    part, first = parts.splits[HELD_OUT], parts.splits[SEEN].rows
    rows, found = part.rows, list[pl.DataFrame]()

    def add(
        probe: str, x: float, values: Tensor, variant: str = "", metric: str = "recited"
    ) -> None:
        found.append(labelled(part, HELD_OUT, metric, values, probe, float(x), variant))

    with torch.no_grad():
        scored = torch.cat([log_probs(model, some).double().sum(-1) for some in rows.batches()])
    for tries in TRIES:
        out = torch.from_numpy(out_within(scored.numpy(), tries))
        add("sampling", tries, out, metric="extractable")
    for bits in FORMATS:
        add(f"int{bits}", bits, recited(quantized(model, bits), rows))
    for name, by, changed in changed_prefixes(rows, seed):
        add("prefix", by, recited(model, changed), name)
    if before is not None:
        add("undone", 0, recited(undone(model, before), rows))
    for variant, order in ({"": seed} | ({"reference": seed + 1} if reference else {})).items():
        for step, learner in relearned(model, first, order):
            add("relearning", step, recited(learner, rows), variant)
    return pl.concat(found)


@torch.no_grad()
def undone(model: PreTrainedModel, before: PreTrainedModel) -> PreTrainedModel:
    """A copy of an edited model in which the weights that differ are those before the edit."""
    made, weights = copy.deepcopy(model), origin(before, model)
    for name, value in made.named_parameters():
        value.copy_(weights[name])
    return made


def changed_prefixes(rows: Rows, seed: int) -> Iterator[tuple[str, float, Rows]]:
    """The rows with other prefixes: name, change of the length, rows.

    Tokens of the suffix serve as more of the prefix, so where the prefix is longer or shifted, the
    suffix is shorter.
    """
    by = max(1, (rows.tokens.shape[1] - rows.first) // CHANGE)
    random = torch.Generator().manual_seed(seed)
    one, known, middle = rows.tokens.clone(), rows.tokens.unique(), rows.first // 2
    by_another = torch.randint(1, len(known), (len(rows),), generator=random)
    at = torch.searchsorted(known, one[:, middle].contiguous()) + by_another
    one[:, middle] = known[at % len(known)]  # another token of these texts
    yield "longer", float(by), Rows(rows.tokens, rows.first + by)
    yield "shorter", float(-by), Rows(rows.tokens[:, by:], rows.first - by)
    yield "shifted", 0.0, Rows(rows.tokens[:, by:], rows.first)
    yield "one token changed", 0.0, Rows(one, rows.first)
