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

_UNTIED: dict[str, Any] = {"vocab_size": VOCABULARY, "tie_word_embeddings": False}
_SMALL = {**_UNTIED, "bos_token_id": None, "eos_token_id": None}
_BASE = {
    **_SMALL,
    "hidden_size": WIDTH,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
}
_GROUPED = {**_BASE, "num_key_value_heads": 2}
_WIDE = {**_GROUPED, "head_dim": 16}  # H E is twice the width
_LOCAL = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_GPT = {**_SMALL, "n_embd": WIDTH, "n_layer": BLOCKS, "n_head": HEADS, "n_positions": CONTEXT}
_OPT = {**_BASE, "word_embed_proj_dim": WIDTH, "ffn_dim": 48}
_FALCON = {key: value for key, value in _BASE.items() if key != "intermediate_size"}
_LAYERS = {**_SMALL, "num_layers": BLOCKS, "max_position_embeddings": CONTEXT}


def _causal(name: str, **sizes: Any) -> Callable[[], Any]:
    """What makes transformers' causal model of a configuration, told by its name before Config."""
    return lambda: t.AutoModelForCausalLM.from_config(getattr(t, f"{name}Config")(**sizes))


FAMILIES: dict[str, Callable[[], Any]] = {
    "gpt_neox": _causal("GPTNeoX", **_BASE),
    "gpt_neox-sequential": _causal("GPTNeoX", **_BASE, use_parallel_residual=False),
    "gpt_neo": _causal(
        "GPTNeo",
        **_LAYERS,
        hidden_size=WIDTH,
        num_heads=HEADS,
        window_size=WINDOW,
        attention_types=[[["global", "local"], 2], [["local"], 1]],
    ),
    "gpt2": _causal("GPT2", **_GPT),
    "llama": _causal("Llama", **_GROUPED, attention_bias=True),
    "mistral-window": _causal("Mistral", **_GROUPED, sliding_window=WINDOW),
    "qwen2": _causal("Qwen2", **_GROUPED),
    "qwen2-window": _causal("Qwen2", **_GROUPED, **_LOCAL, use_sliding_window=True),
    "qwen3": _causal("Qwen3", **_WIDE),
    "olmo": _causal("Olmo", **_GROUPED),
    "olmo-clip": _causal("Olmo", **_GROUPED, clip_qkv=0.5),
    "olmo2": _causal("Olmo2", **_GROUPED),
    "olmo3": _causal("Olmo3", **_GROUPED, **_LOCAL),
    "gemma": _causal("Gemma", **_WIDE),
    "gemma2": _causal("Gemma2", **_WIDE, **_LOCAL),
    "gemma3": _causal("Gemma3Text", **_WIDE, **_LOCAL),
    "phi": _causal("Phi", **_GROUPED),
    "phi3": _causal("Phi3", **_GROUPED),
    "phi3-window": _causal("Phi3", **_GROUPED, sliding_window=WINDOW),
    "stablelm": _causal("StableLm", **_GROUPED),
    "cohere": _causal("Cohere", **_GROUPED),
    "cohere2": _causal("Cohere2", **_GROUPED, **_LOCAL),
    "granite": _causal("Granite", **_GROUPED),
    "smollm3": _causal("SmolLM3", **_GROUPED),
    "starcoder2": _causal("Starcoder2", **_GROUPED, sliding_window=WINDOW),
    "opt": _causal("OPT", **_OPT),
    "opt-post-norm": _causal("OPT", **_OPT, do_layer_norm_before=False),
    "gptj": _causal("GPTJ", **_GPT, rotary_dim=4),
    "bloom": _causal("Bloom", **_SMALL, hidden_size=WIDTH, n_layer=BLOCKS, n_head=HEADS),
    "falcon": _causal("Falcon", **_FALCON),
    "falcon-grouped": _causal("Falcon", **_FALCON, new_decoder_architecture=True, num_kv_heads=2),
    "falcon-alibi": _causal(
        "Falcon", **_FALCON, alibi=True, multi_query=False, parallel_attn=False, bias=True
    ),
    "mpt": _causal(
        "Mpt", **_UNTIED, d_model=WIDTH, n_heads=HEADS, n_layers=BLOCKS, max_seq_len=CONTEXT
    ),
    "hunyuan": _causal("HunYuanDenseV1", **_WIDE),
    "glm": _causal("Glm", **_WIDE),
    "glm4": _causal("Glm4", **_WIDE),
    "exaone4": _causal("Exaone4", **_GROUPED, **_LOCAL),
    "nemotron": _causal("Nemotron", **_GROUPED),
    "persimmon": _causal("Persimmon", **_BASE),
    "xglm": _causal(
        "XGLM", **_LAYERS, d_model=WIDTH, ffn_dim=48, attention_heads=HEADS, pad_token_id=0
    ),
    "biogpt": _causal("BioGpt", **_BASE),
    "arcee": _causal("Arcee", **_GROUPED),
    "seed_oss": _causal("SeedOss", **_WIDE),
    "ernie": _causal("Ernie4_5", **_GROUPED),
    "helium": _causal("Helium", **_GROUPED, head_dim=8),
    "bitnet": _causal("BitNet", **_GROUPED),
    "mixtral": _causal("Mixtral", **_GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": _causal("Qwen3Moe", **_WIDE, **_EXPERTS),
}
"""Those that the engine supports."""

NOT_ADDITIVE = frozenset({"mixtral", "opt-post-norm", "qwen3_moe"})
"""Whose blocks return more than their input, an attention's and an MLP's output."""

OWN_ATTENTION = frozenset(
    {"bloom", "falcon", "falcon-alibi", "falcon-grouped", "gpt_neo", "gptj", "mpt", "xglm"}
)
"""Whose attention does not go through transformers' AttentionInterface."""

UNSUPPORTED: dict[str, Callable[[], Any]] = {
    "sinks": _causal(
        "GptOss",
        **_WIDE,
        num_local_experts=4,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
    "state-space": _causal("Mamba", **_UNTIED, hidden_size=WIDTH, num_hidden_layers=BLOCKS),
    "hybrid": _causal("Jamba", **_GROUPED),
    "gated": _causal("Qwen3Next", **_WIDE, **_EXPERTS, shared_expert_intermediate_size=16),
    "encoder-decoder": lambda: t.T5ForConditionalGeneration(
        t.T5Config(vocab_size=VOCABULARY, d_model=WIDTH, num_layers=BLOCKS, num_heads=HEADS, d_kv=8)
    ),
    "encoder": lambda: t.BertForMaskedLM(t.BertConfig(**_BASE)),
    "latent": _causal(
        "DeepseekV3",
        **_BASE | {"num_key_value_heads": HEADS},
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=16,
        first_k_dense_replace=BLOCKS,
    ),
    "split-projection": _causal("CodeGen", **_GPT, rotary_dim=4),
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
