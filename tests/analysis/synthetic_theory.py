"""Theory's tables of models that were never run, with numbers simple enough to check by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from pipeline.samples.schemas import read_samples
from pipeline.theory import columns
from pipeline.workflow import tables

PRINTED, COARSE, CORRECTED = 10.0, 5.0, 2.0
"""The bounds of both theorems, as multiples of the change."""


def write(
    data: Path,
    models: Mapping[str, tuple[str, int]],
    *,
    rising: bool = False,
    violated: Sequence[int] = (),
) -> None:
    """Write every table of theory below `data`, which has the samples' tables.

    The change of the logits falls from block to block, unless `rising`; the change right after a
    block does the opposite, so that the bounds, multiples of it, do too. In the blocks `violated`
    the first sample exceeds the bounds as printed.
    """
    for name, (family, n_blocks) in models.items():
        samples = read_samples(data, family)
        chosen = pl.concat(
            samples.filter(split=split).head(12) for split in ("memorized", "control")
        ).select("sample_id", "split")
        folder = data / "divergence"
        _write(triangle(chosen, n_blocks, rising), folder / name, columns.DIVERGENCE_TRIANGLE)
        made = bounds(chosen, n_blocks, rising, violated)
        _write(made, folder / f"{name}.bounds", columns.DIVERGENCE_BOUNDS)
    for experiment, frame in experiments().items():
        schema = getattr(columns, experiment.upper())
        _write(frame, data / "theory" / experiment, schema)


def triangle(samples: pl.DataFrame, n_blocks: int, rising: bool) -> pl.DataFrame:
    """Every change one and a half times as large for the second sample as for the first."""
    rows = []
    for i, (sample, split) in enumerate(samples.rows()):
        for block in range(n_blocks):
            for after in range(block, n_blocks + 1):
                logits = after == n_blocks
                change = _size(block, n_blocks, logits == rising) * (1 + 0.5 * (i % 2))
                kl = change**2 if logits else None
                rows.append((sample, split, block, after, change, change / 4, kl))
    return _frame(rows, columns.DIVERGENCE_TRIANGLE)


def bounds(
    samples: pl.DataFrame, n_blocks: int, rising: bool, violated: Sequence[int]
) -> pl.DataFrame:
    """Each bound a multiple of the change; one block later the change is twice as large."""
    rows = []
    for i, (sample, split) in enumerate(samples.rows()):
        for block in range(n_blocks):
            change = _size(block, n_blocks, not rising) * (1 + 0.5 * (i % 2))
            over = i == 0 and block in violated
            last = block == n_blocks - 1
            row: dict[str, object] = dict.fromkeys(columns.DIVERGENCE_BOUNDS, 1.0)
            row |= {"sample_id": sample, "split": split, "block": block, "change": change}
            factors = {"printed": PRINTED, "bound_a1": COARSE, "bound": CORRECTED}
            row |= {name: change * factor for name, factor in factors.items()}
            row |= {"next_change": 2 * change, "next_bound_coarse": 2 * change * COARSE}
            row |= {"next_printed": 2 * change * PRINTED, "next_bound": 2 * change * CORRECTED}
            row |= {name: False for name in row if name.endswith("violated")}
            row |= {"printed_violated": over, "next_printed_violated": over}
            row |= {name: None for name in row if name.startswith("next_") and last}
            rows.append(tuple(row.values()))
    return _frame(rows, columns.DIVERGENCE_BOUNDS)


def experiments() -> dict[str, pl.DataFrame]:
    """One small table of each kind, three seeds each where a seed matters."""
    associative = [
        ("closed", seed, width, None, f"capacity_{share}", pairs * 2.0**seed, float(width), None)
        for width in (8, 16)
        for share, pairs in ((50, width * 1.5), (99, width * 0.2))
        for seed in range(2)
    ]
    associative += [("closed", 0, 8, 20, "accuracy", 0.5, None, 0.4)]
    low_rank = [
        (experiment, "even", seed, 30, 300, rank, statement, "divergence", 1.0 / rank, bound / rank)
        for experiment in ("ls", "wls")
        for rank in (2, 4)
        for seed in range(2)
        for statement, bound in (
            ("printed_conditional", 10.0 if experiment == "ls" else 0.5),
            ("printed_joint", 0.1),
            ("variance", 1.5),
            ("range", 2.0),
            ("spectral", 4.0),
        )
    ]
    lookup = [
        ("lookup", 0, 50, width, 0.1, 0.3, statement, "divergence", 1.0, bound)
        for width in (16, 640)
        for statement, bound in (
            ("printed", None),
            ("entropy_sign", 20.0 if width == 640 else None),
            ("corrected", 2.0),
        )
    ]
    constructive = [
        (experiment, 0, 20, 6, 1, 6, sequences, None, "accuracy", value, bound)
        for experiment, claimed in (("given", 6), ("chosen", 12))
        for sequences, value, bound in ((claimed, 1.0, 1.0), (claimed + 1, 0.9, None))
    ]
    constructive += [("distribution", 0, 20, 6, 4, 6, 9, 0.1, "divergence_gap", 0.5, 2.0)]
    return {
        "associative": _frame(associative, columns.ASSOCIATIVE),
        "low_rank": _frame(low_rank, columns.LOW_RANK),
        "lookup": _frame(lookup, columns.LOOKUP),
        "constructive": _frame(constructive, columns.CONSTRUCTIVE),
        "attention_only": attention_only(),
    }


def attention_only(mlp_bypassed: float = 0.08, power: float = 1.0) -> pl.DataFrame:
    """Trained models; where heads have own projections, what is stored grows with d_h**power."""
    rows: list[tuple[object, ...]] = []

    def add(
        experiment: str, kind: str, shape: Sequence[int], accuracy: float, bypassed: float = 0.06
    ) -> None:
        bound = accuracy / 2 if kind == "attention-only" else None
        for seed, off in enumerate((-0.01, 0.0, 0.01)):
            known = (experiment, kind, seed, 50, *shape)
            rows.append((*known, "accuracy", accuracy + off, bound))
            rows.append((*known, "bypassed_accuracy", bypassed, 0.1))

    for heads in (1, 4):
        add("heads", "attention-only", (10, heads, 10, 0, 400 * heads), 0.2 * heads)
    for width in (1, 2, 4):
        shape = (10, 20, width, 0, 800 * width)
        add("head_width", "attention-only", shape, 0.02 + 0.05 * width**power)
        add("head_width", "shared-bottleneck", shape, 0.02 + 0.03 * width**2)
    add("width", "attention-only", (6, 20, 10, 0, 4800), 0.5)
    add("square", "attention-only", (4, 8, 4, 0, 512), 0.3)
    add("narrow", "attention-only", (2, 8, 2, 0, 128), 0.4)
    add("parameters", "mlp", (10, 1, 10, 57, 1600), 0.9)
    add("routing", "attention-only", (10, 4, 10, 0, 1600), 0.98, 0.06)
    add("routing", "frozen-attention", (10, 1, 10, 57, 1600), 0.96, mlp_bypassed)
    add("routing", "frozen-attention", (10, 1, 10, 0, 400), 0.2, 0.05)
    return _frame(rows, columns.ATTENTION_ONLY)


def _size(block: int, n_blocks: int, rising: bool) -> float:
    return 1.0 + 0.1 * (block if rising else n_blocks - block)


def _frame(rows: Sequence[tuple[object, ...]], schema: tables.Schema) -> pl.DataFrame:
    types = tables.dtypes(schema)
    return pl.DataFrame(rows, schema=types, orient="row")


def _write(frame: pl.DataFrame, path: Path, schema: tables.Schema) -> None:
    tables.write(frame, path.with_name(f"{path.name}.parquet"), schema, {})
