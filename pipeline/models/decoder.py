"""What the engine knows of a decoder-only transformer, whatever its family.

A `Decoder` holds no weights of its own: every tensor in it is the stock model's, or a view of one.
Shapes: R rows, T positions, D width, H heads, F width of the MLP, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

_Any = TypeVar("_Any")

_SMALL = 1 << 24  # numbers; 128 MB in float64


@dataclass(frozen=True)
class Linear:
    """``x @ weight.T + bias``: weight (out, in), bias (out,) or None."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """(…, in) to (…, out)."""
        return F.linear(x, self.weight, self.bias)

    @staticmethod
    def of(module: nn.Linear) -> Linear:
        """The module's own tensors."""
        return Linear(module.weight, module.bias)


@dataclass(frozen=True)
class LayerNorm:
    """Layer norm over the last dimension: weight and bias (D,)."""

    weight: Tensor
    bias: Tensor | None
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        """(…, D) to (…, D)."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)

    @staticmethod
    def of(module: nn.LayerNorm) -> LayerNorm:
        """The module's own tensors."""
        return LayerNorm(module.weight, module.bias, module.eps)


class Projections(Protocol):
    """Queries, keys and values of a block, as its family stores their weights."""

    def all(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of x (…, D), each (…, H, D/H), before the rotary embedding.

        They are the caller's own, to be changed in place.
        """

    def values(self, x: Tensor) -> Tensor:
        """The values of x (…, D) alone, (…, H, D/H), without any work for queries and keys."""


@dataclass(frozen=True)
class Separate:
    """Queries, keys and values from three matrices (D, D)."""

    query: Linear
    key: Linear
    value: Linear
    heads: int

    def all(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `Projections`."""
        return self._split(self.query(x)), self._split(self.key(x)), self.values(x)

    def values(self, x: Tensor) -> Tensor:
        """See `Projections`."""
        return self._split(self.value(x))

    def _split(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.heads, -1))


@dataclass(frozen=True)
class Interleaved:
    """One matrix (3D, D) whose rows go head by head: H times (query, key, value), D/H rows each."""

    fused: Linear
    heads: int

    def all(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `Projections`."""
        query, key, value = torch.unflatten(self.fused(x), -1, (self.heads, 3, -1)).unbind(-2)
        return query, key, value

    def values(self, x: Tensor) -> Tensor:
        """See `Projections`."""
        # The rows of the values lie apart. Gathering them costs D x D reads, far less than the
        # product does, and spares a second copy of the weights.
        bias = None if self.fused.bias is None else self._rows(self.fused.bias)
        values = F.linear(x, self._rows(self.fused.weight), bias)
        return torch.unflatten(values, -1, (self.heads, -1))

    def _rows(self, tensor: Tensor) -> Tensor:
        return torch.unflatten(tensor, 0, (self.heads, 3, -1))[:, 2].flatten(0, 1)


@dataclass(frozen=True)
class Block:
    """One transformer block.

    Args:
        attention_norm: before the attention.
        projections: queries, keys and values.
        output: attention output, (…, D) with the heads side by side, to (…, D).
        mlp_norm: before the MLP.
        up: (…, D) to (…, F).
        activation: elementwise on (…, F); may work in place.
        down: (…, F) to (…, D).
        parallel: the MLP reads the block's input, as attention does ("parallel residual"), not
            the sum of input and attention.
        window: position t attends to t-window+1 … t; None: to all up to t.
    """

    attention_norm: LayerNorm
    projections: Projections
    output: Linear
    mlp_norm: LayerNorm
    up: Linear
    activation: Callable[[Tensor], Tensor]
    down: Linear
    parallel: bool
    window: int | None

    def mlp(self, x: Tensor) -> Tensor:
        """The MLP of x (…, D), with its norm, without the residual."""
        return self.down(self.activation(self.up(self.mlp_norm(x))))

    def finish(self, hidden: Tensor, context: Tensor, mlp: Tensor | None = None) -> Tensor:
        """The block's output, given what its attention brings.

        Args:
            hidden: (…, D), the block's input.
            context: (…, D), the mixed values with the heads side by side.
            mlp: (…, D), this MLP's output where it is known already; of use where `parallel`.

        Returns:
            (…, D), a new tensor.
        """
        attended = self.output(context)
        if self.parallel:
            return attended.add_(self.mlp(hidden) if mlp is None else mlp).add_(hidden)
        attended.add_(hidden)
        return self.mlp(attended).add_(attended)


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding of the first r of the D/H dimensions of a head, half and half.

    Args:
        cosine: (context length, r/2), float32 as the stock model computes it.
        sine: the same.
        size: D/H.
    """

    cosine: Tensor
    sine: Tensor
    size: int

    def at(self, positions: Tensor, dtype: torch.dtype) -> Turn:
        """The rotation at `positions` (…, T) of tensors (…, T, D/H)."""
        half = self.cosine.shape[-1]
        rest = (*positions.shape, self.size - 2 * half)
        cosine, sine = self.cosine[positions], self.sine[positions]
        quarter = cosine.new_zeros(self.size, self.size)
        pair = torch.arange(half, device=quarter.device)
        quarter[pair + half, pair] = -1.0
        quarter[pair, pair + half] = 1.0
        return Turn(
            cosine=torch.cat([cosine, cosine, cosine.new_ones(rest)], -1).to(dtype),
            sine=torch.cat([sine, sine, sine.new_zeros(rest)], -1).to(dtype),
            quarter=quarter.to(dtype),
        )


@dataclass(frozen=True)
class Turn:
    """The rotation of whole heads at given positions; what is not rotary is turned by nothing.

    ``x * cosine + (x @ quarter) * sine``: long runs of memory at a time, where slices of a few
    rotary dimensions would be slow.

    Args:
        cosine: (…, T, D/H).
        sine: (…, T, D/H).
        quarter: (D/H, D/H), a quarter turn of each pair of dimensions.
    """

    cosine: Tensor
    sine: Tensor
    quarter: Tensor

    def apply_(self, x: Tensor) -> Tensor:
        """Rotate x (…, T, D/H) in place."""
        turned = torch.mm(x.flatten(0, -2), self.quarter).view_as(x)
        return x.mul_(self.cosine).addcmul_(turned, self.sine)


@dataclass(frozen=True)
class Decoder:
    """A model as the engine sees it, in the precision `dtype`.

    Args:
        token_embedding: (V, D).
        position_embedding: (context length, D) where positions are learned.
        rotary: where positions are rotary.
        blocks: L of them, in the model's own precision; `block` gives them in `dtype`.
        final_norm: before the head.
        head: (…, D) to (…, V).
        heads: H.
        attention_scale: what scores are multiplied by.
        context_length: positions that the model was made for.
        dtype: the precision of all computation.
    """

    token_embedding: Tensor
    position_embedding: Tensor | None
    rotary: Rotary | None
    blocks: tuple[Block, ...]
    final_norm: LayerNorm
    head: Linear
    heads: int
    attention_scale: float
    context_length: int
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.token_embedding.device

    @property
    def width(self) -> int:
        """D."""
        return self.token_embedding.shape[1]

    def block(self, number: int) -> Block:
        """Block `number` in `dtype`; converted on the spot, so that one copy lives at a time."""
        return self._in_dtype(self.blocks[number])

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The states before block 0: (…, T, D) from tokens (…, T) and positions (T,) or (…, T)."""
        states = F.embedding(tokens, self.token_embedding).to(self.dtype)
        if self.position_embedding is not None:
            states = states + F.embedding(positions, self.position_embedding).to(self.dtype)
        return states

    def logits(self, states: Tensor) -> Tensor:
        """The logits (…, V) of the states (…, D) after the last block, in `dtype`."""
        return self._in_dtype(self.head)(self._in_dtype(self.final_norm)(states))

    def in_precision(self, dtype: torch.dtype) -> Decoder:
        """The same weights, computing in `dtype`.

        A small model is converted at once. Of a large one nothing is copied yet: each block is
        converted when it is asked for.
        """
        same = dataclasses.replace(self, dtype=dtype)
        return _cast(same, dtype) if _numbers(same) <= _SMALL else same

    def _in_dtype(self, part: _Any) -> _Any:
        return part if self.dtype == self.token_embedding.dtype else _cast(part, self.dtype)


def _cast(value: _Any, dtype: torch.dtype) -> _Any:
    """`value` with every tensor in it, at any depth of dataclasses and tuples, in `dtype`."""
    if isinstance(value, Tensor):
        return value.to(dtype)  # type: ignore[return-value]
    if not isinstance(value, tuple) and not dataclasses.is_dataclass(value):
        return value
    if isinstance(value, tuple):
        return tuple(_cast(each, dtype) for each in value)  # type: ignore[return-value]
    fields = {f.name: _cast(getattr(value, f.name), dtype) for f in dataclasses.fields(value)}
    return type(value)(**fields)  # type: ignore[misc]


def _numbers(value: object) -> int:
    """How many numbers there are in the tensors of `value`, at any depth."""
    if isinstance(value, Tensor):
        return value.numel()
    if isinstance(value, tuple):
        return sum(map(_numbers, value))
    if dataclasses.is_dataclass(value):
        return sum(_numbers(getattr(value, each.name)) for each in dataclasses.fields(value))
    return 0
