"""GPT-Neo: learned positions, sequential residual, global and local attention, tied head."""

from __future__ import annotations

from typing import Any

from transformers import GPTNeoForCausalLM

from pipeline.models.activations import ACTIVATIONS
from pipeline.models.decoder import Block, Decoder, LayerNorm, Linear, Separate


def adapt(model: GPTNeoForCausalLM) -> Decoder:
    """The decoder over the model's own weights.

    GPT-Neo does not scale its attention scores. Every second block attends to a local window.

    Source: transformers 5.23, models/gpt_neo/modeling_gpt_neo.py.
    """
    config = model.config
    body: Any = model.transformer  # its blocks are modules without types
    blocks = tuple(
        Block(
            attention_norm=LayerNorm.of(each.ln_1),
            projections=Separate(
                query=Linear.of(each.attn.attention.q_proj),
                key=Linear.of(each.attn.attention.k_proj),
                value=Linear.of(each.attn.attention.v_proj),
                heads=config.num_heads,
            ),
            output=Linear.of(each.attn.attention.out_proj),
            mlp_norm=LayerNorm.of(each.ln_2),
            up=Linear.of(each.mlp.c_fc),
            activation=ACTIVATIONS[config.activation_function],
            down=Linear.of(each.mlp.c_proj),
            parallel=False,
            window=config.window_size if each.attn.attention_type == "local" else None,
        )
        for each in body.h
    )
    return Decoder(
        token_embedding=body.wte.weight,
        position_embedding=body.wpe.weight,
        rotary=None,
        blocks=blocks,
        final_norm=LayerNorm.of(body.ln_f),
        head=Linear.of(model.lm_head),
        heads=config.num_heads,
        attention_scale=1.0,
        context_length=config.max_position_embeddings,
        dtype=body.wte.weight.dtype,
    )
