"""Gradient times activation: the effect of each block's attention and MLP on the loss of a suffix.

The output of a part at a token is a vector of the stream. Its inner product with the gradient of
the loss is, to first order, the amount by which the loss would fall if that vector were zero. One
backward pass gives it for all blocks.

Shapes: B samples of a batch, T = P + S positions, P prefix and S suffix tokens, D width, L blocks.

Source: Simonyan et al., arXiv 1312.6034, for the gradient; Nanda, attribution patching (2023), for
its product with activations of a language model.
"""

from typing import Any

import polars as pl
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.interventions.evaluation import Progress, require_completable, silent
from pipeline.measure.schemas import ATTRIBUTION
from pipeline.models.context import context_length
from pipeline.models.modules import attached
from pipeline.models.sites import anatomy, writing
from pipeline.samples.frame import check_samples
from pipeline.workflow.errors import bad_input
from pipeline.workflow.tables import cast, crossed

BATCH = 8
"""Samples in one backward pass, which keeps the states of all blocks."""


def measure(
    model: PreTrainedModel, samples: pl.DataFrame, progress: Progress = silent
) -> pl.DataFrame:
    """Multiply the output of each part of each block with the gradient of the loss by it.

    Args:
        model: in evaluation mode, on any device.
        samples: as `SAMPLES`, of any splits; one prefix and one suffix length.
        progress: called after each batch.

    Returns:
        As `schemas.ATTRIBUTION`, N x L x 2 rows: samples in their order, then blocks, then parts.

    Raises:
        InputError: a model whose blocks do not add attention and MLP to the stream, samples that
            `check_samples` rejects, or gradients that are not finite.
        ValueError: the model is in training mode.
    """
    check_samples(samples, model.config.vocab_size, context_length(model.config))
    tokens = torch.tensor(samples["tokens"].to_list())
    suffix_length = int(samples["suffix_length"][0])
    require_completable(model, tokens, suffix_length)
    parts = []
    for batch in torch.split(tokens, BATCH):
        found = products(model, batch.to(model.device), suffix_length)
        parts.append(found.abs().mean(-1).cpu())
        progress(sum(map(len, parts)), len(tokens))
    values = torch.cat(parts)  # (N, L, 2)
    if len(bad := (~values.isfinite()).nonzero()):
        raise bad_input(
            f"sample {samples['sample_id'][int(bad[0, 0])]}",
            "gradients that are not finite",
            "finite numbers",
            "evaluate the family in float32: set dtype under `evaluation`",
        )
    blocks = pl.DataFrame({"block": range(values.shape[1])})
    parts_of = pl.DataFrame({"part": ["attention", "mlp"]})
    rows = crossed(samples.select("sample_id", "split"), blocks, parts_of)
    value = pl.Series("value", values.double().flatten().numpy())
    return cast(rows.with_columns(value), ATTRIBUTION)


def products(model: PreTrainedModel, tokens: Tensor, suffix_length: int) -> Tensor:
    """Inner products of gradient and activation, (B, L, 2, T) nats: of attention, of the MLP.

    The loss of a sample is minus the log-probability of its suffix given its prefix, in nats.

    Args:
        model: in evaluation mode.
        tokens: (B, P+S) int64, on the model's device.
        suffix_length: S.

    Raises:
        InputError: a block does not add the outputs of attention and MLP to the stream.
    """
    known = anatomy(model)
    if not known.plain:
        raise bad_input(
            "attribution",
            type(model).__name__,
            "a model whose blocks add attention and MLP to the stream",
            "leave out the section `attribution`",
        )
    written: list[Tensor] = []

    def keep(_module: nn.Module, _args: Any, returned: Tensor) -> Tensor:
        written.append(returned if returned.requires_grad else returned.requires_grad_())
        return written[-1]

    hooks = (module.register_forward_hook(keep) for module in writing(known.sites))
    with attached(hooks), torch.enable_grad():
        logits = model(input_ids=tokens, use_cache=False).logits[:, -suffix_length - 1 : -1]
        wanted = tokens[:, -suffix_length:]
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), wanted.flatten(), reduction="sum"
        )
        gradients = torch.autograd.grad(loss, written)
    pairs = zip(gradients, written, strict=True)
    by_part = [(g * output.detach()).sum(-1).view(tokens.shape) for g, output in pairs]
    return torch.unflatten(torch.stack(by_part, 1), 1, (-1, 2))
