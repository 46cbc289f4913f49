"""The spread over samples, from the tables of memorization, sample by sample."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
METRICS = ("completion_entropy", "token_accuracy")


def spread(memorization: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Quantiles of each model, intervention and split.

    Args:
        memorization: model -> its table.
    """
    rows = []
    for model, table in memorization.items():
        for (intervention, split), own in table.group_by("intervention", "split"):
            key = {"model": model, "intervention": intervention, "split": split}
            for metric in METRICS:
                known = own[metric].drop_nulls().to_numpy()
                cuts = np.quantile(known, list(QUANTILES.values())) if len(known) else [None] * 5
                named = dict(zip(QUANTILES, map(_float, cuts), strict=True))
                rows.append({**key, "metric": metric, **named})
    return pl.DataFrame(rows, infer_schema_length=None)


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)
