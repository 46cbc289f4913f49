"""Rows of datasets of the hub whose columns are checked."""

from collections.abc import Mapping

import polars as pl
import polars.selectors as cs

from pipeline.tasks.datasets import load
from pipeline.workflow.errors import bad_input

TEXT = {"text": (cs.string(), "strings")}
"""Columns of a dataset of documents: name -> the types that it may have, and their name."""


def documents(
    repo: str, commit: str, columns: Mapping[str, tuple[pl.Expr, str]] = TEXT
) -> pl.DataFrame:
    """The rows of all splits, split by split, with these columns alone; no text is null.

    Raises:
        InputError: as for `pipeline.tasks.datasets.load`; or a split without the columns.
    """
    frames: list[pl.DataFrame] = []
    for name, rows in load(repo, commit)[0].items():
        frame = rows.to_polars()
        if any(column not in frame.select(kind).columns for column, (kind, _) in columns.items()):
            found = ", ".join(f"{column} ({kind})" for column, kind in frame.schema.items())
            wanted = " and ".join(f"`{column}` of {kind}" for column, (_, kind) in columns.items())
            remedy = "name a dataset of such documents"
            raise bad_input(f"{repo} at {commit}: {name}", f"columns {found}", wanted, remedy)
        frames.append(frame.select(*columns))
    return pl.concat(frames, how="vertical_relaxed").with_columns(pl.col("text").fill_null(""))
