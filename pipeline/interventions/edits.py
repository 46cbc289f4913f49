"""The edits, one function each.

An edit acts at one site of a block and replaces the values there in the rows that have it::

    CONTEXT      the input of the output projection: the mixed values
    ATTENTION    the output of the output projection, which attention adds to the stream
    MLP          the output of the MLP's last matrix, which the MLP adds to the stream
    BLOCK        the output of the block

Shapes: n rows, T positions, D width, H heads, C = H E, input width of the output projection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.interventions.interventions import Edit

CONTEXT, ATTENTION, MLP, BLOCK = "context", "attention", "mlp", "block"


@dataclass(frozen=True)
class Here:
    """The inputs of an edit.

    Args:
        now: the values at the site, (n, T, C) for `CONTEXT`, else (n, T, D).
        entered: the block's input (n, T, D), for edits of `BLOCK`.
        values: (n, T, C), each position's own, for edits that need them.
        project: the output projection, (…, C) to (…, D).
        mean: (D,), mean of the values at the site over the calibration tokens.
        edit: its heads and seed.
        n_heads: H.
    """

    now: Tensor
    entered: Tensor | None
    values: Tensor | None
    project: Callable[[Tensor], Tensor]
    mean: Tensor | None
    edit: Edit
    n_heads: int


def identity(here: Here) -> Tensor:
    """Every position attends only to itself: the output projection receives its own value.

    Source: arXiv 2501.05078, section 3.2.
    """
    return provided(here.values)


def heads(here: Here) -> Tensor:
    """The identity, only in the edit's heads."""
    chosen = torch.zeros(here.n_heads, 1, dtype=torch.bool, device=here.now.device)
    chosen[list(here.edit.heads or ())] = True
    both = here.now, provided(here.values)
    now, identity = (torch.unflatten(x, -1, (here.n_heads, -1)) for x in both)
    return torch.where(chosen, identity, now).flatten(-2)


def zero(here: Here) -> Tensor:
    """Nothing is added to the stream, not even a bias."""
    return torch.zeros_like(here.now)


def mean(here: Here) -> Tensor:
    """Instead of its output, the part adds its mean over calibration tokens under the baseline."""
    return provided(here.mean).to(here.now.dtype).expand_as(here.now)


def skip(here: Here) -> Tensor:
    """The block returns its input.

    Source: ShortGPT, arXiv 2403.03853; LLM-Drop, arXiv 2406.15786.
    """
    return provided(here.entered)


def noise(here: Here) -> Tensor:
    """The change that the identity would make, in a random direction and with the same norm.

    The direction comes from permuting the dimensions and flipping signs, by the edit's seed. It is
    the same for every position and sample, so a result does not depend on the batch.
    """
    change = here.project(provided(here.values)) - here.now
    generator = torch.Generator().manual_seed(here.edit.seed or 0)
    order = torch.randperm(change.shape[-1], generator=generator).to(change.device)
    signs = 2 * torch.randint(2, order.shape, generator=generator).to(change) - 1
    return here.now + change[..., order] * signs


class Rule(NamedTuple):
    """The site of an edit, its function, and the inputs it needs beyond the values there."""

    site: str
    apply: Callable[[Here], Tensor]
    needs_values: bool = False
    needs_mean: bool = False


RULES: Mapping[str, Rule] = {
    "identity": Rule(CONTEXT, identity, needs_values=True),
    "heads": Rule(CONTEXT, heads, needs_values=True),
    "zero": Rule(ATTENTION, zero),
    "mean": Rule(ATTENTION, mean, needs_mean=True),
    "noise": Rule(ATTENTION, noise, needs_values=True),
    "mlp-zero": Rule(MLP, zero),
    "mlp-mean": Rule(MLP, mean, needs_mean=True),
    "skip": Rule(BLOCK, skip),
}
"""Edit -> its rule."""


def provided(x: Tensor | None) -> Tensor:
    """`x`, which the hooks always provide for edits that need it."""
    assert x is not None  # noqa: S101  for the type checker
    return x
