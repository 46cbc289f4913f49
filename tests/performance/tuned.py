"""The plain loop as fast as stock transformers allow: the harder of the benchmark's two rivals.

One intervention after the other, as in the reference, but: bypassed blocks compute values alone,
GPT-NeoX runs on SDPA (GPT-Neo has no other attention than its own), the greedy loop is written out
in place of `generate`, the LM head runs at suffix positions only, and metrics are vectorized.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from pipeline.interventions.interventions import Intervention


@contextmanager
def values_only(model: PreTrainedModel, intervention: Intervention) -> Iterator[None]:
    """Attention modules of the bypassed blocks that compute nothing but values."""
    replaced = []
    for block in intervention.blocks:
        if hasattr(model, "gpt_neox"):
            module = model.gpt_neox.layers[block].attention
            heads = model.config.num_attention_heads
            fused = module.query_key_value
            weight = fused.weight.unflatten(0, (heads, 3, -1))[:, 2].flatten(0, 1).contiguous()
            bias = fused.bias.unflatten(0, (heads, 3, -1))[:, 2].flatten()
            output = module.dense
        else:
            module = model.transformer.h[block].attn
            weight, bias, output = (
                module.attention.v_proj.weight,
                None,
                module.attention.out_proj,
            )

        def forward(
            hidden, *_, layer_past=None, block=block, weight=weight, bias=bias, output=output, **__
        ):
            values = F.linear(hidden, weight, bias)
            if layer_past is not None and block == 0:  # transformers reads the length here
                layer_past.update(values[:, None], values[:, None], 0)
            return output(values), None

        module.forward = forward
        replaced.append(module)
    yield
    for module in replaced:
        del module.forward


@torch.inference_mode()
def complete(
    model: PreTrainedModel,
    tokens: Tensor,
    suffix_length: int,
    interventions: tuple[Intervention, ...],
    batch_size: int,
) -> Tensor:
    """The continuations (V, N, S); entropies and log-probabilities are computed and dropped."""
    made = []
    for intervention in interventions:
        with values_only(model, intervention):
            for start in range(0, len(tokens), batch_size):
                batch = tokens[start : start + batch_size]
                logits = model(batch[:, :-1], use_cache=False, logits_to_keep=suffix_length).logits
                log_probs = logits.log_softmax(-1)
                logits.argmax(-1)
                -(log_probs.exp() * log_probs).sum(-1).sum(-1)
                log_probs.gather(-1, batch[:, -suffix_length:, None]).sum(1)
                made.append(_greedy(model, batch[:, :-suffix_length], suffix_length))
    return torch.cat(made).view(len(interventions), len(tokens), suffix_length)


def _greedy(model: PreTrainedModel, prefix: Tensor, length: int) -> Tensor:
    cache = DynamicCache(config=model.config)
    written = []
    read = prefix
    for _ in range(length):
        logits = model(read, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        best = logits.topk(2)  # the margin, which every engine reports
        read = best.indices[:, :1]
        written.append(read)
    return torch.cat(written, 1)
