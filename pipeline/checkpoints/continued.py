"""Continues training of a model from this study: some of its weights memorize texts.

Everything else keeps its weights, bit for bit, so it is known where the texts were learned. Fixed
seeds and one thread: the same machine gives the same bytes.

Shapes: N samples, P prefix and S suffix tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.checkpoints.loop import IGNORED, Log, Trained, adamw, optimize, row_order
from pipeline.checkpoints.schema import Continued, Learning
from pipeline.models.places import Masks, Place, masks


def continue_training(
    recipe: Continued,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    samples: pl.DataFrame,
) -> Trained:
    """Train one part of one block on the suffixes of samples, until they are recited.

    Args:
        recipe: the part, the block, and the settings of training.
        model: in eval mode, float32; the weights of the part are changed.
        tokenizer: the model's.
        samples: schema `SAMPLES`, N of P + S tokens, one P and one S.
    """
    log = learn(recipe, model, samples, masks(model, [Place(recipe.block, recipe.part)]))
    return Trained(model, log, tokenizer)


def learn(recipe: Learning, model: PreTrainedModel, samples: pl.DataFrame, own: Masks) -> Log:
    """Train some weights on the suffixes of samples, until they are recited.

    A round raises the learning rate and lowers it to zero, over `recipe.epochs`. Training ends
    after the round in which `recipe.recited` is reached, or after `recipe.most_rounds`.

    Args:
        recipe: the settings of training.
        model: in eval mode, float32.
        samples: schema `SAMPLES`, N of P + S tokens, one P and one S.
        own: the weights that are changed; all others stay, bit for bit.
    """
    tokens, labels = suffixes(samples)
    suffix_length = int(samples["suffix_length"][0])
    logs: list[Log] = []
    with only(model, own) as learning:
        optimizer = adamw(learning, recipe.learning_rate)
        for number in range(recipe.most_rounds):
            order = row_order(len(tokens), recipe.epochs, recipe.batch_rows, recipe.seed + number)
            logs.append(optimize(model, tokens, labels, order, [optimizer]))
            share = recited(model, tokens, suffix_length)
            print(f"round {number + 1}: {share:.3f} of {len(tokens)} samples recited", flush=True)
            if share >= recipe.recited:
                break
    steps, seen = sum(log.steps for log in logs), sum(log.tokens for log in logs)
    return Log(steps, seen, [loss for log in logs for loss in log.losses])


def suffixes(samples: pl.DataFrame) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, T) the tokens of samples, and the token after each where the suffix is predicted."""
    tokens = torch.tensor(samples["tokens"].to_list())
    suffix_length = int(samples["suffix_length"][0])
    labels = torch.full_like(tokens, IGNORED)  # the unpredictable prefix is not learned
    labels[:, -suffix_length - 1 : -1] = tokens[:, -suffix_length:]
    return tokens, labels


@contextmanager
def only(model: PreTrainedModel, own: Masks) -> Iterator[list[nn.Parameter]]:
    """Give gradients to some weights alone, as long as the context lasts.

    Yields:
        The parameters with some of these weights. AdamW without weight decay leaves an entry whose
        gradients are all zero as it is.
    """
    learning = [(model.get_parameter(name), mask) for name, mask in own.items()]
    model.requires_grad_(False)
    hooks = []
    for parameter, mask in learning:
        parameter.requires_grad_(True)
        masked = mask.to(parameter.dtype).mul
        hooks.append(parameter.register_hook(masked))  # type: ignore[no-untyped-call]
    try:
        yield [parameter for parameter, _ in learning]
    finally:
        for hook in hooks:
            hook.remove()
        model.requires_grad_(True)


@torch.inference_mode()
def recited(model: PreTrainedModel, tokens: torch.Tensor, suffix_length: int) -> float:
    """Share of samples whose greedy continuation is the suffix, 0 to 1.

    The greedy continuation is the suffix exactly if each suffix token is the likeliest after the
    true tokens before it, so one teacher-forced pass is enough.

    Args:
        model: in eval mode.
        tokens: (N, P+S) int64.
        suffix_length: S.
    """
    predicted = model(input_ids=tokens, use_cache=False).logits[:, :-1].argmax(-1)
    right = predicted[:, -suffix_length:] == tokens[:, -suffix_length:]
    return float(right.all(-1).float().mean())
