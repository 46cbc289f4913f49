"""What models wrote: as text for a generated world, as token ids for real data."""

from pathlib import Path

import polars as pl
import pytest

from pipeline.report.generations import Line, read_generations
from pipeline.workflow import tables


@pytest.fixture
def data(tmp_path: Path) -> Path:
    frame = pl.DataFrame(
        {
            "intervention": ["baseline", "block-00", "block-01"],
            "prompt_id": [0, 0, 0],
            "decoding": ["greedy"] * 3,
            "prompt": ["my number is"] * 3,
            "prompt_tokens": [[1, 2]] * 3,
            "continuation": [[7, 8, 9], [7, 5, 9], [7, 8, 9]],
            "text": ["555 0199", "555 nine", "555 0199"],
            "first_difference": [None, 1, None],
            "first_difference_character": [None, 4, None],
        },
        schema={name: column.dtype for name, column in tables.GENERATIONS.items()},
    )
    tables.write(frame, tmp_path / "generations" / "m.parquet", tables.GENERATIONS, {})
    return tmp_path


TEXT = [
    Line("baseline", "555 0199", ""),
    Line("block-00", "555 ", "nine"),
    Line("block-01", "555 0199", ""),
]


def test_real_text_is_shown_as_ids(data: Path) -> None:
    (data / "corpus/tokenizer").mkdir(parents=True)  # of other models of the study
    (data / "corpus/tokenizer/tokenizer.json").write_text("{}")
    real = {"name": "m", "origin": {"repo": "a/b"}}
    [made] = read_generations(data, [real, {"name": "without-a-table"}])
    assert made.ids
    assert made.lines == [
        Line("baseline", "7 8 9", ""),
        Line("block-00", "7", "5 9"),
        Line("block-01", "7 8 9", ""),
    ]


def test_real_text_is_shown_where_asked_for(data: Path) -> None:
    [made] = read_generations(data, [{"name": "m"}], show_text=True)
    assert not made.ids
    assert made.lines == TEXT


def test_text_of_a_generated_world_is_shown(data: Path) -> None:
    [made] = read_generations(data, [{"name": "m", "origin": {"recipe": {}}}])
    assert made.lines == TEXT
