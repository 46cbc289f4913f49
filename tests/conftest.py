"""Tiny random models of both families, for every test that needs one."""

from collections.abc import Callable

import pytest
import torch
from transformers import (
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedModel,
)

VOCABULARY = 61
CONTEXT = 40
BLOCKS = 5
END_OF_TEXT = 0


def _neox(*, parallel: bool) -> PreTrainedModel:
    return GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=BLOCKS,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=CONTEXT,
            use_parallel_residual=parallel,
            bos_token_id=END_OF_TEXT,
            eos_token_id=END_OF_TEXT,
        )
    )


def _neo(*, window: int) -> PreTrainedModel:
    return GPTNeoForCausalLM(
        GPTNeoConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_layers=BLOCKS,
            num_heads=4,
            intermediate_size=64,
            max_position_embeddings=CONTEXT,
            attention_types=[[["global", "local"], 2], [["global"], 1]],
            window_size=window,
            bos_token_id=END_OF_TEXT,
            eos_token_id=END_OF_TEXT,
        )
    )


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "neox-parallel": lambda: _neox(parallel=True),
    "neox-sequential": lambda: _neox(parallel=False),
    "neo": lambda: _neo(window=CONTEXT),
    "neo-short-window": lambda: _neo(window=4),
}


def _build(name: str) -> PreTrainedModel:
    """A random model whose attention matters: fresh weights are so small that it hardly would."""
    torch.manual_seed(sorted(MODELS).index(name))
    model = MODELS[name]().eval()
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn_like(parameter) * (0.25 if parameter.dim() > 1 else 0.1))
    for norm in [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]:
        torch.nn.init.normal_(norm.weight, mean=1.0, std=0.1)
    return model


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tests run side by side, and tiny matrices gain nothing from a second thread."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    """Each of the tiny models in turn. Shared: whoever changes one changes a copy."""
    return _build(request.param)


@pytest.fixture(scope="session")
def neox() -> PreTrainedModel:
    """A tiny GPT-NeoX with parallel residual. Shared: whoever changes it changes a copy."""
    return _build("neox-parallel")


@pytest.fixture(scope="session")
def neo() -> PreTrainedModel:
    """A tiny GPT-Neo with short local windows. Shared: whoever changes it changes a copy."""
    return _build("neo-short-window")
