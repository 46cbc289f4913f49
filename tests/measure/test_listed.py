"""The table of interventions says all that an intervention is."""

from pathlib import Path

import pytest

from pipeline.interventions.interventions import EDITS, GROUPS, Group, Intervention, sweep
from pipeline.measure import schemas
from pipeline.measure.listed import as_table, from_table
from pipeline.workflow import tables
from tests.project import python

KINDS = [
    Group("each"),
    Group("quartiles", "zero"),
    Group("first", "skip", k=2),
    Group("random", k=3, draws=4, seed=7),
    Group("heads", "heads"),
    Group((2, 5), "heads", heads=(0, 3)),
    Group("each", "noise", draws=2, seed=3),
]


def test_there_and_back(tmp_path: Path) -> None:
    every = sweep(8, KINDS, n_heads=4)
    path = tmp_path / "m.parquet"
    tables.write(as_table(every), path, schemas.INTERVENTIONS, {})
    again = from_table(tables.read(path, schemas.INTERVENTIONS))
    assert again == every
    assert [vars(each) for each in again] == [vars(each) for each in every]


def test_the_table_says_what_a_name_means() -> None:
    table = as_table(sweep(8, KINDS, n_heads=4))
    row = table.filter(intervention="random-3-seed-7-draw-2").row(0, named=True)
    assert (row["edit"], row["group"], row["draw"]) == ("identity", "random", 2)
    assert len(row["blocks"]) == 3
    row = table.filter(intervention="baseline").row(0, named=True)
    assert (row["edit"], row["blocks"], row["heads"]) == (None, [], None)
    assert set(table["edit"].drop_nulls()) <= set(EDITS)
    assert set(table["group"]) <= {*GROUPS, "baseline", "blocks"}


def test_a_row_that_is_no_intervention_is_refused() -> None:
    table = as_table([Intervention("x", {1: "zero"})])
    with pytest.raises(ValueError, match="remove"):
        from_table(table.with_columns(edit=tables.pl.lit("remove")))


def test_no_torch_is_needed() -> None:
    modules = "pipeline.measure.listed, pipeline.checkpoints.manifest"
    python("-c", f"import sys, {modules}; sys.exit('torch' in sys.modules)")
