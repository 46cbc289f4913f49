"""What models wrote: as text for a generated world, as token ids for real data."""

from pathlib import Path

import polars as pl
import pytest

from pipeline.measure import schemas
from pipeline.report.generations import Generations, Line, collapse, read_generations
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
            "baseline_perplexity": [1.5, 20.0, 1.5],
            "distinct_bigrams": [1.0, 0.5, 1.0],
        },
        schema={name: column.dtype for name, column in schemas.GENERATIONS.items()},
    )
    tables.write(frame, tmp_path / "generations" / "m.parquet", schemas.GENERATIONS, {})
    return tmp_path


TEXT = [
    Line("baseline", "555 0199", "", 1.5, 1.0),
    Line("block-00", "555 ", "nine", 20.0, 0.5),
    Line("block-01", "555 0199", "", 1.5, 1.0),
]


def test_real_text_is_shown_as_ids(data: Path) -> None:
    (data / "corpus/tokenizer").mkdir(parents=True)  # of other models of the study
    (data / "corpus/tokenizer/tokenizer.json").write_text("{}")
    real = {"name": "m", "origin": {"repo": "a/b"}}
    [made] = read_generations(data, [real, {"name": "without-a-table"}])
    assert made.ids
    assert made.lines == [
        Line("baseline", "7 8 9", "", 1.5, 1.0),
        Line("block-00", "7", "5 9", 20.0, 0.5),
        Line("block-01", "7 8 9", "", 1.5, 1.0),
    ]


def test_real_text_is_shown_where_asked_for(data: Path) -> None:
    [made] = read_generations(data, [{"name": "m"}], show_text=True)
    assert not made.ids
    assert made.lines == TEXT


def test_text_of_a_generated_world_is_shown(data: Path) -> None:
    [made] = read_generations(data, [{"name": "m", "origin": {"recipe": {}}}])
    assert made.lines == TEXT


def test_collapse_is_a_mean_over_the_prompts() -> None:
    def written(prompt: str, decoding: str, *numbers: tuple[float, float]) -> Generations:
        lines = [Line(f"block-0{i}", "", "", *both) for i, both in enumerate(numbers)]
        return Generations("m", prompt, decoding, lines)

    found = collapse(
        [
            written("a", "greedy", (2, 1.0), (10, 0.5)),
            written("a", "sampled", (3, 1.0), (5, 1.0)),
            written("b", "greedy", (8, 0.5), (1000, 0.5)),
            written("b", "sampled", (3, 1.0), (5, 0.0)),
        ]
    )
    assert [(row.model, row.intervention) for row in found] == [
        ("m", "block-00"),
        ("m", "block-01"),
    ]
    means = [
        {decoding: [n.value for n in both] for decoding, both in row.numbers.items()}
        for row in found
    ]
    assert means[0] == {"greedy": pytest.approx([4, 0.75]), "sampled": pytest.approx([3, 1])}
    assert means[1] == {"greedy": pytest.approx([100, 0.5]), "sampled": pytest.approx([5, 0.5])}
