"""The tables of one model, read together and checked for completeness."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis.manifests import read_manifest, recipe_key
from pipeline.interventions.interventions import BASELINE
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

    @property
    def names(self) -> list[str]:
        """Of the V interventions, as planned."""
        return self.interventions["intervention"].to_list()

    @property
    def baseline(self) -> int:
        """The place of the unmodified model among the names."""
        return self.names.index(BASELINE.name)

    @property
    def constants(self) -> dict[str, pl.Expr]:
        """The columns that tell models apart in tables of several; `recipe` is the key, or name."""
        made = {
            "model": self.name,
            "recipe": self.recipe or self.name,
            "family": self.family,
            "parameters": self.parameters,
            "n_blocks": self.n_blocks,
        }
        return {column: pl.lit(value) for column, value in made.items()}


def read_tables(
    data: Path, name: str, family: str, *, benchmarked: bool = True, twin: str | None = None
) -> ModelTables:
    """Read the tables of one model; `twin` was not shown the samples.

    Raises:
        InputError: a table or the manifest is missing, or does not fit its schema; or the twin has
            another number of blocks.
    """
    manifest = read_manifest(data, name)

    def read(file: str, schema: tables.Schema, without: Collection[str] = ()) -> pl.DataFrame:
        return tables.read(data / f"{file}.parquet", schema, without=without)

    # without the continuations, which take most of the table's memory
    memorization = read(f"memorization/{name}", metrics.MEMORIZATION, {"continuation"})
    if twin:
        blocks = read_manifest(data, twin)["n_blocks"]
        if blocks != manifest["n_blocks"]:
            raise bad_input(
                f"{twin}, the twin of {name}",
                f"{blocks} blocks",
                f"{manifest['n_blocks']}, those of {name}",
                "name as the twin a model of the same shape",
            )
        key = ["intervention", "sample_id"]
        unused = set(metrics.MEMORIZATION) - {*key, "exact_match"}
        other = read(f"memorization/{twin}", metrics.MEMORIZATION, unused)
        known = other.rename({"exact_match": "twin_exact_match"})
        memorization = memorization.join(known, on=key, how="left", maintain_order="left")
    benchmarks, documents = None, tables.empty(schemas.BENCHMARK_DOCUMENTS)
    if benchmarked:
        documents = read(f"benchmarks/{name}.documents", schemas.BENCHMARK_DOCUMENTS)
        benchmarks = read(f"benchmarks/{name}", schemas.BENCHMARKS)
    return ModelTables(
        name,
        family,
        manifest["n_blocks"],
        read(f"interventions/{name}", schemas.INTERVENTIONS),
        read_samples(data, family),
        memorization,
        benchmarks,
        documents,
        manifest.get("parameters"),
        recipe_key(manifest),
        read(f"tokens/{name}", schemas.TOKENS),
        read(f"displacement/{name}", schemas.DISPLACEMENT),
        read(f"displacement/{name}.attention", schemas.ATTENTION_CHANGE),
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
        rows = rows.filter(pl.col("intervention").is_in(names)).sort(order, key)
        self.names, self._rows = list(names), rows
        self._shape = (len(names), rows.height // len(names))
        self.first = rows.head(self._shape[1])
        expected = tables.crossed(pl.DataFrame({"intervention": names}), self.first.select(key))
        self.complete = bool(rows.height) and expected.equals(rows.select("intervention", key))

    def known(self, column: str) -> bool:
        """Whether the table has the column, with a value for any sample."""
        rows = self._rows
        return column in rows.columns and rows[column].null_count() < rows.height

    def values(self, column: str) -> NDArray[Any]:
        """(N, V), by ascending key."""
        return self._rows[column].to_numpy().reshape(self._shape).T

    @property
    def baseline(self) -> int:
        """The column of the unmodified model."""
        return self.names.index(BASELINE.name)

    @property
    def groups(self) -> NDArray[np.integer]:
        """(N,) the groups of near-duplicates of the samples."""
        return self.first["suffix_group"].to_numpy()


def grids(model: ModelTables) -> dict[str, Grid]:
    """The memorization table of each split that has samples; see `grid_problems`."""
    of_sample = model.samples.select("sample_id", "suffix_group", "suffix_length", "copies")
    frame = model.memorization.join(of_sample, on="sample_id")
    splits = {split: frame.filter(split=split) for split in SPLITS}
    return {split: Grid(rows, model.names) for split, rows in splits.items() if rows.height}


def grid_problems(model: ModelTables) -> list[Problem]:
    """A problem for each hole: each intervention must hold every sample, task and metric once."""
    samples = model.samples.select("sample_id", "split").sort("sample_id")
    checked = [("memorization", model.memorization, samples, "samples")]
    if model.benchmarks is not None:
        tasks = model.benchmarks.select("task", "metric").unique().sort("task", "metric")
        checked.append(("benchmarks", model.benchmarks, tasks, "tasks and metrics"))
    remedy = "make the table again: delete it and run the stage that writes it"
    return [
        Problem(f"{table} of {model.name}, {of}", got, wanted, remedy)
        for table, rows, cells, noun in checked
        for of, got, wanted in _holes(model.names, rows, cells, noun)
    ]


def _holes(
    expected: Sequence[str], rows: pl.DataFrame, cells: pl.DataFrame, noun: str
) -> Iterator[tuple[str, str, str]]:
    """Of what `rows` have too few or too many, what they have, and what they should have.

    Each of the expected interventions should have each of the `cells` once.
    """
    rows = rows.select("intervention", *cells.columns)
    present = set(rows["intervention"])
    listed = "of the interventions table"
    if missing := [name for name in expected if name not in present]:
        yield "interventions", f"without {shorten(missing)}", f"all {len(expected)} {listed}"
    if strange := sorted(present - set(expected)):
        yield "interventions", shorten(strange), f"only those {listed}"
    if twice := int(rows.is_duplicated().sum()):
        yield "rows", f"{twice} that occur twice or more", "each row once"
    whole = tables.crossed(pl.DataFrame({"intervention": sorted(present)}), cells)
    for state, one, other in (("lacks", whole, rows), ("holds unknown", rows, whole)):
        found = one.join(other, on=whole.columns, how="anti")
        if found.height:
            names = shorten(sorted(set(found["intervention"])))
            wanted = f"the same {cells.height} under every intervention"
            yield noun, f"{state} {found.height}, in {names}", wanted
