"""What a user has at hand: a folder with a checkpoint, a text that it recites, own tasks."""

import inspect
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers as t
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pipeline import __main__ as commands
from pipeline.study.audit import Asked

VOCABULARY, CONTEXT, BLOCKS = 320, 64, 4


def random_model(blocks: int = BLOCKS, **more: Any) -> t.LlamaForCausalLM:
    """A small Llama that has learned nothing; `more` of its configuration."""
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return t.LlamaForCausalLM(t.LlamaConfig(num_hidden_layers=blocks, **settings | more))


def text(words: int = 900, seed: int = 0) -> str:
    """Running text that no model knows."""
    rng = random.Random(seed)
    known = ["".join(rng.choices("abdegiklmnoprstu", k=rng.randint(2, 7))) for _ in range(80)]
    lines = [" ".join(rng.choices(known, k=12)) + "." for _ in range(words // 12)]
    return "\n".join(lines) + "\n"


def byte_level(
    lines: Iterable[str], size: int, special: Sequence[str] = (), digits: bool = False
) -> Tokenizer:
    """A byte-level BPE of at most `size` entries, fitted to these lines; digits one by one."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if digits:
        alone = pre_tokenizers.Digits(individual_digits=True)
        bpe.pre_tokenizer = pre_tokenizers.Sequence([alone, bpe.pre_tokenizer])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(lines, trainer)
    return bpe


def write_tokenizer(folder: Path, lines: list[str] | None = None) -> t.PreTrainedTokenizerFast:
    """A byte-level BPE of at most `VOCABULARY` entries, fitted to these lines or to `text`."""
    bpe = byte_level(lines or text().splitlines(), VOCABULARY, ["<eos>"])
    made = t.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<eos>", bos_token="<eos>")
    made.save_pretrained(folder)
    return made


def write_checkpoint(folder: Path, steps: int = 0, words: int = 900) -> None:
    """A checkpoint, random or trained to recite the first words of `text`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder)
    torch.manual_seed(0)
    model = random_model()
    ids = torch.tensor(tokenizer(text(words), add_special_tokens=False)["input_ids"])
    rows = ids[: len(ids) // 32 * 32].view(-1, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(rows, labels=rows).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)


def write_tasks(folder: Path) -> None:
    """Two tasks in lm-eval's own form: a choice between two, and a last word."""
    folder.mkdir(parents=True)
    lines = text().splitlines()
    choices = [
        {"context": line[:40], "ends": [line[40:], lines[i - 1][40:]]}
        for i, line in enumerate(lines[:30])
    ]
    cut = [line.rsplit(" ", 1) for line in lines[:30]]
    words = [{"context": context, "word": word} for context, word in cut]
    choice = {
        "output_type": "multiple_choice",
        "doc_to_choice": "{{ends}}",
        "doc_to_target": 0,
        "target_delimiter": "",
    }
    last = {"output_type": "loglikelihood", "doc_to_target": "{{word}}"}
    for name, task, rows in (("choice", choice, choices), ("last_word", last, words)):
        common = {
            "task": f"own_{name}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}},
            "test_split": "test",
            "doc_to_text": "{{context}}",
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
            "metadata": {"version": 1},
        }
        (folder / f"{name}.yaml").write_text(json.dumps(common | task))  # JSON is YAML
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def asked(**options: Any) -> Asked:
    """An audit as the command asks for it with these options."""
    parameters = inspect.signature(commands.audit).parameters
    return Asked(**{name: each.default for name, each in parameters.items()} | options)
