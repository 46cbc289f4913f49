"""What models wrote: as text for a generated world, as token ids for real data."""

from pathlib import Path

import polars as pl
import pytest

from pipeline.measure import schemas
from pipeline.report.generations import Generations, collapse, read_generations
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
        schema=tables.dtypes(schemas.GENERATIONS),
    )
    tables.write(frame, tmp_path / "generations" / "m.parquet", schemas.GENERATIONS, {})
    return tmp_path


TEXT = [("555 0199", ""), ("555 ", "nine"), ("555 0199", "")]
IDS = [("7 8 9", ""), ("7", "5 9"), ("7 8 9", "")]


def test_text_is_shown_where_it_may_be(data: Path) -> None:
    """Where asked for, or of a generated world; real text is ids."""
    (data / "corpus/tokenizer").mkdir(parents=True)  # of other models of the study
    (data / "corpus/tokenizer/tokenizer.json").write_text("{}")
    for origin, show_text, lines in (
        ({"repo": "a/b"}, False, IDS),
        (None, True, TEXT),
        ({"recipe": {}}, False, TEXT),
    ):
        manifests = [{"name": "m", "origin": origin}, {"name": "without-a-table"}]
        [made] = read_generations(data, manifests, show_text=show_text)
        assert made.ids == (lines is IDS)
        assert [(line["same"], line["other"]) for line in made.lines] == lines
        names = [line["intervention"] for line in made.lines]
        assert names == ["baseline", "block-00", "block-01"]


def test_collapse_is_a_mean_over_the_prompts() -> None:
    def written(prompt: str, decoding: str, *numbers: tuple[float, float]) -> Generations:
        columns = ("intervention", "baseline_perplexity", "distinct_bigrams")
        rows = [(f"block-0{i}", *both) for i, both in enumerate(numbers)]
        lines = [dict(zip(columns, row, strict=True)) for row in rows]
        return Generations("m", prompt, decoding, lines)

    found = collapse(
        [
            written("a", "greedy", (2, 1.0), (10, 0.5)),
            written("a", "sampled", (3, 1.0), (5, 1.0)),
            written("b", "greedy", (8, 0.5), (1000, 0.5)),
            written("b", "sampled", (3, 1.0), (5, 0.0)),
        ]
    )
    means = {
        name: {decoding: tuple(n.value for n in both) for decoding, both in numbers.items()}
        for (_, name), numbers in found.items()
    }
    assert means == {
        "block-00": {"greedy": pytest.approx((4, 0.75)), "sampled": pytest.approx((3, 1))},
        "block-01": {"greedy": pytest.approx((100, 0.5)), "sampled": pytest.approx((5, 0.5))},
    }
