"""The continuations of a few prompts when one block is bypassed.

Two numbers say how far a continuation has collapsed: its perplexity under the unmodified model, and
its share of distinct bigrams. Noise has a high perplexity; a text that repeats itself has a low one
and few distinct bigrams.

Source: arXiv 2501.05078, Fig. 4, which shows texts and no number; distinct bigrams after Li et al.
(arXiv 1510.03055, distinct-2).
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, product, takewhile
from operator import eq
from typing import Any

import polars as pl
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from pipeline.interventions.editing import bypassed
from pipeline.interventions.evaluation import Progress, forbidden_tokens, silent
from pipeline.interventions.interventions import BASELINE, Intervention, block_name, bypass
from pipeline.measure.schemas import GENERATIONS
from pipeline.models.context import context_length
from pipeline.workflow.errors import InputError, Problem, bad_input, shorten
from pipeline.workflow.tables import dtypes

GREEDY, SAMPLED = DECODINGS = ("greedy", "sampled")


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    depths: Sequence[float],
    new_tokens: int,
    seed: int,
    progress: Progress = silent,
) -> pl.DataFrame:
    """Continue every prompt under the baseline and under each bypass: greedily, and by sampling.

    A continuation always has `new_tokens` tokens: the minimum is the maximum, as in the paper's
    code, so the end-of-text tokens of `model.generation_config` are never chosen. The rest of that
    configuration and transformers' own defaults are not applied: sampling is at temperature 1 from
    all other tokens of the vocabulary.

    Samples depend only on `seed` and on the prompt's position: all interventions use the same
    random numbers, so two samples differ only because of the bypass. A GPU draws other numbers than
    a CPU.

    Args:
        model: in evaluation mode, on any device.
        tokenizer: the model's own. Special tokens are not added to the prompts.
        prompts: one or more, each of one token or more.
        depths: depths of the blocks to bypass, one at a time; see `interventions_at`.
        new_tokens: length of each continuation, at least 1.
        seed: of the samples.
        progress: called after each continuation.

    Returns:
        As `schemas.GENERATIONS`: intervention by intervention (the baseline, then the blocks
        ascending), prompts in their order, greedy before sampled.

    Raises:
        InputError: no prompts; a prompt without tokens, with tokens beyond the model's vocabulary,
            or too long for its context with the continuation; less than one new token; a depth
            outside 0 to 1; an unsupported model; or logits with NaN or infinity.
        ValueError: the model is in training mode.
    """
    if model.training:
        raise ValueError("the model is in training mode, where dropout acts; call model.eval()")
    # not verbose: a prompt that is too long raises an error below
    encoded = [tokenizer.encode(text, add_special_tokens=False, verbose=False) for text in prompts]
    _check(model, prompts, encoded, depths, new_tokens)
    interventions = interventions_at(depths, model.config.num_hidden_layers)
    total = len(interventions) * len(prompts) * len(DECODINGS)

    def decode(tokens: list[int]) -> str:
        # neither option may change a character of the model's text
        return str(
            tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    made: dict[tuple[str, int, str], list[int]] = {}
    for intervention in interventions:
        with bypassed(model, intervention), _plain_generation(model), torch.inference_mode():
            for (prompt_id, prompt), decoding in product(enumerate(encoded), DECODINGS):
                key = intervention.name, prompt_id, decoding
                where = f"{intervention.name}, prompt {prompt_id}, {decoding}"
                with _seeded(model.device, f"{seed} {prompt_id}"):
                    made[key] = _continue(model, prompt, new_tokens, decoding == SAMPLED, where)
                progress(len(made), total)
    rows = []
    for (name, prompt_id, decoding), tokens in made.items():
        text, prompt = decode(tokens), encoded[prompt_id]
        same = _shared(tokens, made[BASELINE.name, prompt_id, decoding])
        # a character can take several tokens; it differs if the first of them differs
        first = (same, _shared(text, decode(tokens[:same]))) if same < new_tokens else (None, None)
        collapse = _perplexity(model, prompt, tokens), distinct_bigrams(tokens)
        given = prompts[prompt_id], prompt
        rows.append((name, prompt_id, decoding, *given, tokens, text, *first, *collapse))
    return pl.DataFrame(rows, schema=dtypes(GENERATIONS), orient="row")


def distinct_bigrams(tokens: Sequence[int]) -> float:
    """The share of distinct pairs among the pairs of neighbouring tokens; 1 without any pair."""
    pairs = list(pairwise(tokens))
    return len(set(pairs)) / len(pairs) if pairs else 1.0


def interventions_at(depths: Sequence[float], n_blocks: int) -> tuple[Intervention, ...]:
    """The baseline, and the bypass of the one block at each depth, ascending, each block once.

    A depth is a share, 0 (the first of `n_blocks`) to 1 (the last), so that one study fits models
    of different depth. It selects the nearest block, the even one where two are equally near.
    """
    blocks = sorted({round(depth * (n_blocks - 1)) for depth in depths})
    return (BASELINE, *(bypass(block_name(block), (block,)) for block in blocks))


# transformers' types do not know what `generate` takes and returns: Any


def _continue(
    model: Any, prompt: Sequence[int], new_tokens: int, sample: bool, where: str
) -> list[int]:
    """The tokens that the model appends to `prompt`; `where` is for the error message."""
    tokens = torch.tensor([prompt], device=model.device)
    # transformers keeps the 50 likeliest tokens by default: 0 keeps all
    choice = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {}
    output = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        do_sample=sample,
        use_cache=True,
        pad_token_id=0,  # never used, since no continuation ends early
        logits_processor=[_finite(model, where)],
        **choice,
    )
    made: list[int] = output[0, len(prompt) :].tolist()
    return made


@torch.inference_mode()
def _perplexity(model: Any, prompt: Sequence[int], made: Sequence[int]) -> float:
    """Of `made` after `prompt`, per token, as the model is now."""
    tokens = torch.tensor([[*prompt, *made]], device=model.device)
    logits = model(tokens[:, :-1]).logits[0, len(prompt) - 1 :]
    return math.exp(cross_entropy(logits.double(), tokens[0, len(prompt) :]).item())


def _finite(model: Any, where: str) -> Callable[[Tensor, Tensor], Tensor]:
    """A processor of logits that raises on NaN and infinity, and changes nothing."""
    never = forbidden_tokens(model)

    def require_finite(_tokens: Tensor, logits: Tensor) -> Tensor:
        # generate has set the end-of-text tokens to minus infinity already
        if not logits.index_fill(-1, never, 0.0).isfinite().all():
            remedy = "evaluate in float32; if it persists, the checkpoint's weights are broken"
            raise bad_input(where, "logits with NaN or infinity", "finite logits", remedy)
        return logits

    return require_finite


@contextmanager
def _plain_generation(model: Any) -> Iterator[None]:
    """Keep only the end-of-text tokens of the model's generation configuration.

    `generate` takes every option that the caller leaves out from it: penalties, banned tokens,
    beams.
    """
    own = model.generation_config
    stop = forbidden_tokens(model).tolist() or None  # those that the vocabulary has
    model.generation_config = GenerationConfig(eos_token_id=stop)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        model.generation_config = own


@contextmanager
def _seeded(device: torch.device, seed: str) -> Iterator[None]:
    """Seed the device's global generator, since `generate` takes none, and restore it afterwards.

    Seeds are hashed, so that seed 0 of prompt 1 is independent of seed 1 of prompt 0.
    """
    with torch.random.fork_rng([device.index] if device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big"))
        yield


def _shared(one: Sequence[object], other: Sequence[object]) -> int:
    """The length of the beginning that two sequences have in common."""
    return len(list(takewhile(bool, map(eq, one, other))))


def _check(
    model: PreTrainedModel,
    prompts: Sequence[str],
    encoded: Sequence[Sequence[int]],
    depths: Sequence[float],
    new_tokens: int,
) -> None:
    """Raise an InputError that lists every mismatch between the study and the model."""
    vocabulary, context = model.config.vocab_size, context_length(model.config)
    problems = []
    if not prompts:
        problems.append(("prompts", "none", "one or more", "name a prompt, or leave them out"))
    if new_tokens < 1:
        problems.append(("new tokens", str(new_tokens), "1 or more", "let the model write a token"))
    for i, (prompt, tokens) in enumerate(zip(prompts, encoded, strict=True)):
        what = f"prompt {i}, {shorten(prompt, 40)}"
        if not tokens:
            problems.append((what, "no tokens", "one token or more", "give it text"))
        if tokens and len(tokens) + new_tokens > context:
            got = f"{len(tokens)} tokens and {new_tokens} new ones"
            expected = f"at most {context} together, the model's context"
            problems.append((what, got, expected, "shorten the prompt, or ask for fewer tokens"))
        if max(tokens, default=0) >= vocabulary:
            got, expected = f"token id {max(tokens)}", f"ids below {vocabulary}, the vocabulary"
            problems.append((what, got, expected, "use the model's own tokenizer"))
    expected = "0 (the first block) to 1 (the last)"
    remedy = "divide the block by the number of blocks less one"
    odd = [depth for depth in depths if not 0 <= depth <= 1]  # so that NaN is refused too
    problems += [("depths", str(depth), expected, remedy) for depth in odd]
    if problems:
        raise InputError(*(Problem(*problem) for problem in problems))
