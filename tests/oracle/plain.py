"""The reference: stock transformers models, one intervention after the other, nothing clever.

It is the oracle for every faster way of evaluating and the baseline that their speed is measured
against. Two engines with the same signatures and the same results are interchangeable.

Shapes: V interventions, N samples, R requests, P prefix and S suffix tokens, B batch,
T positions, D width, H heads.

Source: arXiv 2501.05078, section 3.2 and A.3.2 (the bypass), 4.1 and Eq. 3 to 5 (what is measured).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPTNeoForCausalLM, GPTNeoXForCausalLM, PreTrainedModel

from pipeline.interventions.evaluation import (
    Completions,
    Likelihoods,
    Progress,
    Request,
    require_completable,
    require_scorable,
    silent,
)
from pipeline.interventions.interventions import IDENTITY, Intervention
from pipeline.errors import InputError, Problem

# --------------------------------------------------------------------------- the bypass


@dataclass(frozen=True)
class _Attention:
    """Where one block's attention has its values and its output projection.

    Args:
        projection: its output (B, T, …) holds the values.
        values: picks them out, (B, T, D), heads side by side as `output` expects them.
        output: the output projection, (B, T, D) to (B, T, D).
    """

    projection: nn.Module
    values: Callable[[Tensor], Tensor]
    output: nn.Module


# transformers' types know neither the attributes of its modules nor what `generate` returns: Any


def _gpt_neox(model: Any) -> list[_Attention]:
    def values_of(heads: int) -> Callable[[Tensor], Tensor]:
        # query_key_value is interleaved head by head: (B, T, H, 3, D/H), not three parts of D
        return lambda qkv: qkv.view(*qkv.shape[:-1], heads, 3, -1)[..., 2, :].flatten(-2)

    heads = model.config.num_attention_heads
    return [
        _Attention(layer.attention.query_key_value, values_of(heads), layer.attention.dense)
        for layer in model.gpt_neox.layers
    ]


def _gpt_neo(model: Any) -> list[_Attention]:
    attentions = [block.attn.attention for block in model.transformer.h]
    return [_Attention(each.v_proj, lambda values: values, each.out_proj) for each in attentions]


_FAMILIES: dict[type[PreTrainedModel], Callable[[Any], list[_Attention]]] = {
    GPTNeoXForCausalLM: _gpt_neox,
    GPTNeoForCausalLM: _gpt_neo,
}


@contextmanager
def bypassed(model: PreTrainedModel, intervention: Intervention) -> Iterator[PreTrainedModel]:
    """Give the intervention's blocks identity attention for as long as the context lasts.

    A bypassed block computes its attention as always, and so keeps its KV cache (transformers
    reads the length of the whole cache from block 0), but its output projection then receives
    the values of the same positions in place of the mixture: what identity weights would give.
    Masks, padding, windows and the cache cannot matter to it.

    Args:
        model: a stock GPTNeoXForCausalLM or GPTNeoForCausalLM, with any attention implementation.
        intervention: the baseline changes nothing.

    Yields:
        The same model. Its weights are not touched; afterwards, after an exception too, it
        computes what it did before, bit for bit.

    Raises:
        InputError: another class of model, or a block that it does not have.
    """
    attentions = _attentions(model)
    _check_blocks(intervention, len(attentions))
    with ExitStack() as stack:
        for block, operation in intervention.edits.items():
            if operation != IDENTITY:
                raise NotImplementedError(f"{intervention.name}: {operation} on block {block}")
            _pass_values_through(attentions[block], stack)
        yield model


def _pass_values_through(attention: _Attention, stack: ExitStack) -> None:
    """Hand the values to the output projection until `stack` closes."""
    values: list[Tensor] = []

    def remember(_module: nn.Module, _arguments: object, projected: Tensor) -> None:
        values.append(attention.values(projected))

    def replace(_module: nn.Module, _arguments: object) -> tuple[Tensor]:
        return (values.pop(),)

    stack.callback(attention.projection.register_forward_hook(remember).remove)
    stack.callback(attention.output.register_forward_pre_hook(replace).remove)


def _attentions(model: PreTrainedModel) -> list[_Attention]:
    for family, attentions in _FAMILIES.items():
        if isinstance(model, family):
            return attentions(model)
    raise InputError(
        Problem(
            what="the model's class",
            got=type(model).__name__,
            expected=" or ".join(family.__name__ for family in _FAMILIES),
            remedy="evaluate a model of the GPT-NeoX (Pythia) or GPT-Neo family",
        )
    )


def _check_blocks(intervention: Intervention, n_blocks: int) -> None:
    beyond = [block for block in intervention.blocks if block >= n_blocks]
    if beyond:
        raise InputError(
            Problem(
                what=f"intervention {intervention.name}",
                got=f"blocks {', '.join(map(str, beyond))}",
                expected=f"blocks 0 to {n_blocks - 1}",
                remedy=f"plan the interventions for a model of {n_blocks} blocks",
            )
        )


# --------------------------------------------------------------------------- memorization


def complete(
    model: PreTrainedModel,
    tokens: Tensor,
    suffix_length: int,
    interventions: Sequence[Intervention],
    batch_size: int,
    progress: Progress = silent,
) -> Completions:
    """What the model does with each sample's suffix, by the plain loop.

    Per intervention and batch: one teacher-forced forward, one greedy `generate` with a KV cache.
    The minimum and the maximum number of new tokens are both S, as in the paper's code, so the
    end-of-text tokens of `model.generation_config` are never chosen and cannot end a continuation;
    in everything teacher-forced they stay in the vocabulary.

    Args:
        model: in evaluation mode, on any device.
        tokens: (N, P+S) int64, ids below the vocabulary's size; P and S at least 1.
        suffix_length: S.
        interventions: V of them, distinct.
        batch_size: samples in one forward; it changes no token unless two logits nearly tie.
        progress: told after each batch.

    Returns:
        On the CPU, in the order of `interventions` and `tokens`.

    Raises:
        InputError: an unsupported model, a block beyond the last, or logits with NaN or infinity.
    """
    require_completable(model, tokens, suffix_length)
    prefix_length = tokens.shape[1] - suffix_length
    total = len(interventions) * -(-len(tokens) // batch_size)
    done = 0
    rows: list[Completions] = []
    for intervention in interventions:
        parts: list[Completions] = []
        with bypassed(model, intervention), torch.inference_mode():
            for start in range(0, len(tokens), batch_size):
                batch = tokens[start : start + batch_size].to(model.device)
                where = _Place(intervention, "sample", range(start, start + len(batch)))
                forced = _teacher_forced(model, batch, suffix_length, where)
                greedy = _greedy(model, batch[:, :prefix_length], suffix_length, where)
                parts.append(_to_cpu(Completions(**forced, **greedy)))
                done += 1
                progress(done, total)
        rows.append(_join(torch.cat, parts))
    return _join(torch.stack, rows)


def _teacher_forced(
    model: PreTrainedModel, batch: Tensor, suffix_length: int, where: _Place
) -> dict[str, Tensor]:
    """The fields of `Completions` that come from reading the true suffix; each (B, …)."""
    # The row at position t predicts token t+1: rows P-1 to P+S-2 predict the suffix (Eq. 5), and
    # they are the last S of a forward without the last token.
    output = model(input_ids=batch[:, :-1], use_cache=False, logits_to_keep=suffix_length)
    logits = output.logits.float()  # (B, S, vocabulary)
    where.require_finite(logits)
    log_probs = logits.log_softmax(-1)
    suffix = batch[:, -suffix_length:]
    entropies = -(log_probs.exp() * log_probs).sum(-1, dtype=torch.float64)
    chosen = log_probs.gather(-1, suffix.unsqueeze(-1)).squeeze(-1)
    return {
        "teacher_forced": logits.argmax(-1),
        "completion_entropy": entropies.sum(-1),
        "suffix_log_prob": chosen.sum(-1, dtype=torch.float64),
    }


def _greedy(model: Any, prefix: Tensor, suffix_length: int, where: _Place) -> dict[str, Tensor]:
    """The fields of `Completions` that come from the model's own continuation; each (B, …)."""
    stop = model.generation_config.eos_token_id
    never = torch.tensor([] if stop is None else stop, dtype=torch.long, device=prefix.device)
    output = model.generate(
        prefix,
        attention_mask=torch.ones_like(prefix),
        min_new_tokens=suffix_length,
        max_new_tokens=suffix_length,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,  # it is never used: no row ends early
        output_logits=True,
        return_dict_in_generate=True,
    )
    margins = []
    for logits in output.logits:  # S of them, (B, vocabulary)
        where.require_finite(logits)
        choice = logits.float().index_fill(-1, never, -torch.inf)
        best, second = choice.topk(2).values.unbind(-1)
        margins.append(best - second)
    return {
        "continuation": output.sequences[:, -suffix_length:],
        "min_margin": torch.stack(margins).amin(0),
    }


def _join(how: Callable[[list[Tensor]], Tensor], parts: Sequence[Completions]) -> Completions:
    return Completions(
        continuation=how([part.continuation for part in parts]),
        teacher_forced=how([part.teacher_forced for part in parts]),
        completion_entropy=how([part.completion_entropy for part in parts]),
        suffix_log_prob=how([part.suffix_log_prob for part in parts]),
        min_margin=how([part.min_margin for part in parts]),
    )


def _to_cpu(part: Completions) -> Completions:
    return _join(lambda tensors: tensors[0].cpu(), [part])


# --------------------------------------------------------------------------- benchmarks


def score(
    model: Any,
    requests: Sequence[Request],
    interventions: Sequence[Intervention],
    batch_size: int,
    progress: Progress = silent,
    max_length: int | None = None,
) -> Likelihoods:
    """The log-likelihood of each continuation given its context, by the plain loop.

    As lm-eval does it: what is longer than the model's context loses tokens on the left, padding
    stands on the right, the longest come first, and requests that differ in the last token of the
    continuation alone share a row.

    Args:
        model: in evaluation mode, on any device.
        requests: R pairs of a context and a continuation, token ids.
        interventions: V of them, distinct.
        batch_size: rows in one forward.
        progress: told after each batch.
        max_length: positions that the model may see; its own context length unless given.

    Returns:
        On the CPU, in the order of `interventions` and `requests`.

    Raises:
        InputError: an unsupported model, a block beyond the last, a request with an empty side or
            with a continuation longer than `max_length`, or logits with NaN or infinity.

    Source: HFLM._loglikelihood_tokens of lm-eval 0.4.13; sums in float64, there float32.
    """
    max_length = max_length or model.config.max_position_embeddings
    require_scorable(model, requests, max_length)
    batches = _batches(requests, batch_size, max_length)
    log_prob = torch.zeros(len(interventions), len(requests), dtype=torch.float64)
    is_greedy = torch.ones(len(interventions), len(requests), dtype=torch.bool)
    for v, intervention in enumerate(interventions):
        with bypassed(model, intervention), torch.inference_mode():
            for done, batch in enumerate(batches):
                output = model(
                    input_ids=batch.rows.to(model.device),
                    use_cache=False,
                    logits_to_keep=batch.rows.shape[1] - batch.first,
                )
                logits = output.logits[batch.row, batch.position - batch.first].float()
                _Place(intervention, "request", batch.request.tolist()).require_finite(logits)
                target = batch.target.to(model.device)
                chosen = logits.log_softmax(-1).gather(-1, target[:, None])[:, 0]
                log_prob[v].index_add_(0, batch.request, chosen.double().cpu())
                wrong = (logits.argmax(-1) != target).cpu()
                is_greedy[v, batch.request[wrong]] = False
                progress(v * len(batches) + done + 1, len(interventions) * len(batches))
    return Likelihoods(log_prob=log_prob, is_greedy=is_greedy)


@dataclass(frozen=True)
class _Batch:
    """Rows for one forward, and the K logit rows to read, one for each token that is scored.

    Args:
        rows: (B, T) int64, padded with zeros on the right.
        first: the first position whose logits are read.
        row: (K,) where the token is scored, 0 to B-1.
        position: (K,) at which position, `first` to T-1; the token stands at the next one.
        target: (K,) the token.
        request: (K,) the request whose continuation it belongs to.
    """

    rows: Tensor
    first: int
    row: Tensor
    position: Tensor
    target: Tensor
    request: Tensor


def _batches(requests: Sequence[Request], batch_size: int, max_length: int) -> list[_Batch]:
    """Requests with equal inputs share a row; rows go longest first, so padding is short."""
    sharing: dict[tuple[int, ...], list[int]] = {}
    for r, (context, continuation) in enumerate(requests):
        # the last token is predicted, never read
        row = (*context, *continuation)[-(max_length + 1) :][:-1]
        sharing.setdefault(row, []).append(r)
    ordered = sorted(sharing, key=lambda row: (-len(row), row))
    batches = []
    for start in range(0, len(ordered), batch_size):
        rows = ordered[start : start + batch_size]
        reads = torch.tensor(
            [
                (i, position, token, r)
                for i, row in enumerate(rows)
                for r in sharing[row]
                for position, token in enumerate(
                    requests[r][1], start=len(row) - len(requests[r][1])
                )
            ]
        )
        columns = reads.unbind(1)
        padded = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        batches.append(_Batch(padded, int(columns[1].min()), *columns))
    return batches


# --------------------------------------------------------------------------- shared


@dataclass(frozen=True)
class _Place:
    """Where logits come from, for an error message: row i is the `kind` numbers[i]."""

    intervention: Intervention
    kind: str
    numbers: Sequence[int]

    def require_finite(self, logits: Tensor) -> None:
        """Raise an InputError for the first row of `logits` (B, …) with NaN or infinity."""
        finite = logits.isfinite().flatten(1).all(1)
        if finite.all():
            return
        blocks = ", ".join(map(str, self.intervention.blocks)) or "none"
        number = self.numbers[int(finite.logical_not().nonzero()[0])]
        raise InputError(
            Problem(
                what=f"{self.intervention.name} (bypassed blocks: {blocks}), {self.kind} {number}",
                got="logits with NaN or infinity",
                expected="finite logits",
                remedy="evaluate in float32; if it persists, the checkpoint's weights are broken",
            )
        )
