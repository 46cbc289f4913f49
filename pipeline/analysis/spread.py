"""How metrics of memorization spread over the samples, beside the means of the summary.

Source: Figure 2 of arXiv 2501.05078 compares the samples, not only their means.
"""

from pathlib import Path

import polars as pl

from pipeline.analysis import views
from pipeline.measure.metrics import MEMORIZATION
from pipeline.workflow import tables

METRICS = ("completion_entropy", "token_accuracy")
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
"""Column -> the share of samples below it."""

_KEY = ("intervention", "split")
_COLUMNS = dict.fromkeys(("model", *_KEY, "metric"), pl.String)
NOTHING = pl.DataFrame(schema={**_COLUMNS, **dict.fromkeys(QUANTILES, pl.Float64)})
"""No quantiles."""


def quantiles(summary: pl.DataFrame, data: Path) -> pl.DataFrame:
    """Quantiles over samples of each metric, for each model, intervention and split.

    The samples of all seeds of one recipe are put together.

    Returns:
        model (as `views.over_seeds` names it), intervention, split, metric, and a column for each
        of `QUANTILES`, linearly interpolated; null where no continuation was decoded.

    Raises:
        InputError: a table is missing or does not fit its schema.
    """
    known = summary.filter(pl.col("metric").is_in(METRICS))
    unused = set(MEMORIZATION) - {*_KEY, *METRICS}
    parts = [NOTHING]
    members = known.select("recipe", "model").unique(maintain_order=True)
    for [recipe], rows in members.group_by("recipe", maintain_order=True):
        samples = pl.concat(
            tables.read(data / "memorization" / f"{name}.parquet", MEMORIZATION, without=unused)
            for name in rows["model"]
        )
        long = samples.unpivot(METRICS, index=_KEY, variable_name="metric")
        made = long.group_by(*_KEY, "metric", maintain_order=True).agg(
            pl.col("value").quantile(share, "linear").alias(column)
            for column, share in QUANTILES.items()
        )
        name = views.seeds_name(str(recipe), rows.height)
        parts.append(made.select(pl.lit(name).alias("model"), pl.all()))
    return pl.concat(parts)
