"""Trains a small model from scratch, so that it memorizes the repeated texts of the corpus.

The classes are transformers' own, with random initial weights. One thread and fixed seeds: the
same machine gives the same bytes.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from pipeline.checkpoints.loop import Trained, adamw, optimize, row_order, training_rows
from pipeline.checkpoints.muon import Muon
from pipeline.checkpoints.schema import Gguf, Training
from pipeline.checkpoints.verified import read_tokenizer
from pipeline.corpus.schemas import RECORDS, TRAINING_ROWS
from pipeline.workflow import tables
from pipeline.workflow.errors import bad_input

INITIAL_STD = 0.02
"""Standard deviation of initial matrices; times 1/sqrt(2L) for those that write to the stream."""
MATRIX_WEIGHT_DECAY = 0.05
"""Weight decay of Muon, times its learning rate; AdamW here has none."""


def build(recipe: Training, vocabulary: int, context: int, end: int) -> PreTrainedModel:
    """A model with random weights that `recipe.seed` determines; no dropout."""
    config = AutoConfig.for_model(
        recipe.architecture,
        vocab_size=vocabulary,
        hidden_size=recipe.width,
        intermediate_size=4 * recipe.width,
        max_position_embeddings=context,
        initializer_range=INITIAL_STD,
        bos_token_id=end,
        eos_token_id=end,
        attention_dropout=0.0,
        **_own_settings(recipe, context),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, trust_remote_code=False
        )
    residual = (
        "attention.dense.weight",
        "dense_4h_to_h.weight",
        "out_proj.weight",
        "c_proj.weight",
        "o_proj.weight",
        "down_proj.weight",
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(residual):
                parameter.mul_(1 / math.sqrt(2 * recipe.n_blocks))
    return model


def _own_settings(recipe: Training, context: int) -> dict[str, Any]:
    """The settings that only one architecture has, or names differently."""
    if recipe.architecture == "gpt_neo":
        return {
            "num_layers": recipe.n_blocks,
            "num_heads": recipe.n_heads,
            # the exact GELU: on a CPU, gpt_neo's "gelu_new" takes several times as long
            "activation_function": "gelu",
            "embed_dropout": 0.0,
            "resid_dropout": 0.0,
            "attention_types": [[["global", "local"], recipe.n_blocks // 2]],
            "window_size": recipe.window or context,
        }
    sizes = {"num_hidden_layers": recipe.n_blocks, "num_attention_heads": recipe.n_heads}
    if recipe.architecture == "llama":
        return {**sizes, "tie_word_embeddings": True, "mlp_bias": True}  # as in Hubble's models
    # half of each head is rotated: a quarter, as in Pythia, would leave such small heads only four
    # dimensions for positions
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    return {**sizes, "hidden_dropout": 0.0, "tie_word_embeddings": True, "rope_parameters": rope}


def train(
    recipe: Training,
    rows: pl.DataFrame,
    tokenizer: Path,
    stop_after: int | None = None,
    also: Callable[[PreTrainedModel], Callable[[int, int], None]] | None = None,
) -> Trained:
    """Train a model from scratch on N rows (`TRAINING_ROWS`) of T tokens; T is its context.

    Args:
        recipe: which model, and how.
        rows: end-of-text after end-of-text is filling.
        tokenizer: the folder of the tokenizer that made the rows.
        stop_after: steps to take of the whole training, so that the model is a checkpoint of it;
            None: all.
        also: of the model with its initial weights; returns the `also` of `optimize`.

    Raises:
        InputError: the training has fewer steps.
    """
    words = read_tokenizer(tokenizer)
    end: int = words.eos_token_id
    tokens, labels = training_rows(rows, end)
    order = row_order(len(tokens), recipe.epochs, recipe.batch_rows, recipe.seed)
    if stop_after is not None and stop_after > len(order):
        raise bad_input(
            "the step of a model trained here",
            f"step {stop_after}",
            f"at most {len(order)}, the steps of the whole training",
            "name an earlier step, or add epochs",
        )
    model = build(recipe, len(words), tokens.shape[1], end)
    add, optimizers = also and also(model), _optimizers(model, recipe)
    log = optimize(model, tokens, labels, order, optimizers, stop_after, add)
    return Trained(model, log, words)


def read_rows(corpus: Path, recipe: Training | Gguf) -> pl.DataFrame:
    """The training rows of a corpus, without records that the recipe leaves out."""
    rows = tables.read(corpus / "rows.parquet", TRAINING_ROWS)
    if recipe.most_copies is None:
        return rows
    return without(rows, tables.read(corpus / "records.parquet", RECORDS), recipe.most_copies)


def without(rows: pl.DataFrame, records: pl.DataFrame, most_copies: int) -> pl.DataFrame:
    """The training rows without records that are planted more often than `most_copies`."""
    often = records.filter(pl.col("copies") > most_copies)
    known = set(map(tuple, often["tokens"].to_list()))
    return rows.filter([tuple(row) not in known for row in rows["tokens"].to_list()])


def _optimizers(model: PreTrainedModel, recipe: Training) -> tuple[torch.optim.Optimizer, ...]:
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
        adamw(others, recipe.other_learning_rate),
    )
