"""What the benchmarks share: models to measure on, rivals in turns, tables."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    GPTNeoConfig,
    GPTNeoXConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
)

# --------------------------------------------------------------------------- models


@dataclass(frozen=True)
class Shape:
    """A model's shape, and how much goes through it."""

    family: str  # GPT-NeoX, GPT-Neo or Llama
    width: int  # D
    blocks: int  # L; even for GPT-Neo
    heads: int  # H
    samples: int  # N
    vocabulary: int = 50_304  # V
    groups: int = 0  # key-value heads of a Llama
    inner: int = 0  # width of the MLPs; 0: 4 D
    prefix: int = 32  # P
    suffix: int = 32  # S
    context: int = 2048  # positions that the model has
    window: int = 256  # of GPT-Neo's local attention
    label: str = ""  # name in tables; family, width and blocks unless given

    @property
    def name(self) -> str:
        """Name in tables."""
        return self.label or f"{self.family} {self.width}x{self.blocks}"


def build(
    shape: Shape,
    *,
    trainable: bool = False,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """An untrained model, the same at every call, made on the device and in the precision.

    If it is not trainable, all matrices are doubled: under the family's initial weights, logits are
    so flat that many choices nearly tie.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(_config(shape), dtype=dtype)
    if not trainable:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(2)
    return model.eval()


def _config(shape: Shape) -> PretrainedConfig:
    sizes: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.inner or 4 * shape.width,
        "max_position_embeddings": shape.context,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if shape.family == "GPT-Neo":
        kinds = [[["global", "local"], shape.blocks // 2]]
        sizes |= dict.fromkeys(("embed_dropout", "resid_dropout", "attention_dropout"), 0.0)
        sizes |= {"num_layers": shape.blocks, "num_heads": shape.heads}
        return GPTNeoConfig(**sizes, window_size=shape.window, attention_types=kinds)
    sizes |= {"num_hidden_layers": shape.blocks, "num_attention_heads": shape.heads}
    if shape.family == "Llama":
        groups = shape.groups or shape.heads
        return LlamaConfig(**sizes, num_key_value_heads=groups, tie_word_embeddings=True)
    return GPTNeoXConfig(**sizes)


def samples(
    shape: Shape, count: int | None = None, *, distinct: int | None = None, device: str = "cpu"
) -> Tensor:
    """Random sequences (N, P+S) of the vocabulary, or of so many `distinct` tokens.

    Among few of them none tells what follows it, so that a model needs its attention to recite.
    """
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randperm(shape.vocabulary, generator=generator)[:distinct]
    size = (count or shape.samples, shape.prefix + shape.suffix)
    return tokens[torch.randint(len(tokens), size, generator=generator)].to(device)


def memorize(
    model: PreTrainedModel, tokens: Tensor, suffix_length: int, *, steps: int, autocast: bool
) -> int:
    """Train on the samples until the model recites each suffix after its prefix; the steps taken.

    The model is in float32, and computes in bfloat16 with `autocast`. All samples (N, P+S) are one
    batch.
    """
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    suffix = tokens[:, -suffix_length:]
    for step in range(steps):
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
            logits = model(
                tokens[:, :-1], use_cache=False, logits_to_keep=suffix_length
            ).logits.float()
        # while every choice agrees with the suffix, reading it and generating it are the same
        if torch.equal(logits.argmax(-1), suffix):
            optimizer.zero_grad()
            model.eval()
            return step
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), suffix.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    raise RuntimeError(f"the model does not recite its samples after {steps} steps")


# --------------------------------------------------------------------------- measuring


def rounds(
    works: Sequence[Callable[[], object]],
    seconds: Callable[[Callable[[], object]], float],
    count: int,
) -> list[list[float]]:
    """Seconds of each of the `works` in each of `count` rounds, in which they take turns."""
    spent: list[list[float]] = [[] for _ in works]
    for _ in range(count):
        for times, work in zip(spent, works, strict=True):
            times.append(seconds(work))
    return spent


def compared(rival: Sequence[float], engine: Sequence[float]) -> str:
    """Median and range of rival / engine over the rounds."""
    each = [a / b for a, b in zip(rival, engine, strict=True)]
    return f"{median(each):.2f} ({min(each):.2f}–{max(each):.2f})"


def operations(work: Callable[[], object]) -> int:
    """Multiplications and additions of the matrix products that one call carries out.

    PyTorch does not count those within its fused attention on a CPU, here about one percent.
    """
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


# --------------------------------------------------------------------------- tables


def noted(row: list[str]) -> list[str]:
    """The row, shown at once: the whole takes minutes."""
    print("| " + " | ".join(row) + " |", file=sys.stderr, flush=True)
    return row


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return f"### {title}\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
