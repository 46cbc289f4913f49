"""Small GGUF files with random weights, as llama.cpp writes them."""

import json
from pathlib import Path

import torch
from gguf import GGUFWriter
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from pipeline.corpus.words import SAMPLED
from tests.own import byte_level, random_model

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def small_llama() -> LlamaForCausalLM:
    """Two blocks, four heads that share two keys and values, tied embeddings."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 400, "hidden_size": 32, "intermediate_size": 64}
    more = {"tie_word_embeddings": True, "initializer_range": 0.3}
    return random_model(2, **sizes, **more, bos_token_id=1, eos_token_id=2).eval()


def small_tokenizer(vocabulary: int = 400) -> PreTrainedTokenizerFast:
    """SmolLM2's kind: byte-level BPE, digits one by one; fitted to some passages."""
    tokenizer = byte_level(SAMPLED, vocabulary, SPECIAL, digits=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[2]
    )


def write_gguf(
    path: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, pre: str = "smollm"
) -> Path:
    """The model in float32, its queries and keys in llama.cpp's order."""
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    backend = tokenizer.backend_tokenizer
    inside = json.loads(backend.to_str())["model"]
    ids = sorted(inside["vocab"], key=inside["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(ids)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in ids])
    writer.add_token_merges([" ".join(pair) for pair in inside["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    state = model.state_dict()
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", state["model.norm.weight"].numpy())
    for block in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            weight = state[f"model.layers.{block}.{ours}.weight"]
            if theirs in heads:
                weight = _interleaved(weight, heads[theirs])
            writer.add_tensor(f"blk.{block}.{theirs}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _interleaved(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp turns neighbouring dimensions together, transformers those half a head apart."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)
