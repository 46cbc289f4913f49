"""The tables of one model, read together and checked for completeness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.manifests import read_manifests, recipe_key
from pipeline.measure import metrics, schemas
from pipeline.samples.schemas import SPLITS, read_samples
from pipeline.workflow import tables
from pipeline.workflow.errors import Problem, bad_input, shorten


@dataclass(frozen=True)
class ModelTables:
    """The tables of one model.

    Args:
        name: of the model.
        family: of the model.
        n_blocks: L.
        interventions: the planned interventions, schema `schemas.INTERVENTIONS`.
        samples: the family's table, schema `SAMPLES`.
        memorization: the model's, schema `metrics.MEMORIZATION`; it needs no `continuation`. Of
            a model with a twin also `twin_exact_match`, the twin's under the same intervention;
            null where it lacks one.
        benchmarks: the model's, schema `schemas.BENCHMARKS`; None where none were run.
        documents: the model's, schema `schemas.BENCHMARK_DOCUMENTS`, optionally with `weight`, by
            which lm-eval divides; may be empty.
        parameters: of the model; None where unknown.
        tokens: the model's, schema `schemas.TOKENS`; may be empty, as may the next two.
        displacement: the model's, schema `schemas.DISPLACEMENT`.
        attention_change: the model's, schema `schemas.ATTENTION_CHANGE`.
        recipe: the key that models share if they differ only in their training seed; None: its own
            recipe. See `manifests.recipe_key`.
    """

    name: str
    family: str
    n_blocks: int
    interventions: pl.DataFrame
    samples: pl.DataFrame
    memorization: pl.DataFrame
    benchmarks: pl.DataFrame | None
    documents: pl.DataFrame
    parameters: int | None = None
    recipe: str | None = None
    tokens: pl.DataFrame = field(default_factory=lambda: tables.empty(schemas.TOKENS))
    displacement: pl.DataFrame = field(default_factory=lambda: tables.empty(schemas.DISPLACEMENT))
    attention_change: pl.DataFrame = field(
        default_factory=lambda: tables.empty(schemas.ATTENTION_CHANGE)
    )


def read_tables(
    data: Path, name: str, family: str, *, benchmarked: bool = True, twin: str | None = None
) -> ModelTables:
    """Read the tables of one model; `twin` was not shown the samples.

    Raises:
        InputError: a table or the manifest is missing, or does not fit its schema.
    """
    [manifest] = read_manifests(data, [(name, family)])
    benchmarks = data / "benchmarks" / f"{name}.parquet"
    documents = data / "benchmarks" / f"{name}.documents.parquet"
    samples = read_samples(data, family)
    path = data / "memorization" / f"{name}.parquet"
    # without the continuations, which take most of the table's memory
    memorization = tables.read(path, metrics.MEMORIZATION, without={"continuation"})
    if twin:
        _require_twin(data, twin, family, manifest)
        key = ["intervention", "sample_id"]
        unused = set(metrics.MEMORIZATION) - {*key, "exact_match"}
        other = data / "memorization" / f"{twin}.parquet"
        known = tables.read(other, metrics.MEMORIZATION, without=unused)
        known = known.rename({"exact_match": "twin_exact_match"})
        memorization = memorization.join(known, on=key, how="left", maintain_order="left")
    return ModelTables(
        name,
        family,
        manifest["n_blocks"],
        tables.read(data / "interventions" / f"{name}.parquet", schemas.INTERVENTIONS),
        samples,
        memorization,
        tables.read(benchmarks, schemas.BENCHMARKS) if benchmarked else None,
        tables.read(documents, schemas.BENCHMARK_DOCUMENTS)
        if benchmarked
        else tables.empty(schemas.BENCHMARK_DOCUMENTS),
        manifest.get("parameters"),
        recipe_key(manifest),
        tables.read(data / "tokens" / f"{name}.parquet", schemas.TOKENS),
        tables.read(data / "displacement" / f"{name}.parquet", schemas.DISPLACEMENT),
        tables.read(data / "displacement" / f"{name}.attention.parquet", schemas.ATTENTION_CHANGE),
    )


def _require_twin(data: Path, twin: str, family: str, manifest: Mapping[str, Any]) -> None:
    """Raise if the twin of the model of this manifest has another number of blocks."""
    [other] = read_manifests(data, [(twin, family)])
    if other["n_blocks"] != manifest["n_blocks"]:
        raise bad_input(
            f"{twin}, the twin of {manifest['name']}",
            f"{other['n_blocks']} blocks",
            f"{manifest['n_blocks']}, those of {manifest['name']}",
            "name as the twin a model of the same shape",
        )


class Grid:
    """Rows of a table as matrices: N samples or documents by V interventions.

    Args:
        rows: of one split, or of one metric of a task.
        names: of the V interventions, in the order of the columns; rows of others are left out.
        key: the column that names a sample or a document.

    Attributes:
        first: the N rows of the first intervention, by ascending key.
        complete: whether every intervention has each of the N once.
    """

    def __init__(self, rows: pl.DataFrame, names: Sequence[str], key: str = "sample_id") -> None:
        order = pl.col("intervention").cast(pl.Enum(names), strict=False)
        rows = rows.filter(pl.col("intervention").is_in(names))
        self.names = list(names)
        self._rows = rows.sort(order, key)
        self._shape = (len(names), rows.height // len(names))
        self.first = self._rows.head(self._shape[1])
        expected = pl.DataFrame({"intervention": names}).join(
            self.first.select(key), how="cross", maintain_order="left_right"
        )
        self.complete = bool(rows.height) and expected.equals(
            self._rows.select("intervention", key)
        )

    def known(self, column: str) -> bool:
        """Whether any sample has a value."""
        return self._rows[column].null_count() < self._rows.height

    def values(self, column: str) -> NDArray[Any]:
        """(N, V), by ascending key."""
        return self._rows[column].to_numpy().reshape(self._shape).T

    def floats(self, column: str) -> NDArray[np.float64]:
        """As `values`; NaN where unknown."""
        return self._rows[column].cast(pl.Float64).to_numpy().reshape(self._shape).T

    @property
    def groups(self) -> NDArray[np.integer]:
        """(N,) the groups of near-duplicates of the samples."""
        return self.first["suffix_group"].to_numpy()

    @property
    def decoded(self) -> NDArray[np.bool_]:
        """(N,) whether the samples' continuations were decoded."""
        return self.first["decoded"].to_numpy()

    @property
    def copies(self) -> NDArray[np.float64]:
        """(N,) times in the training data; NaN where unknown."""
        return self.first["copies"].cast(pl.Float64).fill_null(float("nan")).to_numpy()

    @property
    def suffix_length(self) -> int:
        """S, tokens."""
        return int(self.first["suffix_length"][0])


def grids(model: ModelTables) -> dict[str, Grid]:
    """The memorization table of each split that has samples; see `grid_problems`."""
    names = model.interventions["intervention"].to_list()
    of_sample = model.samples.select("sample_id", "suffix_group", "suffix_length", "copies")
    frame = model.memorization.join(of_sample, on="sample_id")
    splits = {split: frame.filter(split=split) for split in SPLITS}
    return {split: Grid(rows, names) for split, rows in splits.items() if rows.height}


def grid_problems(model: ModelTables) -> list[Problem]:
    """A problem for each hole: each intervention must hold every sample, task and metric once."""
    expected = model.interventions["intervention"].to_list()
    samples = model.samples.select("sample_id", "split").sort("sample_id")
    problems = _of_grid(
        f"memorization of {model.name}",
        expected,
        model.memorization.select("intervention", "sample_id", "split"),
        samples,
        "samples",
    )
    if model.benchmarks is None:
        return problems
    tasks = model.benchmarks.select("task", "metric").unique().sort("task", "metric")
    return problems + _of_grid(
        f"benchmarks of {model.name}",
        expected,
        model.benchmarks.select("intervention", "task", "metric"),
        tasks,
        "tasks and metrics",
    )


def _of_grid(
    what: str, expected: Sequence[str], rows: pl.DataFrame, cells: pl.DataFrame, noun: str
) -> list[Problem]:
    """Compare `rows` (intervention and a cell) with every expected intervention times `cells`."""
    remedy = "make the table again: delete it and run the stage that writes it"
    present = set(rows["intervention"])
    whole = pl.DataFrame({"intervention": sorted(present)}).join(cells, how="cross")
    states = {
        "lacks": whole.join(rows, on=whole.columns, how="anti"),
        "holds unknown": rows.join(whole, on=whole.columns, how="anti"),
    }
    missing = [name for name in expected if name not in present]
    strange = sorted(present - set(expected))
    twice = int(rows.is_duplicated().sum())
    listed = "of the interventions table"
    found = [
        (
            "interventions",
            missing and f"without {shorten(missing)}",
            f"all {len(expected)} {listed}",
        ),
        ("interventions", strange and shorten(strange), f"only those {listed}"),
        ("rows", twice and f"{twice} that occur twice or more", "each row once"),
        *(
            (
                noun,
                frame.height
                and f"{state} {frame.height}, in {shorten(sorted(set(frame['intervention'])))}",
                f"the same {cells.height} under every intervention",
            )
            for state, frame in states.items()
        ),
    ]
    return [Problem(f"{what}, {of}", str(got), wanted, remedy) for of, got, wanted in found if got]
