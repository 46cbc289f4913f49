"""How far edits move the residual stream, and whether the losses follow that displacement.

An edit that moves the stream far does harm at any block. A loss of memory is therefore specific to
memory only as far as displacement does not explain it. Two numbers of each block are compared with
the losses: the displacement by each edit (``displacement/MODEL.parquet``), and the change that
attention makes to the unmodified stream, ``1 - cos(x, x + attention(x))``, by which LLM-Drop
chooses the layers to drop.

Shapes: V interventions, N samples.

Source: arXiv 2406.15786 for the second.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.analysis import views
from pipeline.analysis.measured import Grid, ModelTables
from pipeline.analysis.statistics import clustered_means
from pipeline.analysis.survival import Tokens, survival
from pipeline.interventions.interventions import BASELINE

DISPLACEMENT = "displacement"
DISPLACEMENT_FIRST = "displacement_first"
ATTENTION_CHANGE = "attention_change"
SURVIVAL, SURVIVAL_GAP, SURVIVAL_MATCHED = "survival", "survival_gap", "survival_matched"

_Floats = NDArray[np.float64]


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
    for metric, column in ((DISPLACEMENT, "others"), (DISPLACEMENT_FIRST, "first")):
        yield from _means(model, moved, metric, column)
    single = model.interventions.filter(views.ONE_BLOCK).select(
        "intervention", block=pl.col("blocks").list.first()
    )
    changes = model.attention_change.join(single, on="block", maintain_order="left_right")
    yield from _means(model, changes, ATTENTION_CHANGE, "others")
    yield from _survivals(model)


def _means(
    model: ModelTables, rows: pl.DataFrame, metric: str, column: str
) -> Iterator[pl.DataFrame]:
    for split, of_split in rows.group_by("split", maintain_order=True):
        if grid := grid_of(model, of_split, column):
            means = clustered_means(grid.values(column).astype(np.float64), grid.groups)
            yield _frame(grid.names, str(split[0]), metric, len(grid.groups), vars(means))


def grid_of(model: ModelTables, rows: pl.DataFrame, column: str) -> Grid | None:
    """The grid of those interventions that occur; None without rows or with an unknown value."""
    if not rows.height or rows[column].null_count():
        return None
    known = model.samples.select("sample_id", "suffix_group")
    names = rows["intervention"].unique(maintain_order=True).to_list()
    return Grid(rows.join(known, on="sample_id", maintain_order="left"), names)


def _survivals(model: ModelTables) -> Iterator[pl.DataFrame]:
    names = model.names
    parts = {split: _greedy(model, split) for split in ("memorized", "control")}
    compared = survival(parts["memorized"], parts["control"])
    if compared is None:
        return
    n, control = (len(np.unique(each.groups)) for each in parts.values())
    edited = pl.col("intervention") != BASELINE.name  # which keeps all of its own tokens
    for split, metric, count, made in (
        ("memorized", SURVIVAL, n, compared.memorized),
        ("control", SURVIVAL, control, compared.control),
        ("memorized", SURVIVAL_GAP, n, compared.gap),
    ):
        frame = _frame(names, split, metric, count, vars(made))
        yield frame.with_columns(pl.when(edited).then(pl.col("low", "high")))
    matched = {"value": compared.matched}
    yield _frame([BASELINE.name], "memorized", SURVIVAL_MATCHED, n, matched)


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


def _frame(
    names: list[str], split: str, metric: str, n: int, made: Mapping[str, object]
) -> pl.DataFrame:
    same = {"task": views.MEMORIZATION, "split": split, "metric": metric, "n": n}
    return pl.DataFrame({"intervention": names, **same, "low": None, "high": None, **made})
