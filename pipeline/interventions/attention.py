"""Attention as the wavefront needs it: heads first, causal or under a mask, fast at any size.

Shapes: N rows with their heads, N = R x H; Q queries, K keys, E = D/H.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_LAUNCH_ROWS = 65535  # CUDA's limit on a dimension of a grid
_TILE = 16  # queries at a time on a CPU: fewer keys beyond the diagonal, and it stays in the cache


def causal(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None
) -> Tensor:
    """Each query attends to the keys up to its own position, the last `window` of them.

    Args:
        queries: (N, Q, E), those of the last Q of the K positions.
        keys: (N, K, E).
        values: (N, K, E).
        scale: what scores are multiplied by.
        window: None: to all up to its own.

    Returns:
        (N, Q, E).
    """
    n_queries, n_keys = queries.shape[1], keys.shape[1]
    window = None if window is None or window >= n_keys else window
    if not _by_hand(queries):
        heads = queries[:, None], keys[:, None], values[:, None]
        if window is None and n_queries == n_keys:
            return _library(*heads, scale, is_causal=True)[:, 0]
        mask = _visible(range(n_keys - n_queries, n_keys), range(n_keys), window)
        mask = mask.to(queries.device).expand(len(queries), 1, -1, -1)
        return _library(*heads, scale, mask)[:, 0]
    # On a CPU, tile by tile of queries: the scores fit into the cache, and what no query of a tile
    # sees is never computed.
    context = torch.empty_like(queries)
    offset = n_keys - n_queries
    for start in range(0, n_queries, _TILE):
        stop = min(start + _TILE, n_queries)
        first = 0 if window is None else max(0, offset + start - window + 1)
        seen = range(first, offset + stop)
        bias = _bias(range(offset + start, offset + stop), seen, window, queries.dtype)
        scores = torch.baddbmm(
            bias, queries[:, start:stop], keys[:, first : seen.stop].transpose(1, 2), alpha=scale
        )
        weights = torch.softmax(scores, -1, out=scores)
        # not into context itself: a batched product is fast only where its result is contiguous
        context[:, start:stop] = torch.bmm(weights, values[:, first : seen.stop])
    return context


def masked(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor, in_order: bool
) -> Tensor:
    """Each query attends where `bias` is 0 and not where it is minus infinity.

    Args:
        queries: (R, H, Q, E).
        keys: (R, H, K, E).
        values: (R, H, K, E).
        scale: what scores are multiplied by.
        bias: (B, Q, K); R is a multiple of B, row r takes bias r mod B.
        in_order: whether query i is of the same token as key i, and attends to none after it.

    Returns:
        (R, H, Q, E).
    """
    copies = queries.shape[0] // bias.shape[0]
    if not _by_hand(queries):
        return _library(queries, keys, values, scale, bias[:, None].repeat(copies, 1, 1, 1))
    heads, n_keys = keys.shape[1:3]
    context = torch.empty_like(queries)
    q, k, v, mixed = (x.flatten(0, 1) for x in (queries, keys, values, context))
    nothing = queries.new_zeros(())
    for start in range(0, queries.shape[2], _TILE):
        tile = slice(start, start + _TILE)
        seen = min(start + _TILE, n_keys) if in_order else n_keys
        scores = torch.baddbmm(nothing, q[:, tile], k[:, :seen].mT, beta=0, alpha=scale)
        scores.view(copies, -1, heads, *scores.shape[1:]).add_(bias[:, None, tile, :seen])
        mixed[:, tile] = torch.bmm(torch.softmax(scores, -1, out=scores), v[:, :seen])
    return context


def single(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """One query a row, which attends to all of the row's keys.

    Args:
        queries: (N, 1, E).
        keys: (N, K, E).
        values: (N, K, E).
        scale: what scores are multiplied by.

    Returns:
        (N, 1, E).
    """
    if not _by_hand(queries):
        return _library(queries[:, None], keys[:, None], values[:, None], scale)[:, 0]
    nothing = queries.new_zeros(())
    scores = torch.baddbmm(nothing, queries, keys.transpose(1, 2), beta=0, alpha=scale)
    return torch.bmm(torch.softmax(scores, -1, out=scores), values)


def laid_out(values: Tensor) -> Tensor:
    """The same values (N, K, E), in the order in memory that `single` reads fastest."""
    if not _by_hand(values):
        return values
    # Each of its sums goes along the keys, so on a CPU these should lie side by side.
    return values.transpose(1, 2).contiguous().transpose(1, 2)


def _library(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """PyTorch's attention of (R, H, Q, E), as many rows at a time as one launch may have.

    Args:
        queries: (R, H, Q, E).
        keys: (R, H, K, E).
        values: (R, H, K, E).
        scale: what scores are multiplied by.
        mask: (R, 1, Q, K), bool or added to the scores.
        is_causal: whether query i attends to the keys up to i.
    """
    parts = [
        F.scaled_dot_product_attention(
            queries[start : start + _LAUNCH_ROWS],
            keys[start : start + _LAUNCH_ROWS],
            values[start : start + _LAUNCH_ROWS],
            attn_mask=None if mask is None else mask[start : start + _LAUNCH_ROWS],
            is_causal=is_causal,
            scale=scale,
        )
        for start in range(0, len(queries), _LAUNCH_ROWS)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _by_hand(queries: Tensor) -> bool:
    # Half precision goes to the library's kernels everywhere: they add up in float32.
    return queries.device.type == "cpu" and queries.dtype in (torch.float32, torch.float64)


@cache
def _bias(queries: range, keys: range, window: int | None, dtype: torch.dtype) -> Tensor:
    """(Q, K): 0 where a query attends, else minus infinity. Tiles recur in every block."""
    hidden = ~_visible(queries, keys, window)
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)


def _visible(queries: range, keys: range, window: int | None) -> Tensor:
    """(Q, K) bool: which of the `keys` (positions) each of the `queries` (positions) attends to."""
    distance = torch.tensor(queries)[:, None] - torch.tensor(keys)[None, :]
    return (distance >= 0) & (distance < (len(keys) + 1 if window is None else window))
