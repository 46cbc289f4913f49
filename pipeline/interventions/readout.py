"""Computes statistics of the logits from the states after the last block.

The logits of all branches never exist at once, since a vocabulary of 50,000 takes 200 kB per
position. The model's own head reads a chunk of states; small pieces of its logits, which stay in a
CPU's cache, are then read as few times as possible. Everything is computed at least in float32.

Shapes: M positions, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPast

from pipeline.models.modules import forward_replaced
from pipeline.models.sites import Anatomy

CHUNK_LOGITS = {"cpu": 512 * 50_304, "cuda": 1 << 28}
_PIECE_LOGITS = {"cpu": 16 * 50_304, "cuda": 1 << 28}
_BLOCK = 256  # columns whose maximum is taken first, to search fewer numbers
_SMALL_BLOCK = 64  # the same for the search of the `TOP` largest

TOP = 40
"""k of top-k sampling, as in arXiv 2012.07805 and 2410.19482."""


class Choice(NamedTuple):
    """The `allowed_token` and the `allowed_margin` of a `Readout`."""

    token: Tensor
    margin: Tensor


class Readout(NamedTuple):
    """Statistics of the logits at M positions, or at positions of any other `view`.

    Args:
        token: (M,) int64, id of the largest logit; the lowest id among equals.
        margin: (M,) float32, its lead over the second largest; NaN where logits are not all
            finite.
        allowed_token: (M,) int64, as `token` among the tokens that may be generated.
        allowed_margin: (M,) float32, likewise.
        entropy: (M,) float32, nats; NaN where logits are not all finite.
        log_prob: (M,) float32, of the target, nats.
        behind: (M,) float32, how far the target's logit is below the largest; 0 if it is largest.
        rank: (M,) int32, of the target, from 1: one more than the tokens with a larger logit.
        spread: (M,) float32, nats, the standard deviation of log p of a token drawn from the
            distribution itself.
        log_prob_top_40: (M,) float32, nats, of the target under top-k sampling at temperature 1
            with k = `TOP`; -inf where its rank is above k. Tokens that tie for the last place are
            all kept, as transformers does.
    """

    token: Tensor
    margin: Tensor
    allowed_token: Tensor
    allowed_margin: Tensor
    entropy: Tensor
    log_prob: Tensor
    behind: Tensor
    rank: Tensor
    spread: Tensor
    log_prob_top_40: Tensor

    def view(self, *shape: int) -> Readout:
        """The same at positions of this shape."""
        return Readout(*(each.view(shape) for each in self))


def read(
    known: Anatomy, states: Tensor, targets: Tensor, forbidden: Tensor, *, ranked: bool = True
) -> Readout:
    """The readout of the predictions from `states` (M, D), as `wavefront.run` returns them.

    `targets` are (M,) int64, `forbidden` (E,) int64 the ids that are never generated, maybe none.
    Unless `ranked`, the last three fields, which take a tenth of the time, are NaN and a rank of 0.
    """
    parts = []
    for rows, logits in pieces(known, states):
        token, margin, largest, second = _best_two(logits)
        allowed = _without(logits, token, margin, second, forbidden)
        # With x the logits less the largest, w proportional to exp(x), their sum W and the largest
        # weight w_1, log p = x - log(W / w_1), and the entropy is log(W / w_1) - sum(w x) / W.
        logits = logits.sub_(largest[:, None])
        weights = logits.softmax(-1)  # a faster exponential, but its own sum is inexact
        total = weights.sum(-1)
        log_total = (total / weights.gather(1, token[:, None])[:, 0]).log()
        mean = torch.linalg.vecdot(weights, logits) / total
        target = logits.gather(1, targets[rows, None])[:, 0]
        numbers = log_total - mean, target - log_total, -target
        rank, spread = torch.zeros_like(token, dtype=torch.int32), torch.full_like(mean, torch.nan)
        log_prob = spread
        if ranked:
            # The largest logit is 0, so a sharp distribution's variance suffers no cancellation.
            square = torch.linalg.vecdot(weights.mul_(logits), logits) / total
            spread = (square - mean.square()).clamp_min(0).sqrt()
            rank, log_prob = _ranked(logits, target, weights)
        parts.append((token, margin, *allowed, *numbers, rank, spread, log_prob))
    return Readout(*map(torch.cat, zip(*parts, strict=True)))


def _ranked(logits: Tensor, target: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Rank and top-k log p, as in `Readout`, of logits (m, V) below their maximum.

    `memory` (m, V) is overwritten.
    """
    top, tied = _largest(logits, min(TOP, logits.shape[1]))
    last = top[:, -1]
    kept = top.exp().sum(-1) + tied * last.exp()
    log_prob = (target - kept.log()).masked_fill(target < last, -torch.inf)
    above = (top > target[:, None]).sum(-1)
    if len(low := (target < last).nonzero()[:, 0]):  # below the top k: count in the whole row
        larger = torch.gt(logits[low], target[low, None], out=memory[: len(low)])
        above[low] = larger.sum(-1).long()  # exact in float32 up to 2^24 tokens
    return (above + 1).int(), log_prob


def _largest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(m, count) the largest of each row of (m, V), descending; how many more tie with the last.

    They lie in the blocks with the largest maxima, or in the columns after the last full block.
    """
    vocabulary = logits.shape[1]
    blocks = vocabulary // _SMALL_BLOCK
    rest = blocks * _SMALL_BLOCK
    if blocks <= count:
        top = logits.topk(count).values
        return top, (logits >= top[:, -1:]).sum(-1) - count
    maxima = torch.unflatten(logits[:, :rest], 1, (blocks, _SMALL_BLOCK)).amax(-1)
    chosen = maxima.topk(count).indices
    columns = chosen[:, :, None] * _SMALL_BLOCK + torch.arange(_SMALL_BLOCK, device=logits.device)
    candidates = torch.cat([logits.gather(1, columns.flatten(1)), logits[:, rest:]], 1)
    top = candidates.topk(count).values
    if ((maxima >= top[:, -1:]).sum(-1) > count).any():  # ties lie in other blocks, too
        candidates = logits
    return top, (candidates >= top[:, -1:]).sum(-1) - count


def choose(known: Anatomy, states: Tensor, forbidden: Tensor) -> Choice:
    """The next tokens after `states` (M, D), without the `forbidden` ids (E,)."""
    parts = []
    for _rows, logits in pieces(known, states):
        token, margin, _, second = _best_two(logits)
        parts.append(_without(logits, token, margin, second, forbidden))
    return Choice(*map(torch.cat, zip(*parts, strict=True)))


def pieces(known: Anatomy, states: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows of `states` (M, D), and their logits (m, V) in float32 or better, which may be changed.

    The head is the model's own, with all its scales, caps and biases.
    """
    vocabulary = known.model.get_output_embeddings().weight.shape[0]
    kind = states.device.type
    many, few = (max(1, most[kind] // vocabulary) for most in (CHUNK_LOGITS, _PIECE_LOGITS))
    for start in range(0, len(states), many):
        handed = _Handed(last_hidden_state=states[None, start : start + many])
        with forward_replaced([known.body], handed.instead_of):
            logits = known.model(input_ids=None, use_cache=False).logits[0]
        for first in range(0, len(logits), few):
            piece = logits[first : first + few]
            rows = slice(start + first, start + first + len(piece))
            yield rows, piece if piece.dtype == torch.float64 else piece.float()


class _Handed(BaseModelOutputWithPast):
    """The states as the output of the body, which is not computed; no extras of some families."""

    def __getattr__(self, name: str) -> None:
        """Attentions, router logits and their like."""

    def instead_of(self, _forward: Callable[..., Any]) -> Callable[..., _Handed]:
        """A forward of the body that returns these states."""
        return lambda *_args, **_kwargs: self


def _best_two(logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Token and margin of the largest logit of each row of (m, V), that logit, and the second.

    Maxima of blocks need one fast pass over the logits; the second largest is in the best block, or
    is the maximum of another block.
    """
    vocabulary = logits.shape[1]
    rest = vocabulary - vocabulary % _BLOCK
    maxima = torch.unflatten(logits[:, :rest], 1, (-1, _BLOCK)).amax(-1)
    if rest < vocabulary:
        maxima = torch.cat([maxima, logits[:, rest:].amax(-1, keepdim=True)], 1)
    largest, block = maxima.max(-1)
    columns = block[:, None] * _BLOCK + torch.arange(_BLOCK, device=logits.device)
    beyond = columns >= vocabulary
    inside = logits.gather(1, columns.clamp_max(vocabulary - 1)).masked_fill_(beyond, -torch.inf)
    at = inside.argmax(-1, keepdim=True)
    beside = inside.scatter_(1, at, -torch.inf).amax(-1)
    others = maxima.scatter_(1, block[:, None], -torch.inf).amax(-1)
    second = torch.maximum(beside, others)
    margin = (largest - second).where(largest.isfinite(), torch.nan)
    return columns.gather(1, at)[:, 0], margin.float(), largest, second


def _without(
    logits: Tensor, token: Tensor, margin: Tensor, second: Tensor, forbidden: Tensor
) -> tuple[Tensor, Tensor]:
    """Token and margin among the allowed tokens: others where one of two largest is forbidden."""
    again = (logits[:, forbidden] >= second[:, None]).any(-1).nonzero()[:, 0]
    if not len(again):
        return token, margin
    found, lead, _, _ = _best_two(logits[again].index_fill_(1, forbidden, -torch.inf))
    lead = lead.where(margin[again].isfinite(), torch.nan)
    return token.index_copy(0, again, found), margin.index_copy(0, again, lead)
