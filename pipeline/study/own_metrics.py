"""Tries the metrics of `mine/metrics.py` on made-up samples, before any stage works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.study.checks import OWN_METRICS
from pipeline.workflow.errors import InputError, Problem, bad_input

if TYPE_CHECKING:
    from pipeline.measure.metrics import Metric

REMEDY = f"correct {OWN_METRICS}; docs/your-own.md has an example"


def problems(length: int) -> list[Problem]:
    """The problems of one's own metrics on suffixes of `length` tokens; the file is executed.

    Raises:
        InputError: the file cannot be loaded.
    """
    try:
        from pipeline.measure import metrics

        found = {each: fault(each, length) for each in getattr(metrics, "OWN", ())}
    except InputError:
        raise
    except Exception as error:  # whatever a user's code raises
        got, expected = _said(error), "a file that can be loaded, with METRICS, a list of Metric(…)"
        raise bad_input(str(OWN_METRICS), got, expected, REMEDY) from error
    return [
        Problem(
            f"{OWN_METRICS}: {m.name}, on made-up suffixes of {length} tokens",
            got,
            f"an array (interventions, samples) of {m.dtype}, {m.least:.3g} to {m.most:.3g}",
            REMEDY,
        )
        for m, got in found.items()
        if got
    ]


def fault(metric: Metric, length: int) -> str | None:
    """What is wrong with a metric's values for made-up samples of S = `length`; None: nothing."""
    from pipeline.measure.metrics import _TYPES, Completed

    random, shape = np.random.default_rng(0), (2, 3, length)
    rank = random.integers(1, 100, shape, np.int32)
    log_prob = -random.exponential(size=shape).astype(np.float32)
    made = Completed(
        suffix=random.integers(9, size=shape[1:]),
        continuation=random.integers(9, size=shape),
        teacher_forced=random.integers(9, size=shape),
        entropy=random.random(shape, np.float32),
        log_prob=log_prob,
        log_prob_top_40=np.where(rank > 40, -np.float32(np.inf), log_prob),
        rank=rank,
        spread=random.random(shape, np.float32),
        texts=["one", "two", "three"] if metric.needs == "text" else None,
    )
    try:
        values: NDArray[Any] = metric.function(made).astype(_TYPES[metric.dtype])
    except Exception as error:  # whatever a user's code raises
        return _said(error)
    if values.shape != shape[:2]:
        return f"shape {values.shape} for 2 interventions and 3 samples"
    column = pl.DataFrame({metric.name: values.ravel()})
    if metric.needs == "text":
        column = column.fill_nan(None)
    unfit = column.filter(~metric.possible())
    return f"the value {unfit.item(0, 0)}" if len(unfit) else None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
