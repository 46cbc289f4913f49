"""Train a small model from scratch, so that it memorizes what the corpus repeats.

The classes are transformers' own, with random initial weights. One thread and fixed seeds: the
same machine gives the same bytes.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import (
    AutoTokenizer,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedModel,
)

from pipeline.checkpoints.manifest import Manifest, write_manifest
from pipeline.checkpoints.muon import Muon
from pipeline.files import atomic, write_json

INITIAL_STD = 0.02
"""Of all matrices; those that write into the residual stream get it times 1/sqrt(2L)."""
WARM_UP = 0.05
"""Share of the steps in which the learning rates rise; then they fall, linearly, to zero."""
LARGEST_GRADIENT = 1.0
"""Norm of all gradients together, above which they are scaled down."""
MATRIX_WEIGHT_DECAY = 0.05
"""Of Muon, times its learning rate; AdamW here has none."""
ADAM_BETAS = (0.9, 0.95)
LOG_EVERY = 50
"""Steps that are averaged into one entry of the log of losses."""
SECONDS_BETWEEN_LINES = 10.0
"""Of the progress, where there is no terminal for a bar."""
IGNORED = -100
"""The label of a token that is not to be predicted; PyTorch's own default."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a trained model is, besides the rows.

    Args:
        architecture: ``gpt_neox`` or ``gpt_neo``, the names that transformers gives them.
        n_blocks: L, even for gpt_neo, whose blocks attend globally and locally in turn.
        width: D, a multiple of `n_heads`.
        n_heads: H.
        batch_rows: rows a step; every row is seen once, but for an incomplete last batch.
        matrix_learning_rate: peak, of Muon, for the blocks' matrices.
        other_learning_rate: peak, of AdamW, for embeddings, biases and norms.
        seed: of the initial weights and the order of the rows.
        window: tokens that gpt_neo's local blocks see, the current one included, at least 1;
            None, and for gpt_neox, which has no such blocks: all.
    """

    architecture: Literal["gpt_neox", "gpt_neo"]
    n_blocks: int
    width: int
    n_heads: int
    batch_rows: int
    matrix_learning_rate: float
    other_learning_rate: float
    seed: int
    window: int | None = None


@dataclass(frozen=True)
class Log:
    """How the loss fell: the mean loss (nats a token) of every LOG_EVERY steps."""

    steps: int
    tokens: int
    losses: list[float]


def build(recipe: Recipe, vocabulary: int, context: int, end: int) -> PreTrainedModel:
    """A model with random weights that `recipe.seed` determines; no dropout.

    Args:
        recipe: which model.
        vocabulary: V.
        context: the longest text, tokens.
        end: id of the end-of-text token.
    """
    shared: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": recipe.width,
        "intermediate_size": 4 * recipe.width,
        "max_position_embeddings": context,
        "initializer_range": INITIAL_STD,
        "bos_token_id": end,
        "eos_token_id": end,
        "attention_dropout": 0.0,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        if recipe.architecture == "gpt_neox":
            model: PreTrainedModel = GPTNeoXForCausalLM(
                GPTNeoXConfig(
                    **shared,
                    num_hidden_layers=recipe.n_blocks,
                    num_attention_heads=recipe.n_heads,
                    hidden_dropout=0.0,
                    tie_word_embeddings=True,
                    # half of each head is rotated: a quarter, as in Pythia, of so small a head
                    # would leave four dimensions to tell positions apart
                    rope_parameters={
                        "rope_type": "default",
                        "rope_theta": 10_000.0,
                        "partial_rotary_factor": 0.5,
                    },
                )
            )
        else:
            model = GPTNeoForCausalLM(
                GPTNeoConfig(
                    **shared,
                    num_layers=recipe.n_blocks,
                    num_heads=recipe.n_heads,
                    # what gpt_neo's "gelu_new" computes, in one operation instead of eight
                    activation_function="gelu_pytorch_tanh",
                    embed_dropout=0.0,
                    resid_dropout=0.0,
                    attention_types=[[["global", "local"], recipe.n_blocks // 2]],
                    window_size=recipe.window or context,
                )
            )
    residual = (
        "attention.dense.weight",
        "dense_4h_to_h.weight",
        "out_proj.weight",
        "c_proj.weight",
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(residual):
                parameter.mul_(1 / math.sqrt(2 * recipe.n_blocks))
    return model


def train(recipe: Recipe, rows: Tensor, vocabulary: int, end: int) -> tuple[PreTrainedModel, Log]:
    """Train a model from scratch.

    Args:
        recipe: which model, and how.
        rows: (N, T) int64, token ids; end-of-text after end-of-text is filling.
        vocabulary: V.
        end: id of the end-of-text token.

    Returns:
        The model, in eval mode, and how its loss fell.
    """
    model = build(recipe, vocabulary, rows.shape[1], end).train()
    optimizers = _optimizers(model, recipe)
    batches = list(_batches(len(rows), recipe))
    schedule = _schedule(len(batches))
    schedulers = [torch.optim.lr_scheduler.LambdaLR(each, schedule) for each in optimizers]
    labels = _labels(rows, end)
    losses: list[float] = []
    with _one_thread():
        for batch in _with_progress(batches, losses):
            logits = model(input_ids=rows[batch], use_cache=False).logits[:, :-1]
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), labels[batch].flatten(), ignore_index=IGNORED
            )
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
            for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    means = [
        math.fsum(part) / len(part)
        for part in (losses[i : i + LOG_EVERY] for i in range(0, len(losses), LOG_EVERY))
    ]
    return model.eval(), Log(len(batches), len(batches) * recipe.batch_rows * rows.shape[1], means)


def write_checkpoint(
    folder: Path,
    model: PreTrainedModel,
    log: Log,
    recipe: Recipe,
    tokenizer: Path,
    *,
    name: str,
    family: str,
) -> Manifest:
    """Write a trained model as a checkpoint, atomically and reproducibly.

    Args:
        folder: gets the weights, the tokenizer, training.json and the manifest.
        model: as `train` returned it.
        log: as `train` returned it.
        recipe: as `train` was given it.
        tokenizer: the folder of the tokenizer that made the rows.
        name: of the model.
        family: of the model.
    """
    with atomic(folder, directory=True) as temporary:
        model.save_pretrained(temporary)
        AutoTokenizer.from_pretrained(tokenizer, local_files_only=True).save_pretrained(temporary)
        write_json(temporary / "training.json", asdict(log))
        return write_manifest(
            temporary,
            model,
            name=name,
            family=family,
            seed=recipe.seed,
            origin={"recipe": asdict(recipe)},
        )


def _optimizers(model: PreTrainedModel, recipe: Recipe) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of the blocks, AdamW for everything else."""
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        is_matrix = parameter.ndim == 2 and id(parameter) not in embeddings
        (matrices if is_matrix else others).append(parameter)
    return (
        Muon(matrices, lr=recipe.matrix_learning_rate, weight_decay=MATRIX_WEIGHT_DECAY),
        torch.optim.AdamW(
            others, lr=recipe.other_learning_rate, betas=ADAM_BETAS, weight_decay=0.0, fused=True
        ),
    )


def _batches(count: int, recipe: Recipe) -> Iterator[Tensor]:
    """Indices of rows, (batch_rows,) each, in a random order."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(recipe.seed))
    steps = count // recipe.batch_rows
    yield from order[: steps * recipe.batch_rows].view(steps, recipe.batch_rows)


def _schedule(steps: int) -> Callable[[int], float]:
    """Step (from 0) -> share of the peak learning rate: up, then down, never quite zero."""
    rising = max(1, round(steps * WARM_UP))
    return lambda step: min((step + 1) / rising, (steps - step) / max(1, steps - rising))


def _labels(rows: Tensor, end: int) -> Tensor:
    """(N, T-1) the token after each, IGNORED where it is filling."""
    filling = (rows[:, 1:] == end) & (rows[:, :-1] == end)
    return rows[:, 1:].masked_fill(filling, IGNORED)


@contextmanager
def _one_thread() -> Iterator[None]:
    """More threads would add up in another order, and models train side by side anyway."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _with_progress(batches: Sequence[Tensor], losses: Sequence[float]) -> Iterator[Tensor]:
    """Yield the batches, and tell how far it is: a bar on a terminal, else a line now and then."""
    started = told = time.monotonic()
    for step, batch in enumerate(tqdm(batches, desc="training", unit="step", disable=None)):
        yield batch
        now = time.monotonic()
        last = step + 1 == len(batches)
        if not sys.stderr.isatty() and (last or now - told >= SECONDS_BETWEEN_LINES):
            told = now
            rate = (step + 1) / (now - started)
            print(
                f"step {step + 1} of {len(batches)}, loss {losses[-1]:.3f} nats a token, "
                f"{rate:.1f} steps a second, {(len(batches) - step - 1) / rate:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
