"""The stages that run an experiment on attention-only transformers, one function for each.

They differ in what they import, which is their code: an edit of one leaves the others alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.study.schema import Study
from pipeline.theory import columns
from pipeline.theory.schema import Experiment
from pipeline.workflow import tables
from pipeline.workflow.running import costed, determined_by

if TYPE_CHECKING:
    import polars as pl


def associative(study: Study, grid: Experiment) -> None:
    """Fill associative memories until less than half of the pairs is right."""
    from pipeline.theory.associative import associative

    _write(study, grid, associative)


def lookup(study: Study, grid: Experiment) -> None:
    """Compare what a linear map loses of look-up tables with the bounds on it."""
    from pipeline.theory.lookup import lookup

    _write(study, grid, lookup)


def low_rank(study: Study, grid: Experiment) -> None:
    """Compare what maps of low rank lose with the bounds on it."""
    from pipeline.theory.low_rank import low_rank

    _write(study, grid, low_rank)


def constructive(study: Study, grid: Experiment) -> None:
    """Build attention-only transformers, within the theorem's numbers and beyond."""
    from pipeline.theory.constructive import constructive

    _write(study, grid, constructive)


def attention_only(study: Study, grid: Experiment) -> None:
    """Train attention-only transformers to know a table by heart."""
    from pipeline.theory.attention_only import attention_only
    from pipeline.workflow.progress import reporter

    progress = reporter("attention-only transformers", "steps")
    _write(study, grid, partial(attention_only, progress=progress))


def _write(study: Study, grid: Experiment, run: Callable[[Any], pl.DataFrame]) -> None:
    """Run an experiment on one thread, and write its table.

    Sums then have one order, whatever the machine: the same grid gives the same bytes.
    """
    import torch

    torch.set_num_threads(1)
    with costed(study.data, "theory", grid.name):
        made = run(grid)
    path = study.data / "theory" / f"{grid.name}.parquet"
    made_by = determined_by(study.study, grid=grid.model_dump())
    tables.write(made, path, columns.EXPERIMENTS[grid.name], made_by)
