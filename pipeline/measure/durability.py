"""Does removed text stay away? Probes of an edited model, on the rows that no method has seen.

Sampling is not drawn but computed: a suffix of probability p appears within n tries with
probability 1 - (1 - p)^n; it counts as extracted from one half on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import polars as pl
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from pipeline.measure.extraction import out_within
from pipeline.measure.mitigated import labelled, origin
from pipeline.mitigations.descent import descend
from pipeline.mitigations.rows import Rows, all_log_probs, log_probs, recited
from pipeline.mitigations.subject import HELD_OUT, SEEN, Parts

TRIES = (1, 100, 10_000)
CHANGE = 4
"""The prefix is changed by the length of the suffix over this."""
FORMATS = {8: GGMLQuantizationType.Q8_0, 4: GGMLQuantizationType.Q4_0}
"""Bits -> the format of GGUF, whose scales are float16."""
GROUP = 32
"""Neighbours within a row that share a scale."""
RATE, BATCH_ROWS = 1e-3, 16
"""Of relearning: learning rate, and rows of a step."""
STEPS = (0, 1, 2, 5, 10, 20, 50)
"""Steps of relearning after which the model is looked at."""


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

    suffixes = all_log_probs(model, rows).double().sum(-1).numpy()
    for tries in TRIES:
        out = torch.from_numpy(out_within(suffixes, tries))
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
    one, middle = rows.tokens.clone(), rows.first // 2
    known: Tensor = one.unique()  # type: ignore[no-untyped-call]
    by_another = torch.randint(1, len(known), (len(rows),), generator=random)
    at = torch.searchsorted(known, one[:, middle].contiguous()) + by_another
    one[:, middle] = known[at % len(known)]  # another token of these texts
    yield "longer", float(by), Rows(rows.tokens, rows.first + by)
    yield "shorter", float(-by), Rows(rows.tokens[:, by:], rows.first - by)
    yield "shifted", 0.0, Rows(rows.tokens[:, by:], rows.first)
    yield "one token changed", 0.0, Rows(one, rows.first)


def rounded(values: Tensor, bits: int) -> Tensor:
    """The values after rounding, float32, of the same shape.

    Args:
        values: (…, a multiple of `GROUP`).
        bits: 8 or 4.
    """
    plain = values.detach().float().cpu().contiguous().numpy()
    return torch.from_numpy(dequantize(quantize(plain, FORMATS[bits]), FORMATS[bits]))


def quantized(model: PreTrainedModel, bits: int) -> PreTrainedModel:
    """A copy whose matrices are rounded; embeddings, norms and biases stay, as does a matrix whose
    rows `GROUP` does not divide, or that is tied to an embedding.
    """
    made = copy.deepcopy(model)
    embeddings = {id(m.weight) for m in made.modules() if isinstance(m, nn.Embedding)}
    with torch.no_grad():
        for module in made.modules():
            if not isinstance(module, (nn.Linear, Conv1D)) or id(module.weight) in embeddings:
                continue
            weight = module.weight.T if isinstance(module, Conv1D) else module.weight
            if weight.shape[1] % GROUP == 0:
                weight.copy_(rounded(weight, bits))
    return made


def relearned(
    model: PreTrainedModel, rows: Rows, seed: int, steps: Sequence[int] = STEPS
) -> Iterator[tuple[int, PreTrainedModel]]:
    """Train a copy of the model on whole rows.

    Args:
        model: stays as it is.
        rows: the texts to learn; all their tokens but the first are scored.
        seed: of their order.
        steps: after which to look, ascending.

    Yields:
        The number of steps taken, and the copy, which the next step changes.
    """
    made, whole = copy.deepcopy(model), Rows(rows.tokens, 1)
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        return -log_probs(made, whole[whole.draw(BATCH_ROWS, generator)]).mean()

    for step in descend(made.parameters(), RATE, steps[-1], loss):
        if step in steps:
            yield step, made
