"""Continues training of a model from this study: one part of one block memorizes texts.

Everything else keeps its weights, bit for bit, so it is known where the texts were learned. Fixed
seeds and one thread: the same machine gives the same bytes.

Shapes: N samples, P prefix and S suffix tokens.
"""

from __future__ import annotations

import polars as pl
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.checkpoints.loop import IGNORED, Log, Trained, adamw, optimize, row_order
from pipeline.checkpoints.schema import Continued
from pipeline.models.sites import anatomy


def continue_training(
    recipe: Continued,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    samples: pl.DataFrame,
) -> Trained:
    """Train one part of one block on the suffixes of samples, until they are recited.

    A round raises the learning rate and lowers it to zero, over `recipe.epochs`. Training ends
    after the round in which `recipe.recited` is reached, or after `recipe.most_rounds`.

    Args:
        recipe: the part, the block, and the settings of training.
        model: in eval mode, float32; the weights of the part are changed.
        tokenizer: the model's.
        samples: schema `SAMPLES`, N of P + S tokens, one P and one S.
    """
    tokens = torch.tensor(samples["tokens"].to_list())
    suffix_length = int(samples["suffix_length"][0])
    labels = torch.full_like(tokens, IGNORED)  # the unpredictable prefix is not learned
    labels[:, -suffix_length - 1 : -1] = tokens[:, -suffix_length:]
    learning = parameters_of(model, recipe.block, recipe.part)
    model.requires_grad_(False)
    for parameter in learning:
        parameter.requires_grad_(True)
    optimizer = adamw(learning, recipe.learning_rate)
    logs: list[Log] = []
    for number in range(recipe.most_rounds):
        order = row_order(len(tokens), recipe.epochs, recipe.batch_rows, recipe.seed + number)
        logs.append(optimize(model, tokens, labels, order, [optimizer]))
        share = recited(model, tokens, suffix_length)
        print(f"round {number + 1}: {share:.3f} of {len(tokens)} samples recited", flush=True)
        if share >= recipe.recited:
            break
    model.requires_grad_(True)
    steps, seen = sum(log.steps for log in logs), sum(log.tokens for log in logs)
    losses = [loss for log in logs for loss in log.losses]
    return Trained(model, Log(steps, seen, losses), tokenizer)


def parameters_of(model: PreTrainedModel, block: int, part: str) -> list[nn.Parameter]:
    """The weights of a block's attention, of its MLP or of both, without norms."""
    site = anatomy(model).sites[block]
    modules = {"attention": site.attention, "mlp": site.mlp}
    chosen = [module for name, module in modules.items() if part in (name, "both")]
    return [
        parameter
        for child in site.block.children()
        if any(each is one for each in child.modules() for one in chosen)
        for parameter in child.parameters()
    ]


@torch.inference_mode()
def recited(model: PreTrainedModel, tokens: torch.Tensor, suffix_length: int) -> float:
    """Share of samples whose greedy continuation is the suffix, 0 to 1.

    The greedy continuation is the suffix exactly if each suffix token is the likeliest after the
    true tokens before it, so one teacher-forced pass is enough.
    """
    predicted = model(input_ids=tokens, use_cache=False).logits[:, :-1].argmax(-1)
    right = predicted[:, -suffix_length:] == tokens[:, -suffix_length:]
    return float(right.all(-1).float().mean())
