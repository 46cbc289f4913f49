"""Reads a user's file as a table: parquet, JSON lines, CSV or plain text."""

import codecs
import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from pipeline.samples.frame import first_of
from pipeline.samples.schemas import SPLITS
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError, Problem, bad_input, disk_problem, shorten

MOST = 2**32 - 1
"""The largest token id, and the largest number of copies, that a samples table holds."""

PARQUET = b"PAR1"
"""The first bytes of a parquet file."""

KINDS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "JSON lines"),
    **{".csv": "CSV", ".parquet": "parquet"},
}
"""End of a table's name -> its kind."""

TYPES: Mapping[str, pl.DataType | type[pl.DataType]] = {
    "tokens": pl.List(pl.Int64),
    "text": pl.String,
    "split": pl.String,
    "copies": pl.UInt32,
    "group": pl.String,
}
"""Column -> its type after the cast; files may store texts as categories or bytes."""

REMEDY = "name another file"


def is_running_text(path: Path) -> bool:
    """Whether the file is plain text, not a table.

    Raises:
        InputError: there is no such file, or it may not be read.
    """
    return _kind(path) == "text"


def read(path: Path) -> pl.DataFrame:
    """The rows of a file.

    Args:
        path: ``.jsonl``, ``.ndjson`` and ``.json`` are JSON lines, ``.csv`` is CSV with a header,
            in which lists of tokens are written as in JSON; a file with the first bytes of parquet
            is read as parquet; any other file is plain text, UTF-8, and gives one row.

    Returns:
        ``row`` u32, from 0, ``line`` u32, from 1, on which it begins (null where it has none), and
        those of `TYPES` that the file has, in their types; ``tokens``, ``text``, or both are among
        them.

    Raises:
        InputError: the file cannot be read; or a column is missing, of another type, or holds
            values that a samples table cannot hold. All such columns are listed.
    """
    kind = _kind(path)
    frame = pl.DataFrame({"text": [_text(path)]}) if kind == "text" else _table(path, kind)
    kept = [name for name in TYPES if name in frame.columns]
    if not {"tokens", "text"} & set(kept):
        raise bad_input(
            str(path),
            "columns " + ", ".join(frame.columns),
            "a column `tokens` (lists of token ids) or `text`",
            "name the column so",
        )
    frame = frame.select(kept).with_row_index("row")
    problems, made = list[Problem](), [frame["row"]]
    for name in kept:
        found, problem = _cast(frame[name])
        if problem is not None:
            problems.append(Problem(f"{path}: {name}", *problem))
        elif strange := _odd(found):
            where = first_of(f"{path}: {name}, row {strange[0][0]}", len(strange[0]))
            problems.append(Problem(where, *strange[1:]))
        made.append(found)
    if problems:
        raise InputError(*problems)
    if frame.is_empty():
        raise bad_input(str(path), "no row", "one or more", REMEDY)
    lines = [1] if kind == "text" else _lines(path, kind)
    known = lines if len(lines) == len(frame) else [None] * len(frame)
    return pl.DataFrame([*made, pl.Series("line", known, pl.UInt32)])


def _kind(path: Path) -> str:
    """One of `KINDS`, or text."""
    return "parquet" if _bytes(path, 4) == PARQUET else KINDS.get(path.suffix.lower(), "text")


def _lines(path: Path, kind: str) -> list[int]:
    """The line on which each row of a table begins; none for parquet, which has no lines."""
    if kind == "parquet":
        return []
    text = _bytes(path).decode("utf-8-sig", "replace")
    if kind == "JSON lines":
        return [number for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    csv.field_size_limit(2**31 - 1)
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        starts, before = [], 0
        for row in rows:
            starts += [before + 1] * bool(row)  # blank lines are no rows
            before = rows.line_num
    except csv.Error:  # what polars reads all the same
        return []
    return starts[1:]


def _table(path: Path, kind: str) -> pl.DataFrame:
    """The table of a file that is not plain text."""
    if kind == "parquet":
        return tables.read(path, {}, remedy=REMEDY)
    whole = _bytes(path).removeprefix(codecs.BOM_UTF8)  # polars would read a name as a pattern
    strings = {name: pl.String for name in TYPES if name != "copies"}
    try:
        if kind == "CSV":
            content = io.BytesIO(_without_blank_lines(whole))
            return pl.read_csv(content, schema_overrides=strings, infer_schema_length=None)
        return pl.read_ndjson(io.BytesIO(whole), infer_schema_length=None)
    except tables.DAMAGED as error:
        line, why = "", shorten((str(error).strip().splitlines() or [type(error).__name__])[0], 300)
        expected = "CSV, in UTF-8"
        if kind == "JSON lines":
            line, why = _broken_line(whole) or (line, why)
            expected = "JSON lines, an object a line, in UTF-8"
        raise bad_input(f"{path}{line}", why, expected, REMEDY) from error


def _without_blank_lines(content: bytes) -> bytes:
    """CSV without its blank lines, which are no rows; one within quotes stays."""
    kept, quotes = list[bytes](), 0
    for line in content.split(b"\n"):
        if line.strip(b"\r") or quotes % 2:
            kept.append(line)
        quotes += line.count(b'"')
    return b"\n".join([*kept, b""])


def _broken_line(content: bytes) -> tuple[str, str] | None:
    """The place of the first line that is no JSON object, and what it is; None: each is one."""
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            if line.strip() and not isinstance(json.loads(line), dict):
                return f": line {number}", shorten(line.decode())
        except (ValueError, RecursionError) as error:
            return f": line {number}", f"{shorten(line.decode(errors='replace'))}: {error}"
    return None


def _cast(column: pl.Series) -> tuple[pl.Series, tuple[str, str, str] | None]:
    """The column in its type of `TYPES`, or the problem that prevents the cast."""
    name, dtype, wanted = column.name, column.dtype, TYPES[column.name]
    if name == "copies" and dtype != pl.Null and not dtype.is_numeric():
        return column, (str(dtype), f"whole numbers, 0 to {MOST}", "mend or drop the column")
    try:
        if name == "tokens" and dtype == pl.String:  # CSV has no lists
            column = column.str.json_decode(pl.List(pl.Float64))
            parts = column.explode().drop_nulls()
            if (parts != parts.floor()).any():
                return column, ("numbers that are not whole", "lists of integers", "convert it")
        elif name == "tokens" and not (
            isinstance(dtype, (pl.List, pl.Array)) and dtype.inner.is_integer()
        ):
            return column, (str(dtype), "lists of integers", "convert it")
        if name == "copies" and dtype.is_numeric():
            whole = pl.col(name).is_between(0, MOST) & (pl.col(name).floor() == pl.col(name))
            odd = column.to_frame().filter(~whole)[name]
            if len(odd):
                expected = f"whole numbers, 0 to {MOST}; null where unknown"
                return column, (first_of(str(odd[0]), len(odd)), expected, "mend or drop it")
        return column.cast(wanted), None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        got = str(error).strip().splitlines() or [str(dtype)]
        return column, (f"{dtype}: {shorten(got[0])}", str(wanted), "convert the column")


def _odd(column: pl.Series) -> tuple[list[int], str, str, str] | None:
    """The rows with values that a samples table cannot hold, and the problem of the first."""
    if column.name == "copies":
        return None
    if null := column.is_null().arg_true().to_list():
        return null, "null", "a value in every row", "leave such rows out"
    if column.name == "split":
        known, shown = column.is_in(SPLITS), column
        expected, remedy = ", ".join(SPLITS), "use these"
    elif column.name == "tokens":
        no_id = pl.element().is_null() | ~pl.element().is_between(0, MOST)
        known, shown = ~column.list.eval(no_id).list.any(), column
        expected, remedy = "token ids, 0 or more", "make them with the model's own tokenizer"
    else:
        shown = column.cast(pl.Binary)
        known = pl.Series([_is_utf8(text) for text in shown], dtype=pl.Boolean)
        expected, remedy = "text in UTF-8", "write it in UTF-8"
    if not (odd := (~known).arg_true().to_list()):
        return None
    return odd, shorten(shown[odd[:1]].to_list()[0]), expected, remedy


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad_input(
            str(path), str(error), "text in UTF-8, or a parquet file", "write it in UTF-8"
        ) from error


def _bytes(path: Path, first: int = -1) -> bytes:
    """The first bytes of a file; by default all."""
    try:
        with path.open("rb") as file:
            return file.read(first)
    except OSError as error:
        refused = disk_problem(error)
        expected, remedy = (refused.expected, refused.remedy) if refused else ("a file", REMEDY)
        raise bad_input(str(path), str(error.strerror), expected, remedy) from error
