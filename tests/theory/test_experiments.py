"""What holds for the table of every experiment."""

import pytest
from pydantic import ValidationError

from pipeline.theory.columns import EXPERIMENTS
from pipeline.workflow import tables
from tests.theory.conftest import GRIDS

SHORT = {"heads": [1, 3], "head_widths": [1], "steps": 8, "narrow_steps": 8}
"""Of `attention_only`, which trains longest."""


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_table_fits_its_schema(table, name):
    frame = table(name)
    tables._check(frame, name, EXPERIMENTS[name])
    assert frame.columns == list(EXPERIMENTS[name])
    shares = frame.filter(frame["quantity"].str.ends_with("accuracy"))
    assert shares["value"].is_between(0, 1).all()
    assert set(frame["seed"]) == set(GRIDS[name].seeds)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_same_grid_gives_the_same_bytes(run, name):
    grid = GRIDS[name].model_copy(update=SHORT if name == "attention_only" else {})
    assert run(name, grid).equals(run(name, grid))


@pytest.mark.parametrize(
    ("name", "bad", "words"),
    [
        ("associative", {"spacing": 1.0, "seeds": []}, "2 validation errors"),
        ("constructive", {"context": 1, "unsolved": [1.0]}, "2 validation errors"),
        ("attention_only", {"seeds": []}, "seeds"),
        ("attention_only", {"heads": [0]}, "heads"),
        *(("lookup", {"mistakes": [0.1, each]}, "mistakes") for each in (0.0, 0.975, 1.2)),
        *(("low_rank", {"ranks": [2, each]}, "rank") for each in (0, 11, 12)),
    ],
)
def test_bad_grids_are_refused_at_once(name, bad, words):
    with pytest.raises(ValidationError, match=words):
        type(GRIDS[name])(**GRIDS[name].model_dump() | bad)
