"""Converts the interventions of a model to a table and back.

Needs neither the model nor torch, so that the stage that lists them takes a second.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.interventions.interventions import Intervention
from pipeline.measure.schemas import INTERVENTIONS
from pipeline.workflow.errors import bad_input
from pipeline.workflow.tables import dtypes, read


def as_table(interventions: Sequence[Intervention]) -> pl.DataFrame:
    """The interventions as `schemas.INTERVENTIONS`; each has one edit for all its blocks."""
    _, *columns = INTERVENTIONS
    rows = [(one.name, *(getattr(one, column) for column in columns)) for one in interventions]
    return pl.DataFrame(rows, schema=dtypes(INTERVENTIONS), orient="row")


def from_table(table: pl.DataFrame) -> tuple[Intervention, ...]:
    """The interventions of a table, in its order; the inverse of `as_table`.

    Raises:
        ValueError: a row is not a valid intervention, for example has an unknown edit.
    """
    made = []
    for row in table.select(*INTERVENTIONS).iter_rows(named=True):
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in row.items()
        }
        name, edit, blocks = (values.pop(key) for key in ("intervention", "edit", "blocks"))
        made.append(Intervention(name, dict.fromkeys(blocks, edit), **values))
    return tuple(made)


def read_listed(data: Path, model: str) -> tuple[Intervention, ...]:
    """The interventions that a study, with its tables in `data`, lists for a model."""
    return from_table(read(data / "interventions" / f"{model}.parquet", INTERVENTIONS))


def named(
    what: str, names: Sequence[str], listed: Sequence[Intervention]
) -> tuple[Intervention, ...]:
    """The listed interventions of these names, in the order of the names.

    Raises:
        InputError: none has the name; `what` says who asks for it.
    """
    known = {one.name: one for one in listed}
    if unknown := [name for name in names if name not in known]:
        expected, remedy = "some of " + ", ".join(known), "name interventions of the study"
        raise bad_input(what, ", ".join(unknown), expected, remedy)
    return tuple(known[name] for name in names)
