"""Tables are checked on write and on read, and recomputing gives the same bytes."""

import polars as pl
import pytest

from pipeline.workflow import tables
from pipeline.workflow.errors import InputError

SCHEMA: tables.Schema = {
    "a": tables.Column(pl.UInt32, "a count"),
    "b": tables.Column(pl.Float64, "nats", nullable=True),
}
FRAME = pl.DataFrame({"a": [1, 2], "b": [0.5, None]}, schema={"a": pl.UInt32, "b": pl.Float64})


def test_round_trip_with_provenance_and_added_columns(tmp_path):
    path = tmp_path / "t.parquet"
    tables.write(FRAME.with_columns(c=pl.lit("x")).select("c", "b", "a"), path, SCHEMA, {"seed": 1})
    read = tables.read(path, SCHEMA)
    assert read.columns == ["a", "b", "c"]
    assert read.select("a", "b").equals(FRAME)
    assert tables.provenance(path) == {"seed": 1}


def test_the_same_table_is_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        tables.write(FRAME, tmp_path / name, SCHEMA, {"seed": 1, "study": "s"})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (FRAME.drop("a"), ["column a", "columns b"]),
        (FRAME.with_columns(pl.col("a").cast(pl.Int64)), ["column a", "Int64", "UInt32"]),
        (FRAME.with_columns(a=pl.Series([1, None], dtype=pl.UInt32)), ["column a", "1 nulls"]),
        (FRAME.select(c="b"), ["column a", "column b"]),
    ],
)
def test_what_does_not_fit_is_refused_both_ways(tmp_path, frame, said):
    path = tmp_path / "t.parquet"
    with pytest.raises(InputError) as caught:
        tables.write(frame, path, SCHEMA, {})
    assert all(part in str(caught.value) for part in said)
    assert list(tmp_path.iterdir()) == []
    frame.write_parquet(path)
    with pytest.raises(InputError):
        tables.read(path, SCHEMA)
