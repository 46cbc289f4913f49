"""From the states after the last block to what is asked of the logits, in chunks.

Logits of many positions at once would not fit (V is up to 50,304), and on a CPU would leave the
cache; entropy and log-probabilities are in float32 whatever the model's precision.
Shapes: M positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.models.decoder import Decoder

_CHUNK_LOGITS = {"cpu": 1 << 16, "cuda": 1 << 27}
_LEAST_ROWS = 64
"""Of a chunk: the head of a large vocabulary is read from memory once a chunk, so that a row at a
time takes ten times as long as many do together."""

_TIE = 1e-10  # in float64, logits this close to the largest tie with it; the lowest id then wins


@dataclass(frozen=True)
class Choice:
    """The largest logit at M positions.

    Args:
        token: (M,) int64, its id.
        margin: (M,) float32, how far the second largest is below it; NaN where logits are not
            all finite.
    """

    token: Tensor
    margin: Tensor


@dataclass(frozen=True)
class Readout:
    """What the logits at M positions say.

    Args:
        any: the choice among all tokens.
        allowed: the choice among the tokens that may be generated.
        entropy: (M,) float32 (float64 in float64), nats; NaN where logits are not all finite.
        log_prob: (M,), of the target, nats.
        best_log_prob: (M,), of the largest logit, nats.
    """

    any: Choice
    allowed: Choice
    entropy: Tensor
    log_prob: Tensor
    best_log_prob: Tensor


def read(decoder: Decoder, states: Tensor, targets: Tensor, forbidden: Tensor) -> Readout:
    """Everything about the predictions made from `states`.

    Args:
        decoder: the model.
        states: (M, D), after the last block.
        targets: (M,) int64.
        forbidden: (E,) int64, ids that are never generated; often none.
    """
    parts = []
    for chunk in _chunks(decoder, states):
        logits = _logits(decoder, states[chunk])
        choice = allowed = _choose(logits)
        largest = logits.gather(1, choice.token[:, None])
        if len(forbidden):
            allowed = _choose(logits.index_fill(1, forbidden, -torch.inf))
        # With weights w = exp(x - largest) and their sum Z, log p = x - largest - log Z, and the
        # entropy is log Z - sum(w (x - largest)) / Z: one exponential serves both.
        logits.sub_(largest)
        weights = logits.exp()
        total = weights.sum(-1)
        entropy = total.log() - torch.linalg.vecdot(weights, logits) / total
        log_prob = logits.gather(1, targets[chunk, None])[:, 0] - total.log()
        parts.append(
            (
                choice.token,
                choice.margin,
                allowed.token,
                allowed.margin,
                entropy,
                log_prob,
                -total.log(),
            )
        )
    token, margin, allowed_token, allowed_margin, *rest = map(torch.cat, zip(*parts, strict=True))
    return Readout(Choice(token, margin), Choice(allowed_token, allowed_margin), *rest)


def choose(decoder: Decoder, states: Tensor, forbidden: Tensor) -> Choice:
    """The next tokens after `states` (M, D), without the `forbidden` ids (E,)."""
    parts = []
    for chunk in _chunks(decoder, states):
        logits = _logits(decoder, states[chunk])
        least = logits.amin(-1)  # NaN or minus infinity, if there is any
        if len(forbidden):
            logits.index_fill_(1, forbidden, -torch.inf)
        choice = _choose(logits)
        parts.append((choice.token, choice.margin.where(least.isfinite(), torch.nan)))
    return Choice(*map(torch.cat, zip(*parts, strict=True)))


def _logits(decoder: Decoder, states: Tensor) -> Tensor:
    """(M, V) in float32, or in float64 if the decoder computes in that."""
    logits = decoder.logits(states)
    return logits if logits.dtype == torch.float64 else logits.float()


def _chunks(decoder: Decoder, states: Tensor) -> list[slice]:
    budget = _CHUNK_LOGITS.get(decoder.device.type, max(_CHUNK_LOGITS.values()))
    size = max(_LEAST_ROWS, budget // decoder.head.weight.shape[0])
    return [slice(start, start + size) for start in range(0, len(states), size)]


def _choose(logits: Tensor) -> Choice:
    """The largest logit of each row of (M, V); the lowest id among equals."""
    largest, token = logits.max(-1)
    if logits.dtype == torch.float64:
        token = (logits >= largest[:, None] - _TIE).int().argmax(-1)
    at = token[:, None]
    chosen = logits.gather(1, at)
    second = logits.scatter_(1, at, -torch.inf).amax(-1)
    logits.scatter_(1, at, chosen)  # as it was: a copy would cost as much as all of the above
    margin = (largest - second).where(largest.isfinite(), torch.nan)
    return Choice(token, margin.float())
