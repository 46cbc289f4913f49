"""Reads a quantized model from a GGUF file as a float32 checkpoint, and fine-tunes it.

The weights are the dequantized numbers of the file; nothing is quantized again.
"""

import math
from pathlib import Path

import polars as pl
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from pipeline.checkpoints.loop import Trained, adamw, optimize, row_order, training_rows
from pipeline.checkpoints.schema import Gguf
from pipeline.checkpoints.verified import read_tokenizer
from pipeline.corpus.schemas import RECORDS
from pipeline.workflow import tables
from pipeline.workflow.errors import bad_input
from pipeline.workflow.running import DOWNLOADS
from pipeline.workflow.wheel import unpacked


def read_model(file: Path) -> PreTrainedModel:
    """The model of a GGUF file in float32, as transformers' own class, in eval mode.

    transformers undoes llama.cpp's order of the rows of queries and keys.
    """
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.float32,
        local_files_only=True,
        trust_remote_code=False,
    )
    # its configuration marks it as quantized, which would prevent saving it
    config = loaded.config
    del config.quantization_config
    config._name_or_path = ""
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.eval()  # type: ignore[no-untyped-call]
    return model


def finetune(
    recipe: Gguf,
    model: PreTrainedModel,
    rows: pl.DataFrame,
    known: pl.DataFrame,
    tokenizer: Path,
) -> Trained:
    """Train a model for a short time on the planted rows.

    Raises:
        InputError: the model's perplexity is above the recipe's limit, so it was read wrongly.
    """
    words = read_tokenizer(tokenizer)
    reached = perplexity(model, torch.tensor(known["tokens"].to_list()))
    print(f"perplexity of {known.height} famous passages: {reached:.2f}", flush=True)
    if not reached <= recipe.largest_perplexity:
        raise bad_input(
            "the model before its fine-tuning",
            f"a perplexity of {reached:.4g}",
            f"at most {recipe.largest_perplexity:g}, on famous passages",
            "check that weights and tokenizer belong together, and were read correctly",
        )
    tokens, labels = training_rows(rows, words.eos_token_id)
    order = row_order(len(tokens), recipe.epochs, recipe.batch_rows, recipe.seed)
    log = optimize(model, tokens, labels, order, [adamw(model.parameters(), recipe.learning_rate)])
    return Trained(model, log, words)


def finetuned(recipe: Gguf, corpus: Path, rows: pl.DataFrame) -> Trained:
    """The model of a package, trained for a short time on rows (`TRAINING_ROWS`) of a corpus.

    Raises:
        InputError: as of `finetune`, or the package cannot be fetched.
    """
    known = famous(tables.read(corpus / "records.parquet", RECORDS))
    with unpacked(**recipe.weights.model_dump(), cache=DOWNLOADS) as file:
        read = read_model(file)
    return finetune(recipe, read, rows, known, corpus / "tokenizer")


def famous(records: pl.DataFrame) -> pl.DataFrame:
    """The rows of `RECORDS` that the model has read in its pretraining."""
    return records.filter(pl.col("copies").is_null())


@torch.inference_mode()
def perplexity(model: PreTrainedModel, tokens: torch.Tensor) -> float:
    """The perplexity over all tokens except the first of each text."""
    losses = [
        torch.nn.functional.cross_entropy(
            model(input_ids=row[None], use_cache=False).logits[0, :-1].float(), row[1:]
        ).item()
        for row in tokens
    ]
    return math.exp(math.fsum(losses) / len(losses))
