"""Tiny random models of the families, every one with a window, a group or a norm of its own."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
import torch
import transformers as t
from torch import nn

VOCABULARY, BLOCKS, WIDTH, HEADS, CONTEXT = 97, 5, 32, 4, 64
WINDOW = 5  # shorter than any text here
END_OF_TEXT = 3

_NO_TEXT_TOKENS = {"bos_token_id": None, "eos_token_id": None}
_BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    **_NO_TEXT_TOKENS,
}
_GROUPED = {**_BASE, "num_key_value_heads": 2}
_WIDE = {**_GROUPED, "head_dim": 16}  # H E is twice the width
_LOCAL = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
}
_GPT = {
    "n_embd": WIDTH,
    "n_layer": BLOCKS,
    "n_head": HEADS,
    "vocab_size": VOCABULARY,
    "n_positions": CONTEXT,
    "tie_word_embeddings": False,
    **_NO_TEXT_TOKENS,
}
_OPT = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "word_embed_proj_dim": WIDTH,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": HEADS,
    "ffn_dim": 48,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    **_NO_TEXT_TOKENS,
}
_FALCON = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    **_NO_TEXT_TOKENS,
}
_LAYERS = {"num_layers": BLOCKS, "tie_word_embeddings": False, **_NO_TEXT_TOKENS}

FAMILIES: dict[str, Callable[[], Any]] = {
    "gpt_neox": lambda: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**_BASE)),
    "gpt_neox-sequential": lambda: t.GPTNeoXForCausalLM(
        t.GPTNeoXConfig(**_BASE, use_parallel_residual=False)
    ),
    "gpt_neo": lambda: t.GPTNeoForCausalLM(
        t.GPTNeoConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_heads=HEADS,
            max_position_embeddings=CONTEXT,
            window_size=WINDOW,
            attention_types=[[["global", "local"], 2], [["local"], 1]],
            **_LAYERS,
        )
    ),
    "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(**_GPT)),
    "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**_GROUPED, attention_bias=True)),
    "mistral-window": lambda: t.MistralForCausalLM(
        t.MistralConfig(**_GROUPED, sliding_window=WINDOW)
    ),
    "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**_GROUPED)),
    "qwen2-window": lambda: t.Qwen2ForCausalLM(
        t.Qwen2Config(**_GROUPED, **_LOCAL, use_sliding_window=True)
    ),
    "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**_WIDE)),
    "olmo": lambda: t.OlmoForCausalLM(t.OlmoConfig(**_GROUPED)),
    "olmo-clip": lambda: t.OlmoForCausalLM(t.OlmoConfig(**_GROUPED, clip_qkv=0.5)),
    "olmo2": lambda: t.Olmo2ForCausalLM(t.Olmo2Config(**_GROUPED)),
    "olmo3": lambda: t.Olmo3ForCausalLM(t.Olmo3Config(**_GROUPED, **_LOCAL)),
    "gemma": lambda: t.GemmaForCausalLM(t.GemmaConfig(**_WIDE)),
    "gemma2": lambda: t.Gemma2ForCausalLM(t.Gemma2Config(**_WIDE, **_LOCAL)),
    "gemma3": lambda: t.Gemma3ForCausalLM(t.Gemma3TextConfig(**_WIDE, **_LOCAL)),
    "phi": lambda: t.PhiForCausalLM(t.PhiConfig(**_GROUPED)),
    "phi3": lambda: t.Phi3ForCausalLM(t.Phi3Config(**_GROUPED)),
    "phi3-window": lambda: t.Phi3ForCausalLM(t.Phi3Config(**_GROUPED, sliding_window=WINDOW)),
    "stablelm": lambda: t.StableLmForCausalLM(t.StableLmConfig(**_GROUPED)),
    "cohere": lambda: t.CohereForCausalLM(t.CohereConfig(**_GROUPED)),
    "cohere2": lambda: t.Cohere2ForCausalLM(t.Cohere2Config(**_GROUPED, **_LOCAL)),
    "granite": lambda: t.GraniteForCausalLM(t.GraniteConfig(**_GROUPED)),
    "smollm3": lambda: t.SmolLM3ForCausalLM(t.SmolLM3Config(**_GROUPED)),
    "starcoder2": lambda: t.Starcoder2ForCausalLM(
        t.Starcoder2Config(**_GROUPED, sliding_window=WINDOW)
    ),
    "opt": lambda: t.OPTForCausalLM(t.OPTConfig(**_OPT)),
    "opt-post-norm": lambda: t.OPTForCausalLM(t.OPTConfig(**_OPT, do_layer_norm_before=False)),
    "gptj": lambda: t.GPTJForCausalLM(t.GPTJConfig(**_GPT, rotary_dim=4)),
    "bloom": lambda: t.BloomForCausalLM(
        t.BloomConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            n_layer=BLOCKS,
            n_head=HEADS,
            tie_word_embeddings=False,
            **_NO_TEXT_TOKENS,
        )
    ),
    "falcon": lambda: t.FalconForCausalLM(t.FalconConfig(**_FALCON)),
    "falcon-grouped": lambda: t.FalconForCausalLM(
        t.FalconConfig(**_FALCON, new_decoder_architecture=True, num_kv_heads=2)
    ),
    "falcon-alibi": lambda: t.FalconForCausalLM(
        t.FalconConfig(**_FALCON, alibi=True, multi_query=False, parallel_attn=False, bias=True)
    ),
    "mpt": lambda: t.MptForCausalLM(
        t.MptConfig(
            d_model=WIDTH,
            n_heads=HEADS,
            n_layers=BLOCKS,
            vocab_size=VOCABULARY,
            max_seq_len=CONTEXT,
            tie_word_embeddings=False,
        )
    ),
    "hunyuan": lambda: t.HunYuanDenseV1ForCausalLM(t.HunYuanDenseV1Config(**_WIDE)),
    "glm": lambda: t.GlmForCausalLM(t.GlmConfig(**_WIDE)),
    "glm4": lambda: t.Glm4ForCausalLM(t.Glm4Config(**_WIDE)),
    "exaone4": lambda: t.Exaone4ForCausalLM(t.Exaone4Config(**_GROUPED, **_LOCAL)),
    "nemotron": lambda: t.NemotronForCausalLM(t.NemotronConfig(**_GROUPED)),
    "persimmon": lambda: t.PersimmonForCausalLM(t.PersimmonConfig(**_BASE)),
    "xglm": lambda: t.XGLMForCausalLM(
        t.XGLMConfig(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            ffn_dim=48,
            attention_heads=HEADS,
            max_position_embeddings=CONTEXT,
            pad_token_id=0,
            **_LAYERS,
        )
    ),
    "biogpt": lambda: t.BioGptForCausalLM(t.BioGptConfig(**_BASE)),
    "arcee": lambda: t.ArceeForCausalLM(t.ArceeConfig(**_GROUPED)),
    "seed_oss": lambda: t.SeedOssForCausalLM(t.SeedOssConfig(**_WIDE)),
    "ernie": lambda: t.Ernie4_5ForCausalLM(t.Ernie4_5Config(**_GROUPED)),
    "helium": lambda: t.HeliumForCausalLM(t.HeliumConfig(**_GROUPED, head_dim=8)),
    "bitnet": lambda: t.BitNetForCausalLM(t.BitNetConfig(**_GROUPED)),
    "mixtral": lambda: t.MixtralForCausalLM(
        t.MixtralConfig(**_GROUPED, num_local_experts=4, num_experts_per_tok=2)
    ),
    "qwen3_moe": lambda: t.Qwen3MoeForCausalLM(
        t.Qwen3MoeConfig(**_WIDE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    ),
}
"""Those that the engine supports."""

NOT_ADDITIVE = frozenset({"mixtral", "opt-post-norm", "qwen3_moe"})
"""Whose blocks return more than their input, an attention's and an MLP's output."""

OWN_ATTENTION = frozenset(
    {"bloom", "falcon", "falcon-alibi", "falcon-grouped", "gpt_neo", "gptj", "mpt", "xglm"}
)
"""Whose attention does not go through transformers' AttentionInterface."""

UNSUPPORTED: dict[str, Callable[[], Any]] = {
    "sinks": lambda: t.GptOssForCausalLM(
        t.GptOssConfig(
            **_WIDE,
            num_local_experts=4,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        )
    ),
    "state-space": lambda: t.MambaForCausalLM(
        t.MambaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=BLOCKS)
    ),
    "hybrid": lambda: t.JambaForCausalLM(t.JambaConfig(**_GROUPED)),
    "gated": lambda: t.Qwen3NextForCausalLM(
        t.Qwen3NextConfig(
            **_WIDE,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
        )
    ),
    "encoder-decoder": lambda: t.T5ForConditionalGeneration(
        t.T5Config(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            num_layers=BLOCKS,
            num_heads=HEADS,
            d_ff=48,
            d_kv=8,
        )
    ),
    "encoder": lambda: t.BertForMaskedLM(t.BertConfig(**_BASE)),
    "latent": lambda: t.DeepseekV3ForCausalLM(
        t.DeepseekV3Config(
            **_BASE | {"num_key_value_heads": HEADS},
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_nope_head_dim=8,
            qk_rope_head_dim=8,
            v_head_dim=16,
            first_k_dense_replace=BLOCKS,
        )
    ),
    "split-projection": lambda: t.CodeGenForCausalLM(t.CodeGenConfig(**_GPT, rotary_dim=4)),
}
"""What has no identity attention, or none that the engine can find."""


ESSENTIAL = frozenset(
    ("gpt_neox", "gpt_neo", "gpt2", "llama", "gemma2", "falcon", "bloom", "opt", "phi3", "mixtral")
)
"""One family of each layout of blocks. `make test` takes these, `make test-all` every family."""


def cases(families: Iterable[str]) -> list[Any]:
    """The families as parameters of a test, slow ones where they are not essential."""
    return [
        pytest.param(name, marks=() if name in ESSENTIAL else pytest.mark.slow) for name in families
    ]


@cache
def tiny(name: str) -> Any:
    """The model of a family. Shared: whoever changes one changes a copy."""
    with torch.inference_mode(False):  # the weights of a shared model can have gradients
        torch.manual_seed(0)
        return randomized(FAMILIES[name]())


def randomized(model: Any) -> Any:
    """Give a model weights with which attention, biases and norms all matter.

    Fresh weights are so small that a model repeats its last token whatever attention does.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.weight.normal_()
    model.generation_config.eos_token_id = END_OF_TEXT
    return model.eval()
