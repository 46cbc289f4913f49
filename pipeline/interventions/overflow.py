"""Recomputes results that are not finite in float32, or raises an error that locates them.

Shapes: V interventions, N samples or requests, T positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions.evaluation import Completions, Likelihoods
from pipeline.interventions.hooks import Means
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal
from pipeline.interventions.trie import build_trie
from pipeline.interventions.wavefront import run
from pipeline.models.precision import at_least_single
from pipeline.models.sites import Anatomy
from pipeline.workflow.errors import InputError, Problem

_Found = TypeVar("_Found", Completions, Likelihoods)


def again_in_single(
    model: PreTrainedModel,
    found: _Found,
    again: Callable[[list[int], list[int]], _Found],
    journal: Journal,
) -> None:
    """Replace results that overflowed in half precision by float32 results, all at once.

    Float32 rather than bfloat16: both have the range, but float32 rounds less. A module's weights
    are converted when it is called, so no second model needs memory.

    Args:
        model: in any precision; with 32 bits or more nothing is recomputed.
        found: changed in place, where it is bad.
        again: given interventions and samples or requests (their numbers), returns all of them.
        journal: records the number of results.
    """
    bad = found.bad
    if not bad.any() or torch.finfo(model.dtype).bits >= 32:
        return
    listed, items = (bad.any(along).nonzero()[:, 0] for along in (1, 0))
    with at_least_single(model):
        made = again(listed.tolist(), items.tolist())
    v, n = bad.nonzero(as_tuple=True)
    at = torch.searchsorted(listed, v), torch.searchsorted(items, n)
    for each in fields(found):
        getattr(found, each.name)[v, n] = getattr(made, each.name)[at]
    journal.overflows += len(v)


def not_finite(
    known: Anatomy, intervention: Intervention, tokens: Tensor, what: str, means: Means
) -> InputError:
    """The error for logits with NaN or infinity in float32, with the block where they appear first.

    Args:
        known: of the model.
        intervention: the intervention under which it happened.
        tokens: (T,) int64, the offending row.
        what: the row's name, such as ``sample 17``.
        means: for edits that need them.
    """
    bad: list[int] = []

    def look(block: int, states: Tensor) -> None:
        if not states.isfinite().all():
            bad.append(block)

    precision = torch.promote_types(known.model.dtype, torch.float32)
    row, trie = tokens[None].to(known.model.device), build_trie([intervention], len(known.sites))
    with at_least_single(known.model):
        run(known, row, trie, observer=look, means=means)
    where = f"after block {bad[0]}" if bad else "in the head"
    return InputError(
        Problem(
            what=f"{intervention.name}, {what}",
            got=f"NaN or infinity {where}, in {precision}",
            expected="finite states and logits",
            remedy="leave out the intervention; if it is the baseline, the weights are broken",
        )
    )
