"""Tiny models of both families, random, trained and odd, for every test that needs one."""

import copy
import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

# Before torch is imported: a thread that waits for another one, on a core that a test beside this
# one needs, should not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedModel,
)

from pipeline.interventions.interventions import Intervention, bypass
from pipeline.workflow.progress import disable_monitor

if TYPE_CHECKING:
    from tests.hub.server import Hub

disable_monitor()

# how long an example takes says how busy the machine is
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

VOCABULARY = 61
CONTEXT = 40
BLOCKS = 5
END_OF_TEXT = 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole studies first: the longest tests, which would otherwise run last, one worker idle."""
    items.sort(key=lambda item: item.path.name != "test_study.py")


_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": END_OF_TEXT,
}


def _neox(blocks: int = BLOCKS, heads: int = 4, **more: Any) -> PreTrainedModel:
    sizes = {**_SIZES, "num_hidden_layers": blocks, "num_attention_heads": heads}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**sizes | more))


def _neo(kinds: list[str], heads: int = 4, **more: Any) -> PreTrainedModel:
    """A block for each kind: global or local."""
    sizes = {**_SIZES, "num_layers": len(kinds), "num_heads": heads}
    return GPTNeoForCausalLM(GPTNeoConfig(**sizes | more, attention_types=[[kinds, 1]]))


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "neox-parallel": lambda: _neox(use_parallel_residual=True),
    "neox-sequential": lambda: _neox(use_parallel_residual=False),
    "neo": lambda: _neo(["global", "local"] * 2 + ["global"], window_size=CONTEXT),
    "neo-short-window": lambda: _neo(["global", "local"] * 2 + ["global"], window_size=4),
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


@pytest.fixture(scope="session")
def threads() -> Callable[[int], AbstractContextManager[None]]:
    """A context that computes with so many threads, and afterwards with as many as before."""

    @contextmanager
    def computing(number: int) -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(number)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    return computing


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


# ------------------------------------------------------------- trained


@pytest.fixture(scope="session")
def memorized() -> Tensor:
    """Rows (8, 17) that the trained models know by heart."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(1, VOCABULARY, (8, 17), generator=generator)


@pytest.fixture(scope="session", params=["neo-short-window", "neox-parallel"])
def trained(request: pytest.FixtureRequest, memorized: Tensor) -> PreTrainedModel:
    """A model of each family that was trained on `memorized` and on nothing else."""
    torch.manual_seed(0)
    model = MODELS[request.param]().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        model(memorized, labels=memorized).loss.backward()
        optimizer.step()
    return model.eval()


# ------------------------------------------------------------- odd


_ODD = {
    "family": st.sampled_from(["neox", "neo"]),
    "blocks": st.integers(1, 4),
    "heads": st.sampled_from([1, 2]),
    "parallel": st.booleans(),
    "tied": st.booleans(),
    "attention_bias": st.booleans(),
    "activation": st.sampled_from(["gelu", "gelu_new", "relu"]),
    "rotary": st.sampled_from(["default", "linear"]),
    "rotary_share": st.sampled_from([0.25, 1.0]),
    "local": st.integers(0, 15),  # bit b: block b attends to a window
    "window": st.integers(1, 6),
    "scale": st.sampled_from([0.05, 0.5]),
    "stop": st.sampled_from([None, 3, [3, 5]]),
    "seed": st.integers(0, 99),
}


def _odd(settings: dict[str, Any]) -> PreTrainedModel:
    torch.manual_seed(settings["seed"])
    common = {
        "vocab_size": 23,
        "hidden_size": 16,
        "intermediate_size": 24,
        "max_position_embeddings": 16,
    }
    if settings["family"] == "neox":
        model = _neox(
            settings["blocks"],
            settings["heads"],
            use_parallel_residual=settings["parallel"],
            tie_word_embeddings=settings["tied"],
            attention_bias=settings["attention_bias"],
            hidden_act=settings["activation"],
            rope_parameters={
                "rope_type": settings["rotary"],
                "rope_theta": 10_000.0,
                "partial_rotary_factor": settings["rotary_share"],
                "factor": 2.0,
            },
            **common,
        )
    else:
        local = [bool(settings["local"] >> b & 1) for b in range(settings["blocks"])]
        model = _neo(
            ["local" if each else "global" for each in local],
            settings["heads"],
            window_size=settings["window"],
            activation_function=settings["activation"],
            **common,
        )
    model.generation_config.eos_token_id = settings["stop"]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=settings["scale"] if parameter.dim() > 1 else 0.3)
    return model.eval()


@st.composite
def _odd_case(draw: st.DrawFn) -> tuple[PreTrainedModel, list[Intervention]]:
    settings = draw(st.fixed_dictionaries(_ODD))
    blocks = st.sets(st.integers(0, settings["blocks"] - 1))
    sets = draw(st.lists(blocks, min_size=1, max_size=4))
    return _odd(settings), [bypass(f"{i}", tuple(sorted(each))) for i, each in enumerate(sets)]


@pytest.fixture(scope="session")
def odd_cases() -> st.SearchStrategy[tuple[PreTrainedModel, list[Intervention]]]:
    """Random models of every odd shape (one block, one head, a window of one, no biases …), each
    with interventions on any of its blocks, some of them equal.
    """
    return _odd_case()


# ------------------------------------------------------------- hand-made


@pytest.fixture(scope="session")
def overflowing() -> PreTrainedModel:
    """A GPT-NeoX in float16 in which token 7 overflows where block 0 is bypassed, else not.

    Its value is near the largest number there is. Attention to all positions alike makes it small
    enough from the third position on.
    """
    model = _build("neox-parallel")
    attention = model.gpt_neox.layers[0].attention
    heads, size = model.config.num_attention_heads, attention.head_size
    with torch.no_grad():
        model.gpt_neox.embed_in.weight[:, -1] = 0
        model.gpt_neox.embed_in.weight[7, -1] = 100
        weight = attention.query_key_value.weight.view(heads, 3, size, -1)
        bias = attention.query_key_value.bias.view(heads, 3, size)
        weight[:, :2] = 0
        bias[:, :2] = 0
        weight[0, 2, 0] = 0
        weight[0, 2, 0, -1] = 6000
        attention.dense.weight[0, 0] = 4
    return model.half()


@pytest.fixture(scope="session")
def with_identity_softmax() -> Callable[[PreTrainedModel, tuple[int, ...]], PreTrainedModel]:
    """Makes a stock GPT-NeoX whose edited query and key biases make softmax exactly the identity.

    With zero weights and all rotary biases c, a query scores a key at distance Δ with
    2 c² Σ_f cos(Δ θ_f) / sqrt(D/H): the larger c, the further distance 0 stands out.
    """

    def edited(model: PreTrainedModel, blocks: tuple[int, ...]) -> PreTrainedModel:
        model = copy.deepcopy(model)
        heads = model.config.num_attention_heads
        distances = torch.arange(1, model.config.max_position_embeddings).double()
        for block in blocks:
            attention = model.gpt_neox.layers[block].attention
            angles = distances[:, None] * model.gpt_neox.rotary_emb.inv_freq.double()
            gaps = 2 * (1 - angles.cos()).sum(1) / math.sqrt(attention.head_size)
            bias = (120 / gaps.min()).sqrt().float()  # softmax of a gap of 120 is 0 in float32
            weight = attention.query_key_value.weight.data.view(heads, 3, attention.head_size, -1)
            biases = attention.query_key_value.bias.data.view(heads, 3, attention.head_size)
            weight[:, :2] = 0
            biases[:, :2] = 0
            biases[:, :2, : attention.rotary_ndims] = bias
        return model

    return edited


# ------------------------------------------------------------- the local hub


@pytest.fixture(scope="session")
def populated_hub() -> Iterator["Hub"]:
    """The hub of all tests. Not to be changed: take `hub`."""
    from tests.hub.population import populate
    from tests.hub.server import Hub

    with Hub() as hub:
        populate(hub)
        yield hub


@pytest.fixture
def hub(populated_hub: "Hub") -> Iterator["Hub"]:
    """The hub without faults and with an empty log; what a test changes is undone afterwards."""
    with populated_hub.kept():
        yield populated_hub


@pytest.fixture
def hub_home(hub: "Hub", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the hub's client in this process keeps all; it asks `hub`, and no wait takes time."""
    from huggingface_hub import close_session, constants

    home = tmp_path / "home"
    for name, value in {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DOWNLOAD_TIMEOUT": 10,
        "HF_HUB_ETAG_TIMEOUT": 10,
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(variable, "127.0.0.1")
    for module in (
        "huggingface_hub.utils._http",
        "huggingface_hub.file_download",
        "pipeline.workflow.network",
    ):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(sleep=lambda seconds: None))
    close_session()
    yield home
    close_session()
