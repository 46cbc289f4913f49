from __future__ import annotations

import pytest

from pipeline.corpus.generated import generate
from pipeline.corpus.planted import Corpus
from pipeline.corpus.world import World, make_world


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """A corpus with the tiny study's tasks and world, and fewer records."""
    return generate(
        seed=0,
        row_length=64,
        vocabulary=640,
        world_tokens=512_000,
        records={1: 4, 16: 4, 32: 8},
        control_records=8,
        task_items=512,
    )


@pytest.fixture(scope="session")
def world() -> World:
    """The world of `corpus`."""
    return make_world(seed=0, held_out_animals=128)
