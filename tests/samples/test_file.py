"""Samples of a user's file: every kind of file, any name, and what is refused."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.samples.file import samples
from pipeline.samples.schemas import SAMPLES
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests.project import refused

ROWS = {
    "text": ["abcde", "fghi", "abhi"],
    "split": ["memorized", "control", "exposed"],
    "copies": [64, 0, None],
    "group": ["x", "y", "x"],
}
NAMES = (
    b"a b.{}",
    b'it\'s "quoted".{}',
    b"100%.{}",
    b"$(touch x) `y` ${{z}} {{w}} #1 *?[a].{}",
    b"-rf.{}",
    "ünïcode\nnewline.{}".encode(),
    b"not utf-8 \xff.{}",
)


def encode(texts: Sequence[str]) -> list[list[int]]:
    return [[ord(letter) for letter in text] for text in texts]


class Letters:
    """A tokenizer with a token for each letter, which may not say where they lie."""

    def __init__(self, is_fast: bool = True) -> None:
        self.is_fast = is_fast

    def __call__(
        self, texts: Sequence[str], *, return_offsets_mapping: bool, **_: Any
    ) -> dict[str, Any]:
        assert self.is_fast or not return_offsets_mapping
        made: dict[str, Any] = {"input_ids": encode(texts)}
        if return_offsets_mapping:
            made["offset_mapping"] = [[(n, n + 1) for n in range(len(each))] for each in texts]
        return made


LETTERS: Any = Letters()


def write(frame: pl.DataFrame, path: Path) -> Path:
    with path.open("wb") as file:
        match path.suffix:
            case ".parquet":
                frame.write_parquet(file)
            case ".csv":
                frame.write_csv(file)
            case _:
                frame.write_ndjson(file)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_table_gives_the_same_samples(tmp_path: Path, name: bytes) -> None:
    made = []
    for kind in (b"parquet", b"csv", b"jsonl"):
        path = tmp_path / os.fsdecode(name + b"." + kind)
        cut = samples(write(pl.DataFrame(ROWS), path), LETTERS, 1, 3, skip_short=False)
        made.append(cut.drop("line"))
    assert made[0]["tokens"].to_list() == [row[:4] for row in encode(ROWS["text"])]
    assert made[0]["split"].to_list() == ROWS["split"]
    assert made[0]["copies"].to_list() == ROWS["copies"]
    assert made[0]["suffix_group"].to_list() == [0, 1, 0]
    assert made[0].equals(made[1])
    assert made[0].equals(made[2])
    tables.write(made[0], tmp_path / "t.parquet", SAMPLES, {})


def test_in_csv_tokens_are_written_as_in_json_and_digits_may_be_text(tmp_path: Path) -> None:
    for content, expected in (
        ('tokens\n"[1, 2, 3]"\n"[4,5,6]"\n', [[1, 2, 3], [4, 5, 6]]),
        ("text\n007\n", encode(["007"])),
    ):
        (tmp_path / "t.csv").write_text(content)
        made = samples(tmp_path / "t.csv", LETTERS, 2, 1, skip_short=False)
        assert made["tokens"].to_list() == expected


@pytest.mark.parametrize("name", ["book.txt", "book", "book.md"])
def test_plain_text_is_cut_into_consecutive_samples(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xef\xbb\xbfabcdefgh")  # a byte order mark is no text
    made = samples(tmp_path / name, LETTERS, 2, 1, skip_short=False)
    assert made["tokens"].to_list() == encode(["abc", "def"])
    assert set(made["split"]) == {"memorized"}
    with pytest.raises(InputError, match=r"8 tokens[\s\S]*12 or more"):
        samples(tmp_path / name, LETTERS, 6, 6, skip_short=False)


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("t.csv", 'text,n\nabc,1\n"ab\ncd",2\nabc,3\n', [2, 3, 5]),
        ("t.csv", 'text,n\n\nabc,1\r\n\r\n"a\n\nd",2\n\n', [3, 5]),
        ("t.jsonl", '\ufeff{"text": "abc"}\n', [1]),
        ("t.jsonl", '{"text": "abc"}\n\n{"text": "abd"}\n', [1, 3]),
        ("t.txt", "ab\nde\nghi", [1, 2, 3]),
    ],
)
def test_each_sample_has_its_line(
    tmp_path: Path, name: str, content: str, lines: list[int]
) -> None:
    (tmp_path / name).write_text(content)
    made = samples(tmp_path / name, LETTERS, 2, 1, skip_short=False)
    assert made["line"].to_list() == lines


def test_a_tokenizer_that_does_not_say_where_tokens_lie_gives_no_lines(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("ab\nde\n")
    slow: Any = Letters(is_fast=False)
    made = samples(tmp_path / "t.txt", slow, 2, 1, skip_short=False)
    assert made["tokens"].to_list() == encode(["ab\n", "de\n"])
    assert made["line"].to_list() == [None, None]


def test_short_samples_are_refused_or_left_out_with_their_rows_named(tmp_path: Path) -> None:
    path = write(pl.DataFrame({"tokens": [[1, 2, 3, 4], [1], [5, 6, 7, 8]]}), tmp_path / "t.jsonl")
    with pytest.raises(InputError, match="row 1\n"):
        samples(path, None, 2, 2, skip_short=False)
    assert samples(path, None, 2, 2, skip_short=True)["row"].to_list() == [0, 2]


def test_tokens_are_used_where_there_is_text_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(pl.DataFrame({"tokens": [[1, 2]], "text": ["ab"]}), tmp_path / "t.parquet")
    assert samples(path, LETTERS, 1, 1, skip_short=False)["tokens"].to_list() == [[1, 2]]
    assert "`tokens` is used" in capsys.readouterr().out


@pytest.mark.parametrize(
    "copies",
    [
        pl.Series([3.0, None]),
        pl.Series([3, None], dtype=pl.UInt8),
        pl.Series([None, None], dtype=pl.Null),
    ],
)
def test_copies_may_be_whole_floats_and_text_a_category(tmp_path: Path, copies: pl.Series) -> None:
    text = pl.Series(["ab", "cd"], dtype=pl.Categorical)
    split = pl.Series([b"control", b"exposed"])
    frame = pl.DataFrame({"text": text, "split": split, "copies": copies})
    made = samples(write(frame, tmp_path / "t.parquet"), LETTERS, 1, 1, skip_short=False)
    assert made["copies"].to_list() == copies.to_list()
    assert made["split"].to_list() == ["control", "exposed"]


def _broken_string() -> pa.Array:
    """A text column that says it is UTF-8 and is not, as other writers leave them."""
    offsets = pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0")
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab\xff\xfe")])


MAPS = pa.array([[("a", 1)]] * 2, type=pa.map_(pa.string(), pa.int64()))
BEYOND = pa.list_(pa.uint64())
TEXT = ["ab", "cd"]
COLUMNS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "negative": ({"tokens": [[1, 2], [3, -4]]}, ("row 1\n", "[3, -4]", "0 or more")),
    "beyond 32 bits": ({"tokens": [[1, 2**32]]}, ("row 0", "4294967296")),
    "a null": ({"tokens": [[1, None]]}, ("row 0", "[1, None]")),
    "fractions": ({"tokens": [[1.0, 2.5]]}, ("tokens", "lists of integers")),
    "not a number": ({"tokens": [[float("nan")] * 2]}, ("List(Float64)",)),
    "texts in lists": ({"tokens": [["1", "2"]]}, ("tokens",)),
    "no list": ({"tokens": [1, 2]}, ("tokens",)),
    "tokens of nulls": ({"tokens": pa.nulls(2)}, ("Null",)),
    "tokens in lists of nulls": ({"tokens": [[None], []]}, ("lists of integers",)),
    "tokens in maps": ({"tokens": MAPS}, ("lists of integers",)),
    "tokens beyond 64 bits": ({"tokens": pa.array([[2**64 - 1], [1]], BEYOND)}, ("List",)),
    "a null text": ({"text": ["ab", None]}, ("text, row 1", "null")),
    "an empty text": ({"text": ["ab", ""]}, ("row 1", "0 tokens", "skip_short")),
    "text that is no UTF-8": ({"text": _broken_string()}, ("UTF-8",)),
    "bytes that are no UTF-8": ({"text": [b"ab", b"\xff\xfe"]}, ("String",)),
    "text in maps": ({"text": MAPS}, ("String",)),
    "neither": ({"words": ["a"]}, ("words", "`tokens`")),
    "no rows": ({"text": pa.array([], pa.string())}, ("no row",)),
    "another split": ({"text": ["ab"], "split": ["train"]}, ("train", "memorized")),
    "negative copies": (
        {"text": ["ab"] * 3, "copies": [1, -3, -4]}, ("-3 and 1 more", "whole numbers")
    ),
    "half a copy": ({"text": TEXT, "copies": [None, 1.5]}, ("copies", "1.5\n", "whole numbers")),
    "no number of copies": ({"text": ["ab"], "copies": [float("nan")]}, ("copies", "nan\n")),
    "copies beyond 32 bits": ({"text": ["ab"], "copies": [2**32]}, ("copies", "4294967296\n")),
    "copies as text": ({"text": ["ab"], "copies": ["3"]}, ("copies", "String")),
    "copies as truths": ({"text": ["ab"], "copies": [True]}, ("copies", "Boolean")),
}  # fmt: skip


@pytest.mark.parametrize("case", COLUMNS)
def test_bad_columns_are_refused(tmp_path: Path, case: str) -> None:
    columns, told = COLUMNS[case]
    path = tmp_path / "own 'table' $(x).parquet"
    parquet.write_table(pa.table(columns), path)
    problem = str(refused(samples, path, LETTERS, 1, 1, skip_short=False))
    assert all(part in problem for part in ("own 'table'", *told))
    assert all(line.isprintable() for line in problem.splitlines())


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("t.csv", b"text\nab\n\xff\xfe\n", "UTF-8"),
        ("t.csv", b"", "CSV"),
        ("t.csv", b'text\n"ab', "CSV"),
        ("t.csv", b"tokens\n1 2 3\n", "tokens"),
        ("t.csv", b'tokens\n"[1, 99999999999999999999999]"\n', "tokens"),
        ("t.csv", b'tokens\n"[1.9, 2, 3]"\n', "not whole"),
        ("t.jsonl", b'{"text": "\xff"}\n', "UTF-8"),
        ("t.jsonl", b"{", "JSON lines"),
        ("t.jsonl", b'{"text": "a"}\n\n{"text": "b"\n{"text": "c"}\n', "t.jsonl: line 3"),
        ("t.jsonl", b'{"text": "a"}\n["b"]\n', "t.jsonl: line 2"),
        ("t.jsonl", b'{"tokens": [1' + b"0" * 400 + b"]}\n", "t.jsonl"),
        ("t.json", b"[1]\n", "t.json"),
        ("t.txt", b"ab\xff", "UTF-8"),
        ("t.parquet", b"no table", "a whole parquet file"),
        ("t", b"PAR1 no table", "a whole parquet file"),
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=told):
        samples(tmp_path / name, LETTERS, 1, 1, skip_short=False)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.csv", tmp_path):
        with pytest.raises(InputError, match="remedy"):
            samples(path, LETTERS, 1, 1, skip_short=False)


def test_text_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": "ab"}))
    with pytest.raises(InputError, match=r"file\.tokenizer"):
        samples(tmp_path / "t.jsonl", None, 1, 1, skip_short=False)
