"""Train a small model from scratch, so that it memorizes what the corpus repeats.

The classes are transformers' own, with random initial weights. One thread and fixed seeds: the
same machine gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl
import torch
from torch import Tensor, nn
from transformers import (
    AutoTokenizer,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from pipeline.checkpoints.manifest import Manifest, write_manifest
from pipeline.checkpoints.muon import Muon
from pipeline.files import atomic, write_json
from pipeline.progress import reporter

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
        batch_rows: rows a step.
        epochs: times that every row is seen.
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
    epochs: int
    matrix_learning_rate: float
    other_learning_rate: float
    seed: int
    window: int | None = None


@dataclass(frozen=True)
class Log:
    """How the loss fell.

    Args:
        steps: of the optimizers.
        tokens: that were seen, filling included.
        losses: mean loss (nats a token) of every LOG_EVERY steps.
    """

    steps: int
    tokens: int
    losses: list[float]


@dataclass(frozen=True)
class Trained:
    """A trained model in eval mode, how its loss fell, and the tokenizer that made its rows."""

    model: PreTrainedModel
    log: Log
    tokenizer: PreTrainedTokenizerBase


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
                    # the exact one: on a CPU, gpt_neo's "gelu_new" takes several times as long
                    activation_function="gelu",
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


def train(recipe: Recipe, rows: pl.DataFrame, tokenizer: Path) -> Trained:
    """Train a model from scratch.

    Args:
        recipe: which model, and how.
        rows: schema `tables.TRAINING_ROWS`, N of T tokens; T is the model's context. End-of-text
            after end-of-text is filling.
        tokenizer: the folder of the tokenizer that made the rows.
    """
    words: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        tokenizer, local_files_only=True, trust_remote_code=False
    )
    end: int = words.eos_token_id
    tokens = torch.tensor(rows["tokens"].to_list())
    labels = _labels(tokens, end)
    model = build(recipe, len(words), tokens.shape[1], end).train()
    batches = _batches(len(tokens), recipe)
    optimizers = _optimizers(model, recipe)
    schedule = _schedule(len(batches))
    schedulers = [torch.optim.lr_scheduler.LambdaLR(each, schedule) for each in optimizers]
    report = reporter("training", "steps")
    losses: list[float] = []
    with _one_thread():
        for batch in batches:
            logits = model(input_ids=tokens[batch], use_cache=False).logits
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
            report(len(losses), len(batches))
    log = Log(
        steps=len(batches),
        tokens=batches.numel() * tokens.shape[1],
        losses=[
            math.fsum(part) / len(part)
            for part in (losses[i : i + LOG_EVERY] for i in range(0, len(losses), LOG_EVERY))
        ],
    )
    return Trained(model.eval(), log, words)


def write_checkpoint(
    folder: Path, trained: Trained, recipe: Recipe, *, name: str, family: str
) -> Manifest:
    """Write a trained model as a checkpoint, atomically and reproducibly.

    Args:
        folder: gets the weights, the tokenizer, training.json (the log) and the manifest.
        trained: as `train` returned it.
        recipe: as `train` was given it.
        name: of the model.
        family: of the model.
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


def _batches(count: int, recipe: Recipe) -> Tensor:
    """(steps, batch_rows) indices of rows, each epoch in an order of its own."""
    generator = torch.Generator().manual_seed(recipe.seed)
    order = torch.cat([torch.randperm(count, generator=generator) for _ in range(recipe.epochs)])
    steps = len(order) // recipe.batch_rows
    return order[: steps * recipe.batch_rows].view(steps, recipe.batch_rows)


def _schedule(steps: int) -> Callable[[int], float]:
    """Step (from 0) -> share of the peak learning rate: up, then down, never quite zero."""
    rising = max(1, round(steps * WARM_UP))
    return lambda step: min((step + 1) / rising, (steps - step) / max(1, steps - rising))


def _labels(rows: Tensor, end: int) -> Tensor:
    """(N, T) the token after each, IGNORED where it is filling, and after the last."""
    filling = (rows[:, 1:] == end) & (rows[:, :-1] == end)
    labels = rows[:, 1:].masked_fill(filling, IGNORED)
    # a label for every logit: leaving out the last logits instead would copy all of them twice
    return nn.functional.pad(labels, (0, 1), value=IGNORED)


@contextmanager
def _one_thread() -> Iterator[None]:
    """More threads would add up in another order, and models train side by side anyway."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
