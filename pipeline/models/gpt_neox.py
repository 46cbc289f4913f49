"""GPT-NeoX, Pythia's family: rotary positions, parallel or sequential residual, untied head."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPTNeoXForCausalLM

from pipeline.models.activations import ACTIVATIONS
from pipeline.models.decoder import Block, Decoder, Interleaved, LayerNorm, Linear, Rotary


def adapt(model: GPTNeoXForCausalLM) -> Decoder:
    """The decoder over the model's own weights.

    Source: transformers 5.23, models/gpt_neox/modeling_gpt_neox.py.
    """
    config = model.config
    body: Any = model.gpt_neox  # its blocks are modules without types
    blocks = tuple(
        Block(
            attention_norm=LayerNorm.of(each.input_layernorm),
            projections=Interleaved(
                Linear.of(each.attention.query_key_value), config.num_attention_heads
            ),
            output=Linear.of(each.attention.dense),
            mlp_norm=LayerNorm.of(each.post_attention_layernorm),
            up=Linear.of(each.mlp.dense_h_to_4h),
            activation=ACTIVATIONS[config.hidden_act],
            down=Linear.of(each.mlp.dense_4h_to_h),
            parallel=config.use_parallel_residual,
            window=None,
        )
        for each in body.layers
    )
    return Decoder(
        token_embedding=body.embed_in.weight,
        position_embedding=None,
        rotary=_rotary(model),
        blocks=blocks,
        final_norm=LayerNorm.of(body.final_layer_norm),
        head=Linear.of(model.lm_head),
        heads=config.num_attention_heads,
        attention_scale=(config.hidden_size // config.num_attention_heads) ** -0.5,
        context_length=config.max_position_embeddings,
        dtype=body.embed_in.weight.dtype,
    )


def _rotary(model: GPTNeoXForCausalLM) -> Rotary:
    """The stock model's own cosines and sines at every position, before any cast."""
    device = model.gpt_neox.embed_in.weight.device
    positions = torch.arange(model.config.max_position_embeddings, device=device)
    like = torch.empty(0, dtype=torch.float32, device=device)  # gives the device and the dtype
    cosine, sine = model.gpt_neox.rotary_emb(like, positions[None])
    half = cosine.shape[-1] // 2  # the second half repeats the first
    size = model.config.hidden_size // model.config.num_attention_heads
    return Rotary(cosine[0, :, :half].contiguous(), sine[0, :, :half].contiguous(), size)
