"""Continues training of a model from this study: some of its weights memorize texts.

Everything else keeps its weights, bit for bit, so it is known where the texts were learned. Fixed
seeds and one thread: the same machine gives the same bytes.

Shapes: N samples of T tokens, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.checkpoints.loop import IGNORED, Log, adamw, optimize, row_order
from pipeline.checkpoints.schema import Learning
from pipeline.models.modules import attached
from pipeline.models.places import Masks


def learn(recipe: Learning, model: PreTrainedModel, samples: pl.DataFrame, own: Masks) -> Log:
    """Train some weights on the suffixes of samples, until they are recited.

    A round raises the learning rate and lowers it to zero, over `recipe.epochs`. Training ends
    after the round in which `recipe.recited` is reached, or after `recipe.most_rounds`. The model
    is in eval mode, float32; the samples have schema `SAMPLES`, one prefix and one suffix length.
    All weights but `own` stay, bit for bit.
    """
    tokens, labels = suffixes(samples)
    logs: list[Log] = []
    with only(model, own) as learning:
        optimizer = adamw(learning, recipe.learning_rate)
        for number in range(recipe.most_rounds):
            order = row_order(len(tokens), recipe.epochs, recipe.batch_rows, recipe.seed + number)
            logs.append(optimize(model, tokens, labels, order, [optimizer]))
            share = recited(model, samples)
            print(f"round {number + 1}: {share:.3f} of {len(tokens)} samples recited", flush=True)
            if share >= recipe.recited:
                break
    steps, seen = sum(log.steps for log in logs), sum(log.tokens for log in logs)
    return Log(steps, seen, [loss for log in logs for loss in log.losses])


def suffixes(samples: pl.DataFrame) -> tuple[Tensor, Tensor]:
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
    learning = {model.get_parameter(name): mask for name, mask in own.items()}
    model.requires_grad_(False)
    try:
        with attached(
            parameter.requires_grad_().register_hook(mask.to(parameter.dtype).mul)  # type: ignore[no-untyped-call]
            for parameter, mask in learning.items()
        ):
            yield [*learning]
    finally:
        model.requires_grad_(True)


def right(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) whether each token of the suffix is the likeliest after the true tokens before it.

    Exactly then the greedy continuation is the suffix, so the logits (N, T, V) of one pass over the
    true tokens are enough. The labels are those of `suffixes`.
    """
    return ((logits.argmax(-1) == labels) | (labels == IGNORED)).all(-1)


@torch.inference_mode()
def recited(model: PreTrainedModel, samples: pl.DataFrame) -> float:
    """Share of samples whose greedy continuation is the suffix, 0 to 1, of a model in eval mode."""
    tokens, labels = suffixes(samples)
    return float(right(model(input_ids=tokens, use_cache=False).logits, labels).float().mean())
