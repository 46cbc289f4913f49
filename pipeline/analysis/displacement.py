"""How far edits move the residual stream, and whether the losses follow that displacement.

An edit that moves the stream far does harm at any block. A loss of memory is therefore specific to
memory only as far as displacement does not explain it. Two numbers of each block are compared with
the losses: the displacement by each edit (``displacement/MODEL.parquet``), and the change that
attention makes to the unmodified stream, ``1 - cos(x, x + attention(x))``, by which LLM-Drop
chooses the layers to drop.

Shapes: V interventions, N samples.

Source: arXiv 2406.15786 for the second.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis import views
from pipeline.analysis.measured import ModelTables
from pipeline.analysis.statistics import (
    clustered_errors,
    clustered_means,
    effective_number,
)
from pipeline.analysis.survival import Tokens, survival
from pipeline.interventions.interventions import BASELINE

DISPLACEMENT = "displacement"
DISPLACEMENT_FIRST = "displacement_first"
ATTENTION_CHANGE = "attention_change"
SURVIVAL, SURVIVAL_GAP, SURVIVAL_MATCHED = "survival", "survival_gap", "survival_matched"

_Floats = NDArray[np.float64]


def estimates(model: ModelTables, seed: int) -> Iterator[pl.DataFrame]:
    """The rows of the summary about one model's displacement and tokens.

    - displacement, displacement_first, by split: the mean over the samples, at all positions but
      the first, and at the first.
    - attention_change, by split: of the block that an intervention edits alone, by identity.
    - survival, by split: the share of true tokens that stay the greedy choice; of control samples,
      weighted as the memorized tokens of the same baseline log p. survival_gap: memorized minus
      control. survival_matched: the share of memorized tokens that have a match. See `survival`.

    Args:
        model: complete, see `measured.grid_problems`.
        seed: of the bootstrap.

    Yields:
        Frames of intervention, split, metric, value, low, high, n.
    """
    moved = model.displacement.filter(pl.col("block").is_not_null())
    for metric, column in ((DISPLACEMENT, "others"), (DISPLACEMENT_FIRST, "first")):
        yield from _means(model, moved, metric, column, seed)
    single = model.interventions.filter(views.ONE_BLOCK).select(
        "intervention", block=pl.col("blocks").list.first()
    )
    changes = model.attention_change.join(single, on="block", maintain_order="left_right")
    yield from _means(model, changes, ATTENTION_CHANGE, "others", seed)
    yield from _survivals(model, seed)


def _means(
    model: ModelTables, rows: pl.DataFrame, metric: str, column: str, seed: int
) -> Iterator[pl.DataFrame]:
    for split, of_split in rows.group_by("split", maintain_order=True):
        grid = _matrix(model, of_split, column)
        if grid is not None:
            names, values, groups = grid
            means = clustered_means(values, groups, seed)
            yield _frame(names, str(split[0]), metric, len(groups), means)


def _matrix(
    model: ModelTables, rows: pl.DataFrame, column: str
) -> tuple[list[str], _Floats, NDArray[np.integer]] | None:
    """Interventions, values (N, V) and the samples' groups (N,); None where some are unknown."""
    if not rows.height or rows[column].null_count():
        return None
    names = rows["intervention"].unique(maintain_order=True).to_list()
    values = rows[column].cast(pl.Float64).to_numpy().reshape(len(names), -1).T
    first = rows.filter(intervention=names[0]).select("sample_id")
    known = model.samples.select("sample_id", "suffix_group")
    groups = first.join(known, on="sample_id", maintain_order="left")["suffix_group"]
    return names, values, groups.to_numpy()


def _survivals(model: ModelTables, seed: int) -> Iterator[pl.DataFrame]:
    names = model.interventions["intervention"].to_list()
    parts = {split: _greedy(model, split, names) for split in ("memorized", "control")}
    compared = survival(parts["memorized"], parts["control"], seed)
    if compared is None:
        return
    n = {split: len(np.unique(each.groups)) for split, each in parts.items()}
    yield _frame(names, "memorized", SURVIVAL, n["memorized"], compared.memorized)
    yield _frame(names, "control", SURVIVAL, n["control"], compared.control)
    yield _frame(names, "memorized", SURVIVAL_GAP, n["memorized"], compared.gap)
    matched = _frame([BASELINE.name], "memorized", SURVIVAL_MATCHED, n["memorized"])
    yield matched.with_columns(value=pl.lit(compared.matched))


def _greedy(model: ModelTables, split: str, names: list[str]) -> Tokens:
    """The true tokens of a split that the baseline chooses greedily."""
    rows = model.tokens.filter(split=split).with_columns(stays=pl.col("greedy") == pl.col("token"))
    own = rows.filter(intervention=BASELINE.name).join(
        model.samples.select("sample_id", "suffix_group"), on="sample_id", maintain_order="left"
    )
    right = own["stays"].to_numpy()
    stays = rows["stays"].to_numpy().reshape(len(names), -1)
    return Tokens(
        own["log_prob"].cast(pl.Float64).to_numpy()[right],
        own["suffix_group"].to_numpy()[right],
        stays[:, right].T,
    )


def _frame(names: list[str], split: str, metric: str, n: int, made: object = None) -> pl.DataFrame:
    ends = {key: getattr(made, key, None) for key in ("value", "low", "high")}
    return pl.DataFrame({"intervention": names, **ends}).with_columns(
        split=pl.lit(split), metric=pl.lit(metric), n=pl.lit(n)
    )


def evidence_rows(model: ModelTables) -> Iterator[pl.DataFrame]:
    """Displacement and attention_change under the identity edit of each block.

    They are rows of the evidence of kind ``block``; attention_change is of control samples, which
    are ordinary text.
    """
    blocks = model.interventions.filter(views.ONE_BLOCK).select(
        "intervention", block=pl.col("blocks").list.first()
    )
    blocks = blocks.sort("block")
    moved = model.displacement.filter(split="memorized").drop("block")
    ordinary = model.attention_change.filter(split="control")
    for quantity, rows in (
        (DISPLACEMENT, blocks.join(moved, on="intervention", maintain_order="left")),
        (ATTENTION_CHANGE, blocks.join(ordinary, on="block", maintain_order="left")),
    ):
        grid = _matrix(model, rows.drop_nulls("sample_id"), "others")
        if grid is None or len(grid[1]) < 2:
            continue
        names, values, groups = grid
        mean, error = clustered_errors(values, groups)
        yield (
            pl.DataFrame({"over": names, "value": mean, "stderr": error})
            .join(blocks.select("block", over="intervention"), on="over", maintain_order="left")
            .with_columns(
                kind=pl.lit("block"),
                metric=pl.lit(quantity),
                quantity=pl.lit(quantity),
                n=pl.lit(len(groups)),
                n_effective=pl.lit(effective_number(groups)),
                least=pl.lit(0.0),
            )
        )
