"""Recomputes results that are not finite in float32, or raises an error that locates them.

Shapes: V interventions, N samples or requests, T positions.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from pipeline.interventions.evaluation import Completions, Likelihoods, Progress, silent
from pipeline.interventions.wavefront import Engine, run
from pipeline.models.precision import at_least_single
from pipeline.workflow.errors import InputError, bad_input

_Results = TypeVar("_Results", Completions, Likelihoods)


def finite(
    engine: Engine,
    count: int,
    compute: Callable[[Engine, Sequence[int], Progress], _Results],
    row: Callable[[_Results, int, int], Tensor],
    name: Callable[[int], str],
    progress: Progress,
) -> _Results:
    """All results, those that overflow in half precision computed again in float32, all at once.

    Float32 rather than bfloat16: both have the range, but float32 rounds less. A module's weights
    are converted when it is called, so no second model needs memory.

    Args:
        engine: the model and V interventions.
        count: N.
        compute: given an engine and the numbers of items, returns their results (V, N).
        row: the tokens (T,) that a result comes from, given all results, v and n.
        name: the name of item n, such as ``sample 17``.
        progress: of the first computation.

    Raises:
        InputError: a result is not finite in float32.
    """
    results = compute(engine, range(count), progress)
    bad = results.bad
    if bad.any() and engine.in_half:
        listed, items = (bad.any(along).nonzero()[:, 0] for along in (1, 0))
        with at_least_single(*engine.models):
            again = compute(engine.single(listed.tolist()), items.tolist(), silent)
        v, n = bad.nonzero(as_tuple=True)
        at = torch.searchsorted(listed, v), torch.searchsorted(items, n)
        for field, tensor in results.tensors().items():
            tensor[v, n] = getattr(again, field)[at]
        engine.journal.overflows += len(v)
        bad = results.bad
    if bad.any():
        v, n = bad.nonzero()[0].tolist()
        raise not_finite(engine, v, row(results, v, n), name(n))
    return results


def not_finite(engine: Engine, v: int, tokens: Tensor, what: str) -> InputError:
    """The error for logits with NaN or infinity in float32, with the block where they appear first.

    They come from the row `tokens` (T,) under intervention v; `what` names it, as ``sample 17``.
    """
    bad: list[int] = []

    def look(block: int, states: Tensor) -> None:
        if not states.isfinite().all():
            bad.append(block)

    precision = torch.promote_types(engine.known.model.dtype, torch.float32)
    with at_least_single(*engine.models):
        run(engine.only([v]), tokens[None].to(engine.device), observer=look)
    where = f"after block {bad[0]}" if bad else "in the head"
    return bad_input(
        what=f"{engine.interventions[v].name}, {what}",
        got=f"NaN or infinity {where}, in {precision}",
        expected="finite states and logits",
        remedy="leave out the intervention; if it is the baseline, the weights are broken",
    )
