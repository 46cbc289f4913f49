"""What each edit does, a function each.

An edit acts at one site of a block and replaces what passes there in the rows that have it::

    CONTEXT      what the output projection receives: the mixed values
    ATTENTION    what the output projection returns: what attention adds to the stream
    MLP          what the MLP's last matrix returns: what the MLP adds to the stream
    BLOCK        what the block returns

Shapes: n rows, T positions, D width, H heads, C = H E, what the output projection receives.
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
    """What an edit can see.

    Args:
        now: what passes at the site, (n, T, C) for `CONTEXT`, else (n, T, D).
        entered: the block's input (n, T, D), for edits of `BLOCK`.
        values: (n, T, C), each position's own, for edits that need them.
        project: the output projection, (…, C) to (…, D).
        mean: (D,), of what passes at the site over the calibration tokens.
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
    """Every position attends to itself alone: the output projection receives its own value.

    Source: arXiv 2501.05078, section 3.2.
    """
    return given(here.values)


def heads(here: Here) -> Tensor:
    """The identity in the edit's heads alone."""
    chosen = torch.zeros(here.n_heads, 1, dtype=torch.bool, device=here.now.device)
    chosen[list(here.edit.heads or ())] = True
    now, own = (torch.unflatten(x, -1, (here.n_heads, -1)) for x in (here.now, given(here.values)))
    return torch.where(chosen, own, now).flatten(-2)


def zero(here: Here) -> Tensor:
    """Nothing is added to the stream, not even a bias."""
    return torch.zeros_like(here.now)


def mean(here: Here) -> Tensor:
    """What is added is its mean over the calibration tokens, under the baseline."""
    return given(here.mean).to(here.now.dtype).expand_as(here.now)


def skip(here: Here) -> Tensor:
    """The block hands its input on.

    Source: ShortGPT, arXiv 2403.03853; LLM-Drop, arXiv 2406.15786.
    """
    return given(here.entered)


def noise(here: Here) -> Tensor:
    """The change that the identity would make, turned into another direction of the same norm.

    The turn permutes the dimensions and flips signs, by the edit's seed: the same for every
    position and sample, so a result depends on no batch.
    """
    change = here.project(given(here.values)) - here.now
    generator = torch.Generator().manual_seed(here.edit.seed or 0)
    order = torch.randperm(change.shape[-1], generator=generator).to(change.device)
    signs = 2 * torch.randint(2, order.shape, generator=generator).to(change) - 1
    return here.now + change[..., order] * signs


class Rule(NamedTuple):
    """Where an edit acts, what it does, and what it has to be given beyond what passes there."""

    site: str
    apply: Callable[[Here], Tensor]
    needs_values: bool = False
    needs_mean: bool = False


EDITS: Mapping[str, Rule] = {
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


def given(x: Tensor | None) -> Tensor:
    """What the hooks always give where it is asked for."""
    assert x is not None  # noqa: S101  for the type checker
    return x
