"""The training loop of every checkpoint that is made here, and the writing of the result.

Fixed seeds and one thread: the same machine gives the same bytes.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.checkpoints.manifest import Manifest, write_manifest
from pipeline.workflow.files import atomic, write_json
from pipeline.workflow.progress import reporter

ADAM_BETAS = (0.9, 0.95)
WARM_UP = 0.05
"""Share of the steps in which the learning rates rise; afterwards they fall linearly to zero."""
LARGEST_GRADIENT = 1.0
"""Norm of all gradients together above which they are scaled down."""
LOG_EVERY = 50
"""Steps that are averaged into one entry of the log of losses."""
IGNORED = -100
"""The label of a token that is not to be predicted; PyTorch's own default."""


@dataclass(frozen=True)
class Log:
    """The steps of a training; the tokens seen, filling included; the mean loss (nats per token) of
    every LOG_EVERY steps.
    """

    steps: int
    tokens: int
    losses: list[float]


@dataclass(frozen=True)
class Trained:
    """A trained model in eval mode, its log, and the tokenizer that made its rows."""

    model: PreTrainedModel
    log: Log
    tokenizer: PreTrainedTokenizerBase


def adamw(parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """AdamW without weight decay; `rate` is its peak learning rate."""
    return torch.optim.AdamW(parameters, lr=rate, betas=ADAM_BETAS, weight_decay=0.0, fused=True)


def optimize(
    model: PreTrainedModel,
    tokens: Tensor,
    labels: Tensor,
    order: Tensor,
    optimizers: Sequence[torch.optim.Optimizer],
    stop_after: int | None = None,
    also: Callable[[int, int], None] | None = None,
) -> Log:
    """Train a model on rows in a given order.

    Args:
        model: its weights are changed; it is in eval mode afterwards.
        tokens: (N, T) int64.
        labels: (N, T) int64, as of `training_rows`.
        order: (steps, rows a step) indices of rows, as of `row_order`.
        optimizers: of all weights that are to change, with their peak learning rates.
        stop_after: steps to take of the `order`, whose learning rates stay the same; None: all.
        also: called with the step, from 0, and the number of steps, to add to the gradients.
    """
    schedule = _schedule(len(order))
    taken = order[:stop_after]
    schedulers = [torch.optim.lr_scheduler.LambdaLR(each, schedule) for each in optimizers]
    report = reporter("training", "steps")
    losses: list[float] = []
    model.train()
    with _one_thread():
        for batch in taken:
            logits = model(input_ids=tokens[batch], use_cache=False).logits
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), labels[batch].flatten(), ignore_index=IGNORED
            )
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
            if also:
                also(len(losses), len(order))
            for scheduler in schedulers:
                scheduler.optimizer.step()
                scheduler.step()
                scheduler.optimizer.zero_grad()
            losses.append(loss.item())
            report(len(losses), len(taken))
    model.eval()  # type: ignore[no-untyped-call]
    return Log(
        steps=len(taken),
        tokens=taken.numel() * tokens.shape[1],
        losses=[
            math.fsum(part) / len(part)
            for part in (losses[i : i + LOG_EVERY] for i in range(0, len(losses), LOG_EVERY))
        ],
    )


def row_order(count: int, epochs: int, batch_rows: int, seed: int) -> Tensor:
    """(steps, batch_rows) indices of rows, each epoch in a different order."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(count, generator=generator) for _ in range(epochs)])
    steps = len(order) // batch_rows
    return order[: steps * batch_rows].view(steps, batch_rows)


def training_rows(rows: pl.DataFrame, end: int) -> tuple[Tensor, Tensor]:
    """(N, T) the tokens of rows (`TRAINING_ROWS`), and the token after each.

    It is IGNORED after the last, and where it is filling: end-of-text (`end`) after end-of-text.
    """
    tokens = torch.tensor(rows["tokens"].to_list())
    filling = (tokens[:, 1:] == end) & (tokens[:, :-1] == end)
    labels = tokens[:, 1:].masked_fill(filling, IGNORED)
    # a label for every logit: leaving out the last logits instead would copy all of them twice
    return tokens, nn.functional.pad(labels, (0, 1), value=IGNORED)


def write_checkpoint(
    folder: Path,
    trained: Trained,
    recipe: Mapping[str, Any],
    *,
    name: str,
    family: str,
) -> Manifest:
    """Write a trained model as a checkpoint, atomically and reproducibly.

    The folder gets the weights, the tokenizer, training.json (the log) and the manifest. The recipe
    has the settings besides the rows, including ``seed``.
    """
    with atomic(folder, directory=True) as temporary:
        trained.model.save_pretrained(temporary)
        trained.tokenizer.save_pretrained(temporary)
        write_json(temporary / "training.json", asdict(trained.log))
        return write_manifest(
            temporary,
            trained.model,
            name=name,
            family=family,
            tokens=len(trained.tokenizer),
            seed=recipe["seed"],
            origin={"recipe": dict(recipe)},
        )


def _schedule(steps: int) -> Callable[[int], float]:
    """Step (from 0) -> share of the peak learning rate: rising, then falling, always above zero."""
    rising = max(1, round(steps * WARM_UP))
    return lambda step: min((step + 1) / rising, (steps - step) / max(1, steps - rising))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: more would sum in another order, and models train in parallel anyway."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
