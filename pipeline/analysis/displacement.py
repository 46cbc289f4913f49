"""How far edits move the residual stream, and whether the losses follow that displacement.

An edit that moves the stream far does harm at any block. A loss of memory is therefore specific to
memory only as far as displacement does not explain it. Two numbers of each block are compared with
the losses: the displacement by each edit (``displacement/MODEL.parquet``), and the change that
attention makes to the unmodified stream, ``1 - cos(x, x + attention(x))``, by which LLM-Drop
chooses the layers to drop.

Shapes: V interventions, N samples.

Source: arXiv 2406.15786 for the second.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl

from pipeline.analysis import views
from pipeline.analysis.measured import Grid, ModelTables
from pipeline.analysis.rows import Measure, rows_of
from pipeline.analysis.statistics import clustered_means
from pipeline.analysis.survival import Tokens, survival
from pipeline.interventions.interventions import BASELINE

DISPLACEMENT = "displacement"
DISPLACEMENT_FIRST = "displacement_first"
ATTENTION_CHANGE = "attention_change"
SURVIVAL, SURVIVAL_GAP, SURVIVAL_MATCHED = "survival", "survival_gap", "survival_matched"


def estimates(model: ModelTables) -> Iterator[pl.DataFrame]:
    """The rows of the summary about one model's displacement and tokens.

    - displacement, displacement_first, by split: the mean over the samples, at all positions but
      the first, and at the first.
    - attention_change, by split: of the block that an intervention edits alone, by identity.
    - survival, by split: the share of true tokens that stay the greedy choice; of control samples,
      weighted as the memorized tokens of the same baseline log p. survival_gap: memorized minus
      control. survival_matched: the share of memorized tokens that have a match. See `survival`.

    Yields:
        Frames of intervention, task, split, metric, value, low, high, n.
    """
    moved = model.displacement.filter(pl.col("block").is_not_null())
    single = model.interventions.filter(views.ONE_BLOCK).select(
        "intervention", block=pl.col("blocks").list.first()
    )
    changes = model.attention_change.join(single, on="block", maintain_order="left_right")
    for metric, rows, column in (
        (DISPLACEMENT, moved, "others"),
        (DISPLACEMENT_FIRST, moved, "first"),
        (ATTENTION_CHANGE, changes, "others"),
    ):
        for [split], of_split in rows.group_by("split", maintain_order=True):
            if grid := grid_of(model, of_split, column):
                values = grid.values(column).astype(np.float64)
                measure = Measure(metric, values, grid.groups, labels={"split": split})
                yield rows_of(grid.names, measure, clustered_means(values, grid.groups))
    yield from _survivals(model)


def grid_of(model: ModelTables, rows: pl.DataFrame, column: str) -> Grid | None:
    """The grid of those interventions that occur; None without rows or with an unknown value."""
    if not rows.height or rows[column].null_count():
        return None
    known = model.samples.select("sample_id", "suffix_group")
    names = rows["intervention"].unique(maintain_order=True).to_list()
    return Grid(rows.join(known, on="sample_id", maintain_order="left"), names)


def _survivals(model: ModelTables) -> Iterator[pl.DataFrame]:
    tokens = {split: _greedy(model, split) for split in ("memorized", "control")}
    compared = survival(*tokens.values())
    if compared is None:
        return
    n = {split: len(np.unique(each.groups)) for split, each in tokens.items()}
    matched = {"intervention": [BASELINE.name], "value": compared.matched}
    edited = pl.col("intervention") != BASELINE.name  # which keeps all of its own tokens
    for split, metric, made in (
        ("memorized", SURVIVAL, vars(compared.memorized)),
        ("control", SURVIVAL, vars(compared.control)),
        ("memorized", SURVIVAL_GAP, vars(compared.gap)),
        ("memorized", SURVIVAL_MATCHED, {**matched, "low": None, "high": None}),
    ):
        told = {"task": views.MEMORIZATION, "split": split, "metric": metric, "n": n[split]}
        frame = pl.DataFrame({"intervention": model.names, **told, **made})
        yield frame.with_columns(pl.when(edited).then(pl.col("low", "high")))


def _greedy(model: ModelTables, split: str) -> Tokens:
    """The true tokens of a split that the baseline chooses greedily."""
    of_sample = model.samples.select("sample_id", "suffix_group")
    rows = model.tokens.filter(split=split).with_columns(stays=pl.col("greedy") == pl.col("token"))
    baseline = rows.filter(intervention=BASELINE.name).join(
        of_sample, on="sample_id", maintain_order="left"
    )
    right = baseline["stays"].to_numpy()
    stays = rows["stays"].to_numpy().reshape(len(model.names), -1)
    return Tokens(
        baseline["log_prob"].cast(pl.Float64).to_numpy()[right],
        baseline["suffix_group"].to_numpy()[right],
        stays[:, right].T,
    )
