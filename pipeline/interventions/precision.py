"""Choices too close to call in the working precision are made again in a better one.

Two logits that nearly tie come out in either order, depending on the batch, the number of threads
and the machine. How near is too near is measured: the same few samples are read in both
precisions, and the largest difference of any logit, times a safety factor, is the tolerance.
Float16 and bfloat16 defer to float32, float32 to float64, and in float64 the lowest id wins.
"""

from __future__ import annotations

import torch

from pipeline.interventions.interventions import Intervention
from pipeline.interventions.plan import Plan, plan
from pipeline.interventions.wavefront import Sheet, run
from pipeline.errors import InputError, Problem
from pipeline.models.decoder import Decoder

_SAFETY = 8.0

_BETTER = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float32: torch.float64,
}


def better(decoder: Decoder) -> Decoder | None:
    """The decoder that decides what `decoder` cannot; None for one in float64.

    It converts one block at a time, so a large model needs no second copy.
    """
    dtype = _BETTER.get(decoder.dtype)
    return None if dtype is None else decoder.in_precision(dtype)


def tolerance(decoder: Decoder, judge: Decoder, sheet: Sheet, trie: Plan) -> float:
    """The margin (logits) up to which a choice of `decoder` is not to be trusted.

    Args:
        decoder: the one that choices were made with.
        judge: the better one.
        sheet: one or two rows to measure on.
        trie: the plan of the interventions.
    """
    fronts = [run(each, sheet, trie).states for each in (decoder, judge)]
    error = 0.0
    for coarse, fine in zip(*fronts, strict=True):  # a branch at a time: logits are large
        difference = decoder.logits(coarse).to(torch.float64) - judge.logits(fine)
        error = max(error, float(difference.abs().amax()))
    return _SAFETY * error


class Calibration:
    """The tolerances of one evaluation, each measured when it is first asked for.

    Args:
        sheet: one or two rows to measure on.
        trie: the plan of the interventions.
    """

    def __init__(self, sheet: Sheet, trie: Plan) -> None:
        self._sheet, self._trie = sheet, trie
        self._known: dict[torch.dtype, float] = {}

    def tolerance(self, decoder: Decoder, judge: Decoder) -> float:
        """As the function `tolerance`."""
        if decoder.dtype not in self._known:
            self._known[decoder.dtype] = tolerance(decoder, judge, self._sheet, self._trie)
        return self._known[decoder.dtype]


def not_finite(decoder: Decoder, intervention: Intervention, sheet: Sheet, what: str) -> InputError:
    """The error for logits with NaN or infinity, with the block where they first appear.

    Args:
        decoder: the model.
        intervention: under which it happened.
        sheet: the offending row alone.
        what: it is, such as ``sample 17``.
    """
    first: list[int] = []

    def look(block: int, states: torch.Tensor) -> None:
        if not first and not states.isfinite().all():
            first.append(block)

    run(decoder, sheet, plan([intervention], len(decoder.blocks)), observer=look)
    where = f"after block {first[0]}" if first else "in the head"
    return InputError(
        Problem(
            what=f"{intervention.name}, {what}",
            got=f"NaN or infinity {where}, in {decoder.dtype}",
            expected="finite states and logits",
            remedy="evaluate in float32; if it persists, the checkpoint's weights are broken",
        )
    )
