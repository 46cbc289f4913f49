"""Does removed text stay away? Probes of an edited model, on the rows that no method has seen.

Sampling is not drawn but computed: a suffix of probability p appears within n tries with
probability 1 - (1 - p)^n; it counts as extracted from one half on.
"""

import copy
from collections.abc import Iterator

import polars as pl
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from pipeline.measure.extraction import out_within
from pipeline.measure.mitigated import labelled, origin
from pipeline.mitigations.descent import BATCH_ROWS, descend
from pipeline.mitigations.rows import Rows, all_log_probs, log_probs, recited
from pipeline.mitigations.schema import Relearning
from pipeline.mitigations.subject import HELD_OUT, SEEN, Parts
from pipeline.models.places import weight_of

TRIES = (1, 100, 10_000)
CHANGE = 4
"""The prefix is changed by the length of the suffix over this."""
FORMATS = {8: GGMLQuantizationType.Q8_0, 4: GGMLQuantizationType.Q4_0}
"""Bits -> the format of GGUF, whose scales are float16."""
GROUP = 32
"""Neighbours within a row that share a scale."""
LOOKS = (0, 1, 2, 5, 10, 20, 50, 100, 200)
"""Steps of relearning after which the model is looked at, and after the last one."""


def probes(
    model: PreTrainedModel,
    parts: Parts,
    seed: int,
    relearning: Relearning,
    before: PreTrainedModel | None = None,
    reference: bool = False,
) -> pl.DataFrame:
    """Every probe of an edited model, on the held-out rows to forget: `OUTCOMES` at a dose of 0.

    The seed is that of the order of relearning. Without a model before the edit, its weights are
    not put back. The twin is the reference: it relearns in another order as well, the curve that
    all others, its own among them, are compared with.
    """
    part, first = parts.splits[HELD_OUT], parts.splits[SEEN].rows
    rows, found = part.rows, list[pl.DataFrame]()

    def add(probe: str, x: float, values: Tensor, variant: str = "", of: str = "recited") -> None:
        found.append(labelled(part, HELD_OUT, of, values, (probe, x, variant)))

    suffixes = all_log_probs(model, rows).double().sum(-1).numpy()
    for tries in TRIES:
        out = torch.from_numpy(out_within(suffixes, tries))
        add("sampling", tries, out, of="extractable")
    for bits in FORMATS:
        add(f"int{bits}", bits, recited(quantized(model, bits), rows))
    for name, by, changed in changed_prefixes(rows, seed):
        add("prefix", by, recited(model, changed), name)
    if before is not None:
        add("undone", 0, recited(undone(model, before), rows))
    for order, variant in enumerate(("", "reference") if reference else ("",)):
        for step, learner in relearned(model, first, seed + order, relearning):
            add("relearning", step, recited(learner, rows), variant)
    return pl.concat(found)


def undone(model: PreTrainedModel, before: PreTrainedModel) -> PreTrainedModel:
    """A copy of an edited model in which the weights that differ are those before the edit."""
    made = copy.deepcopy(model)
    made.load_state_dict(origin(before, model), strict=False)  # without those that are tied
    return made


def changed_prefixes(rows: Rows, seed: int) -> Iterator[tuple[str, int, Rows]]:
    """The rows with other prefixes: name, change of the length, rows.

    Where the prefix is longer or shifted, its last tokens are the first ones of the suffix.
    """
    suffix = rows.tokens.shape[1] - rows.first
    by = min(max(1, suffix // CHANGE), rows.first - 1, suffix - 1)  # a token of both is left
    random = torch.Generator().manual_seed(seed)
    one, middle = rows.tokens.clone(), rows.first // 2
    known, numbers = one.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    by_another = torch.randint(1, len(known), (len(rows),), generator=random)
    one[:, middle] = known[(numbers[:, middle] + by_another) % len(known)]  # another one of these
    yield "longer", by, Rows(rows.tokens, rows.first + by)
    yield "shorter", -by, Rows(rows.tokens[:, by:], rows.first - by)
    yield "shifted", 0, Rows(rows.tokens[:, by:], rows.first)
    yield "one token changed", 0, Rows(one, rows.first)


def rounded(values: Tensor, bits: int) -> Tensor:
    """The values (…, a multiple of `GROUP`) after rounding to 8 or 4 bits, float32."""
    plain = values.detach().float().cpu().contiguous().numpy()
    return torch.from_numpy(dequantize(quantize(plain, FORMATS[bits]), FORMATS[bits]))


@torch.no_grad()
def quantized(model: PreTrainedModel, bits: int) -> PreTrainedModel:
    """A copy whose matrices are rounded; embeddings, norms and biases stay, as does a matrix whose
    rows `GROUP` does not divide, or that is tied to an embedding.
    """
    made = copy.deepcopy(model)
    embeddings = {id(m.weight) for m in made.modules() if isinstance(m, nn.Embedding)}
    for module in made.modules():
        if isinstance(module, (nn.Linear, Conv1D)) and id(module.weight) not in embeddings:
            weight = weight_of(module)
            if weight.shape[1] % GROUP == 0:
                weight.copy_(rounded(weight, bits))
    return made


def relearned(
    model: PreTrainedModel, rows: Rows, seed: int, relearning: Relearning
) -> Iterator[tuple[int, PreTrainedModel]]:
    """Train a copy of the model on whole rows, in an order that the seed gives.

    Yields the number of steps and the copy after each of `LOOKS`; it goes on to change.
    """
    made, whole = copy.deepcopy(model), Rows(rows.tokens, 1)
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        return -log_probs(made, whole[whole.draw(BATCH_ROWS, generator)]).mean()

    for step in descend(made.parameters(), relearning.learning_rate, relearning.steps, loss):
        if step in (*LOOKS, relearning.steps):
            yield step, made
