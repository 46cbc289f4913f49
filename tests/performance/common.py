"""What the benchmarks share: models to measure on, rivals in turns, tables.

Imports the standard library, torch and transformers alone.
"""

import sys
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor
from transformers import (
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedModel,
)

VOCABULARY = 640  # of the tiny study's models

# --------------------------------------------------------------------------- models


def build(
    family: str,
    width: int,
    blocks: int,
    *,
    heads: int = 2,
    vocabulary: int = VOCABULARY,
    context: int = 320,
    window: int | None = None,
    activation: str = "gelu",
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """An untrained model, made where and as it is wanted; by default in the tiny study's shape.

    Args:
        family: ``GPT-NeoX`` or ``GPT-Neo``.
        width: D.
        blocks: L, even.
        heads: H.
        vocabulary: V.
        context: positions.
        window: of GPT-Neo's local attention; None: `context`.
        activation: of the MLPs, as transformers names it.
        device: torch's name of it.
        dtype: of the weights.
    """
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            if family == "GPT-NeoX":
                model = GPTNeoXForCausalLM(
                    GPTNeoXConfig(
                        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=blocks,
                        num_attention_heads=heads, intermediate_size=4 * width,
                        max_position_embeddings=context, bos_token_id=None, eos_token_id=None,
                        hidden_act=activation, attn_implementation="sdpa",
                    )
                )  # fmt: skip
            else:
                model = GPTNeoForCausalLM(
                    GPTNeoConfig(
                        vocab_size=vocabulary, hidden_size=width, num_layers=blocks,
                        num_heads=heads, intermediate_size=4 * width,
                        max_position_embeddings=context, window_size=window or context,
                        attention_types=[[["global", "local"], blocks // 2]], embed_dropout=0.0,
                        resid_dropout=0.0, attention_dropout=0.0, activation_function=activation,
                        bos_token_id=None, eos_token_id=None,
                    )
                )  # fmt: skip
    finally:
        torch.set_default_dtype(usual)
    return model.eval()


def memorize(
    model: PreTrainedModel,
    tokens: Tensor,
    steps: int = 300,
    *,
    rate: float = 6e-3,
    batch_size: int = 32,
    enough: float = 0.0,
    autocast: bool = False,
) -> float:
    """Train on random sequences until the model knows them by heart.

    Args:
        model: in float32.
        tokens: (N, T) int64, on the model's device.
        steps: at most.
        rate: the highest learning rate.
        batch_size: sequences a step.
        enough: stop where the loss of a step, nats a token, is below.
        autocast: compute in bfloat16.

    Returns:
        The last step's loss.
    """
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    generator = torch.Generator().manual_seed(1)
    last = torch.inf
    for _ in range(steps):
        batch = tokens[torch.randint(0, len(tokens), (batch_size,), generator=generator)]
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
            logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), batch[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        last = loss.item()
        if last < enough:
            break
    optimizer.zero_grad()
    model.eval()
    return last


# --------------------------------------------------------------------------- time


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


# --------------------------------------------------------------------------- tables


def noted(row: list[str]) -> list[str]:
    """The row, shown at once: the whole takes minutes."""
    print("| " + " | ".join(row) + " |", file=sys.stderr, flush=True)
    return row


def table(title: str, head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return f"### {title}\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
