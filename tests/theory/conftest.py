"""The table of each experiment, of a small grid; computed once."""

from functools import cache
from importlib import import_module

import pytest

from pipeline.theory.schema import Associative, AttentionOnly, Constructive, Lookup, LowRank

GRIDS = {
    "associative": Associative(
        widths=[16, 32, 64],
        trained_widths=[8, 16],
        spacing=1.25,
        steps=150,
        learning_rate=0.05,
        seeds=[0, 1, 2],
    ),
    "lookup": Lookup(
        vocabulary=40, widths=[16, 64, 600], mistakes=[0.02, 0.3], contexts=50, seeds=[0, 1, 2]
    ),
    "low_rank": LowRank(vocabulary=12, contexts=60, ranks=[1, 4, 8], seeds=[0, 1, 2]),
    "constructive": Constructive(
        vocabulary=12,
        context=2,
        width=5,
        head_width=3,
        heads=[2, 6],
        loads=[0.5, 2.0, 4.0],
        unsolved=[0.0, 0.1, 0.4],
        seeds=[0, 1, 2],
    ),
    "attention_only": AttentionOnly(
        vocabulary=14,
        width=5,
        head_width=5,
        heads=[1, 3, 9],
        fixed_heads=5,
        head_widths=[1, 2, 5],
        widths=[3, 6],
        square_widths=[3],
        square_heads=[2, 8],
        narrow_vocabulary=8,
        narrow_heads=[1, 12],
        steps=350,
        narrow_steps=400,
        learning_rate=0.02,
        seeds=[0, 1, 2],
    ),
}


@pytest.fixture(scope="session")
def run(threads):
    """Runs an experiment, by name, on a grid or on its own."""

    def made(name, grid=None):
        with threads(1):
            module = import_module(f"pipeline.theory.{name}")
            return getattr(module, name)(grid or GRIDS[name])

    return made


@pytest.fixture(scope="session")
def table(run):
    """The table of an experiment, by name."""
    return cache(run)
