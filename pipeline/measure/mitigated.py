"""What an edited model still recites and still knows, row by row, and the price that was predicted.

Shapes: N rows, S scored tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import polars as pl
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.interventions.interventions import BASELINE
from pipeline.measure.benchmarks import measure
from pipeline.mitigations.curvature import COHERENT_SHARE, eigenbases
from pipeline.mitigations.matrices import mlp_matrices, recorded
from pipeline.mitigations.rows import Rows, all_log_probs, log_probs, logits, recited
from pipeline.mitigations.schemas import OUTCOMES
from pipeline.mitigations.subject import TEXT, Part, Parts
from pipeline.workflow import tables

STEP = 0.02
"""Of the central difference, as a share of the change of the weights."""
LEAST_LIKELY = 0.2
"""The share of a row's tokens, the least likely ones, that Min-K% averages."""
_FILLED = {name: column for name, column in OUTCOMES.items() if name != "dose"}
"""What a measurement fills in."""


def outcomes(
    model: PreTrainedModel,
    parts: Parts,
    tokenizer: PreTrainedTokenizerBase | None = None,
    tasks: Mapping[str, Any] | None = None,
) -> pl.DataFrame:
    """Whether each row is recited, its loss, and whether each document is answered.

    Args:
        model: in evaluation mode, on the CPU.
        parts: the rows.
        tokenizer: the model's own; None where there are no tasks.
        tasks: as `tasks.loading.load_tasks` gives them.

    Returns:
        `OUTCOMES` without the dose.
    """
    made = []
    for split, part in parts.splits.items():
        made.append(labelled(part, split, "loss", -all_log_probs(model, part.rows).mean(-1)))
        if split != TEXT:
            made.append(labelled(part, split, "recited", recited(model, part.rows)))
    if tasks and tokenizer is not None:
        _, documents = measure(model, tokenizer, tasks, [BASELINE])
        answers = documents.filter(metric="acc").with_columns(
            split="task",
            item="doc_id",
            cluster="doc_id",
            probe=pl.lit("dose"),
            x=0.0,
            variant=pl.lit(""),
        )
        made.append(tables.cast(answers, _FILLED))
    return pl.concat(made)


def labelled(
    part: Part,
    split: str,
    metric: str,
    values: Tensor,
    probe: str = "dose",
    x: float = 0.0,
    variant: str = "",
) -> pl.DataFrame:
    """One value of each row of a split, as rows of a table: `OUTCOMES` without the dose."""
    where = {"probe": probe, "x": x, "variant": variant, "split": split, "metric": metric}
    items = {"item": list(part.items), "cluster": list(part.clusters)}
    return pl.DataFrame(
        {**where, **items, "value": values.double().tolist()}, schema=tables.dtypes(_FILLED)
    )


def origin(before: PreTrainedModel, after: PreTrainedModel) -> dict[str, Tensor]:
    """The weights before an edit, by the names of those after it: zeros for what it has added."""
    known = {name: value.detach() for name, value in before.named_parameters()}
    return {
        name: known.get(name, torch.zeros_like(value)) for name, value in after.named_parameters()
    }


def price(before: PreTrainedModel, after: PreTrainedModel, rows: Rows, seed: int) -> Tensor:
    """(N,) the change of each row's loss that two Taylor orders predict, nats a token.

    With s the first-order shift of a token's loss: the mean of s over the true labels, plus the
    mean of s²/2 over labels that the model samples. No parameter is free.

    Args:
        before: the model.
        after: the same with an edit in its weights; biases that it alone has were zero.
        rows: any.
        seed: of the sampled labels.

    Source: public repository smarter/memorization_kfac, theory/paper.
    """
    weights = origin(before, after)
    changes = {n: value.detach() - weights[n] for n, value in after.named_parameters()}
    probe = copy.deepcopy(after)
    generator, found = torch.Generator().manual_seed(seed), []
    for part in rows.batches():
        sides = []
        for sign in (1, -1, 0):
            with torch.no_grad():
                for name, value in probe.named_parameters():
                    value.copy_(weights[name] + sign * STEP * changes[name])
                sides.append(logits(probe, part).double().log_softmax(-1))
        shift = (sides[1] - sides[0]) / (2 * STEP)
        labels = torch.multinomial(sides[2].exp().flatten(0, 1), 1, generator=generator)
        first = shift.gather(-1, part.tokens[:, part.first :, None])
        second = shift.gather(-1, labels.view(*shift.shape[:2], 1)).square() / 2
        found.append((first + second)[..., 0].mean(-1))
    return torch.cat(found)


def detectors(model: PreTrainedModel, parts: Parts, seed: int) -> pl.DataFrame:
    """Three scores of each row that are to tell recited rows from others, by one forward pass.

    ``flat_share`` is the share of the squared activations in the flat directions of each matrix's
    inputs, mean over matrices; ``min_k`` the mean log probability of the least likely tokens;
    ``likelihood`` that of all. All over the suffix.

    Returns:
        As `outcomes`.
    """
    matrices = mlp_matrices(model)
    bases = eigenbases(model, matrices, parts.keep, seed)
    suffix = parts.forget.first
    made = []
    for split, part in parts.splits.items():
        rows = Rows(part.rows.tokens, suffix)
        shares, means, least = [], [], []
        for batch in rows.batches():
            with recorded(matrices) as (read, _), torch.no_grad():
                scored = log_probs(model, batch)
            flat = []
            for inputs, basis in zip(read, bases, strict=True):
                energy = (inputs[:, suffix:] @ basis.inputs).square().sum(1)
                count = round(COHERENT_SHARE * energy.shape[1])
                flat.append(energy[:, :count].sum(1) / energy.sum(1))
            shares.append(torch.stack(flat).mean(0))
            means.append(scored.mean(1))
            count = max(1, round(LEAST_LIKELY * scored.shape[1]))
            least.append(scored.topk(count, largest=False).values.mean(1))
        scores = {"flat_share": shares, "likelihood": means, "min_k": least}
        made += [labelled(part, split, name, torch.cat(each)) for name, each in scores.items()]
    return pl.concat(made)
