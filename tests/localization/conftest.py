"""Small random models of three families, and samples to memorize."""

from typing import Any

import polars as pl
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.measure.cases import samples_of

V, P, S = 48, 8, 4


def small(family: str, blocks: int = 2, seed: int = 0, **more: Any) -> PreTrainedModel:
    """A random model of 2 heads of 16 and MLPs of 64 neurons; `more` of its configuration."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 64}
    sizes |= {"max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 0}
    if family == "gpt_neo":
        sizes |= {"num_layers": blocks, "num_heads": 2}
        kinds = {"attention_types": [[["global"], blocks]], "window_size": 32}
    else:
        sizes |= {"num_hidden_layers": blocks, "num_attention_heads": 2}
        kinds = {"mlp_bias": True} if family == "llama" else {}
    config = AutoConfig.for_model(family, **(sizes | kinds | more))
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="session")
def samples() -> pl.DataFrame:
    """Six texts to memorize."""
    generator = torch.Generator().manual_seed(1)
    return samples_of(torch.randint(1, V, (6, P + S), generator=generator).tolist(), P, S)
