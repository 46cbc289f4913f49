"""What an edited model still recites and still knows, row by row, and the price that was predicted.

Shapes: N rows, S scored tokens.
"""

import copy
from collections.abc import Mapping
from typing import Any

import polars as pl
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.interventions.interventions import BASELINE
from pipeline.measure.benchmarks import measure
from pipeline.measure.metrics import lowest_mean
from pipeline.mitigations.curvature import COHERENT_SHARE, eigenbases
from pipeline.mitigations.matrices import mlp_matrices, recorded
from pipeline.mitigations.rows import BATCH, Rows, log_probs, logits, read, right, scores
from pipeline.mitigations.schemas import OUTCOMES
from pipeline.mitigations.subject import TEXT, Part, Parts
from pipeline.workflow import tables

STEP = 0.02
"""Of the central difference, as a share of the change of the weights."""
UNPROBED = ("dose", 0.0, "")
"""Probe, x and variant of what is measured at a dose."""


def outcomes(
    model: PreTrainedModel,
    parts: Parts,
    tokenizer: PreTrainedTokenizerBase | None = None,
    tasks: Mapping[str, Any] | None = None,
) -> pl.DataFrame:
    """Whether each row is recited, its loss, and whether each document of the tasks is answered:
    `OUTCOMES` at a dose of 0.
    """
    made = []
    for split, part in parts.splits.items():
        scored, *recited = read(model, part.rows, scores, *([] if split == TEXT else [right]))
        made.append(labelled(part, split, "loss", -scored.mean(-1)))
        made += [labelled(part, split, "recited", each) for each in recited]
    if tasks and tokenizer is not None:
        words = {"probe": pl.lit("dose"), "variant": pl.lit("")}
        _, documents = measure(model, tokenizer, tasks, [BASELINE])
        answers = documents.filter(metric="acc").with_columns(
            split="task", item="doc_id", cluster="doc_id", x=0.0, dose=0.0, **words
        )
        made.append(tables.cast(answers, OUTCOMES))
    return pl.concat(made)


def labelled(
    part: Part, split: str, metric: str, values: Tensor, at: tuple[str, float, str] = UNPROBED
) -> pl.DataFrame:
    """One value of each row of a split, as rows of `OUTCOMES` at a dose of 0."""
    probe, x, variant = at
    items = list(part.items), list(part.clusters), values.double().tolist()
    columns = (probe, 0.0, x, variant, split, metric, *items)
    return pl.DataFrame(dict(zip(OUTCOMES, columns, strict=True)), schema=tables.dtypes(OUTCOMES))


def origin(before: PreTrainedModel, after: PreTrainedModel) -> dict[str, Tensor]:
    """The weights before an edit, by the names of those after it: zeros for what it has added."""
    known = {name: value.detach() for name, value in before.named_parameters()}
    return {
        name: known.get(name, torch.zeros_like(value)) for name, value in after.named_parameters()
    }


def sampled(model: PreTrainedModel, rows: Rows, seed: int) -> Tensor:
    """(N, S, 1) a label for each scored token, drawn from what the model expects there."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(made: Tensor, part: Rows) -> Tensor:
        likely = made.double().softmax(-1).flatten(0, 1)
        return torch.multinomial(likely, 1, generator=generator).view(len(part), -1, 1)

    return read(model, rows, drawn)[0]


def price(before: PreTrainedModel, after: PreTrainedModel, rows: Rows, labels: Tensor) -> Tensor:
    """(N,) the change of each row's loss that two Taylor orders predict, nats a token.

    With s the first-order shift of a token's loss: the mean of s over the true labels, plus the
    mean of s²/2 over labels that the model samples, (N, S, 1). No parameter is free.

    Source: public repository smarter/memorization_kfac, theory/paper.
    """
    weights = origin(before, after)
    changes = {n: value.detach() - weights[n] for n, value in after.named_parameters()}
    probe = copy.deepcopy(after)
    found = []

    @torch.no_grad()
    def scored(part: Rows, sign: int) -> Tensor:
        """(n, S, V) log probabilities, a step along the change or against it."""
        for name, value in probe.named_parameters():
            value.copy_(weights[name] + sign * STEP * changes[name])
        return logits(probe, part).double().log_softmax(-1)

    for part, drawn in zip(rows.batches(), torch.split(labels, BATCH), strict=True):
        both = torch.cat([part.tokens[:, part.first :, None], drawn], -1)
        ahead, behind = (scored(part, sign).gather(-1, both) for sign in (1, -1))
        first, second = ((behind - ahead) / (2 * STEP)).unbind(-1)
        found.append((first + second.square() / 2).mean(-1))
    return torch.cat(found)


def detectors(model: PreTrainedModel, parts: Parts, seed: int) -> pl.DataFrame:
    """Three scores of each row that are to tell recited rows from others, by one forward pass.

    ``flat_share`` is the share of the squared activations in the flat directions of each matrix's
    inputs, mean over matrices; ``min_k`` the mean log probability of the least likely tokens;
    ``likelihood`` that of all. All over the suffix. The table is as that of `outcomes`.
    """
    matrices = mlp_matrices(model)
    bases = eigenbases(model, matrices, parts.keep, seed)
    suffix = parts.forget.first
    made = []
    for split, part in parts.splits.items():
        found = []
        for batch in Rows(part.rows.tokens, suffix).batches():
            with recorded(matrices) as (read, _), torch.no_grad():
                scored = log_probs(model, batch)
            flat = []
            for inputs, basis in zip(read, bases, strict=True):
                energy = (inputs[:, suffix:] @ basis.inputs).square().sum(1)
                count = round(COHERENT_SHARE * energy.shape[1])
                flat.append(energy[:, :count].sum(1) / energy.sum(1))
            least = torch.from_numpy(lowest_mean(scored.numpy()))
            found.append((torch.stack(flat).mean(0), scored.mean(1), least))
        scores = zip(("flat_share", "likelihood", "min_k"), zip(*found, strict=True), strict=True)
        made += [labelled(part, split, name, torch.cat(each)) for name, each in scores]
    return pl.concat(made)
