"""Tables: written and read with a schema, which each room has of its own tables.

Tables are parquet files (zstd). A writer may add columns beyond the schema. The metadata of a file
hold only what determines it (study, model, revision, seed, dtype, versions), not times or host
names, so recomputing gives the same bytes.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow
from pyarrow import parquet

from pipeline.workflow.errors import InputError, Problem, bad_input, disk_problem, shorten
from pipeline.workflow.files import atomic

METADATA_KEY = "provenance"
MAKE_AGAIN = "make it again: delete it and run the stage that writes it"
DAMAGED = (
    *(OSError, ValueError, TypeError, KeyError, NotImplementedError),
    *(pyarrow.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException),
)
"""The exceptions of arrow and polars for files that are missing, damaged or not parquet."""

ROW_GROUP = 1 << 17
"""Rows per row group; arrow's default of a million would hold a gigabyte of continuations."""


@dataclass(frozen=True)
class Column:
    """One column: its polars type, its meaning and unit, and whether it may hold nulls."""

    dtype: pl.DataType | type[pl.DataType]
    meaning: str
    nullable: bool = False


string, boolean = partial(Column, pl.String), partial(Column, pl.Boolean)
float32, float64 = partial(Column, pl.Float32), partial(Column, pl.Float64)
uint16, uint32, uint64 = (partial(Column, each) for each in (pl.UInt16, pl.UInt32, pl.UInt64))
uint16s, uint32s = (partial(Column, pl.List(each)) for each in (pl.UInt16, pl.UInt32))
"""Columns of the commonest types, from their meaning."""

Schema = Mapping[str, Column]


def dtypes(schema: Schema) -> dict[str, pl.DataType | type[pl.DataType]]:
    """The polars type of each column."""
    return {name: column.dtype for name, column in schema.items()}


def empty(schema: Schema) -> pl.DataFrame:
    """A table without rows."""
    return pl.DataFrame(schema=dtypes(schema))


def crossed(*keys: pl.DataFrame) -> pl.DataFrame:
    """Every combination of rows; the last keys vary fastest, as in a flattened array."""
    first, *others = keys
    for other in others:
        first = first.join(other, how="cross", maintain_order="left_right")
    return first


def cast(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """The columns of a schema alone, in its order and types."""
    return frame.select(pl.col(name).cast(dtype) for name, dtype in dtypes(schema).items())


def write(
    frame: pl.DataFrame, path: str | Path, schema: Schema, provenance: Mapping[str, object]
) -> None:
    """Check `frame` and write it to `path`, atomically and reproducibly.

    The columns are put into the schema's order, added ones last. `provenance` has the inputs and
    settings of the table; JSON values, stored in the file's metadata.

    Raises:
        InputError: a column is missing, of another type, or null where it may not be.
    """
    _check(frame, path, schema)
    ordered = frame.select(*schema, pl.exclude(*schema))
    arrow = ordered.to_arrow(compat_level=pl.CompatLevel.oldest())
    metadata = {METADATA_KEY: json.dumps(provenance, sort_keys=True)}
    with atomic(path) as temporary:
        parquet.write_table(
            arrow.replace_schema_metadata(metadata),
            temporary,
            compression="zstd",
            write_page_checksum=True,
            row_group_size=ROW_GROUP,
        )


def read(
    path: str | Path, schema: Schema, remedy: str = MAKE_AGAIN, without: Collection[str] = ()
) -> pl.DataFrame:
    """Read a table and check it against its schema.

    The path is of one file; no pattern, no folder. `remedy` is that in errors about a missing or
    damaged file; columns of `without` are not read.

    Raises:
        InputError: no such file, not a parquet file, damaged, or it does not fit the schema.
    """
    with _opened(path, remedy) as file:
        columns = [name for name in file.schema_arrow.names if name not in without]
        frame = pl.DataFrame(pl.from_arrow(file.read(columns)))
    _check(frame, path, {name: each for name, each in schema.items() if name not in without})
    return frame


def batches(path: str | Path, schema: Schema) -> Iterator[pl.DataFrame]:
    """The rows of a table in batches, in their order, so that not all of them are in memory.

    Raises:
        InputError: as for `read`, when a faulty batch is reached.
    """
    with _opened(path, MAKE_AGAIN) as file:
        for batch in file.iter_batches(ROW_GROUP):
            frame = pl.DataFrame(pl.from_arrow(batch))
            _check(frame, path, schema)
            yield frame


def provenance(path: str | Path) -> dict[str, object]:
    """The provenance of the table at `path`, as it was given to `write`; empty if it has none.

    Raises:
        InputError: no such file, or it is damaged.
    """
    with _opened(path, MAKE_AGAIN) as file:
        stored = (file.metadata.metadata or {}).get(METADATA_KEY.encode(), b"{}")
        loaded: dict[str, object] = dict(json.loads(stored))
    return loaded


@contextmanager
def _opened(path: str | Path, remedy: str) -> Iterator[parquet.ParquetFile]:
    """A parquet file whose pages are compared with their checksums, if it has any.

    Read with arrow, since polars aborts the process on some damaged files.
    """
    try:
        with Path(path).open("rb") as file:
            yield parquet.ParquetFile(file, page_checksum_verification=True)
    except DAMAGED as error:
        refused = disk_problem(error)
        if refused and not isinstance(error, FileNotFoundError):
            raise InputError(refused) from error
        got = str(error).strip().splitlines() or [type(error).__name__]
        raise bad_input(str(path), shorten(got[0], 300), "a whole parquet file", remedy) from error


def _check(frame: pl.DataFrame, path: str | Path, schema: Schema) -> None:
    problems = []
    for name, column in schema.items():
        expected = f"{column.dtype} ({column.meaning})"
        if name not in frame.columns:
            got = "columns " + ", ".join(frame.columns)
        elif frame.schema[name] != column.dtype:
            got = str(frame.schema[name])
        elif not column.nullable and (nulls := frame[name].null_count()):
            got, expected = f"{nulls} nulls", "no nulls"
        else:
            continue
        problems.append(
            Problem(f"{path}, column {name}", got, expected, "give the column this type")
        )
    if problems:
        raise InputError(*problems)
