"""One block in plain sums: its attention weights, and its computation at the last token.

Stock modules with fast attention do not expose the weights. Here they are computed explicitly, from
the outputs of the stock projections, for the theory.
Shapes: B samples, T positions, n positions that the last token sees, D width, H heads, E = D/H.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.theory.parts import Parts


class Attention(NamedTuple):
    """The attention of a block at the last Q of T positions.

    Args:
        normalized: (B, T, D), after the norm.
        values: (B, T, H, E).
        weights: (B, H, Q, T), each row sums to one.
    """

    normalized: Tensor
    values: Tensor
    weights: Tensor

    def mixed(self, block: Parts) -> Tensor:
        """The attention's output (B, Q, D)."""
        context = torch.einsum("bhqi,bihe->bqhe", self.weights, self.values)
        attended: Tensor = block.output(context.flatten(2))
        return attended


def attend(block: Parts, states: Tensor, queries: int) -> Attention:
    """The attention of a block, with its weights.

    Args:
        block: in the precision of the states.
        states: (B, T, D), what enters the block; positions count from 0.
        queries: Q, 1 to T.
    """
    normalized = block.attention_norm(states)
    query, key, values = block.split(normalized)
    length = states.shape[1]
    scores = (query[:, :, length - queries :] @ key.mT) * block.scale
    position = torch.arange(length, device=states.device)
    distance = position[length - queries :, None] - position
    hidden = (distance < 0) | (distance >= (length if block.window is None else block.window))
    weights = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
    return Attention(normalized, values.transpose(1, 2), weights)


class Vectors(NamedTuple):
    """The computation of a block at the last position, (B, D) each.

    Args:
        attended: the attention's output.
        read: what the MLP reads, u.
        mlp: what it makes of it, F(u).
        after: the block's output.
    """

    attended: Tensor
    read: Tensor
    mlp: Tensor
    after: Tensor


class LastToken(NamedTuple):
    """What the last token sees, and what a block makes of it, unmodified and bypassed.

    Args:
        normalized: (B, n, D), y of the positions that it sees; itself is the last.
        values: (B, n, H, E).
        weights: (B, H, n).
        plain: as it is.
        bypassed: with the identity for attention weights.
    """

    normalized: Tensor
    values: Tensor
    weights: Tensor
    plain: Vectors
    bypassed: Vectors


def last_token(block: Parts, states: Tensor) -> LastToken:
    """The last position of states (B, T, D) that enter a block, in their precision."""
    normalized, values, weights = attention = attend(block, states, 1)
    length = states.shape[1]
    first = 0 if block.window is None else max(0, length - block.window)
    hidden = states[:, -1]
    bypassed = block.output(values[:, -1].flatten(1))
    attended = torch.stack([attention.mixed(block)[:, 0], bypassed])
    read = hidden.expand_as(attended) if block.parallel else hidden + attended
    mlp = block.feed_forward(read)
    made = attended, read, mlp, hidden + attended + mlp
    seen = normalized[:, first:], values[:, first:], weights[:, :, 0, first:]
    return LastToken(*seen, *(Vectors(*each) for each in zip(*made, strict=True)))
