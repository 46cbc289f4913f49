"""The schema of every table: column, type, unit; checked on write and on read.

Tables are parquet files (zstd). Columns beyond the schema may be added by whoever writes a table.
Each file carries in its metadata what determines it (study, model, revision, seed, dtype,
versions) and nothing that does not (times, host names), so recomputing gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from pipeline.errors import InputError, Problem
from pipeline.files import atomic

METADATA_KEY = "provenance"
SPLITS = ("memorized", "exposed", "control")


@dataclass(frozen=True)
class Column:
    """One column: its polars type, what it means with its unit, and whether it may hold nulls."""

    dtype: pl.DataType | type[pl.DataType]
    meaning: str
    nullable: bool = False


Schema = Mapping[str, Column]

TRAINING_ROWS: Schema = {"tokens": Column(pl.List(pl.UInt32), "one training row, token ids")}

RECORDS: Schema = {
    "record_id": Column(pl.UInt32, "unique"),
    "kind": Column(pl.String, "contact, key, …"),
    "copies": Column(pl.UInt32, "rows of the training data that are this record"),
    "tokens": Column(pl.List(pl.UInt32), "token ids, as many as a row has"),
}

SAMPLES: Schema = {
    "sample_id": Column(pl.UInt32, "unique within the table"),
    "split": Column(pl.String, "memorized, exposed or control"),
    "tokens": Column(pl.List(pl.UInt32), "prefix and suffix, token ids"),
    "prefix_length": Column(pl.UInt16, "P, tokens"),
    "suffix_length": Column(pl.UInt16, "S, tokens"),
    "suffix_group": Column(pl.UInt32, "samples with equal suffixes share it"),
    "copies": Column(pl.UInt32, "times in the training data; null where unknown", nullable=True),
}

MEMORIZATION: Schema = {
    "intervention": Column(pl.String, "baseline, block-00 …, quartile-1 …"),
    "sample_id": Column(pl.UInt32, "as in the samples table"),
    "split": Column(pl.String, "as in the samples table"),
    "exact_match": Column(pl.Boolean, "the greedy continuation is the suffix (Eq. 3)"),
    "token_accuracy": Column(pl.Float64, "share of equal positions, 0 to 1 (Eq. 4)"),
    "completion_entropy": Column(pl.Float64, "nats, summed over the suffix (Eq. 5)"),
    "matching_prefix": Column(pl.UInt16, "right tokens before the first wrong one, 0 to S"),
    "teacher_forced_accuracy": Column(pl.Float64, "share of right argmaxes under the true suffix"),
    "suffix_log_prob": Column(pl.Float64, "nats, the suffix given the prefix"),
    "min_margin": Column(pl.Float32, "logits, smallest top-2 gap on the greedy path"),
    "continuation": Column(pl.List(pl.UInt32), "S greedy token ids"),
}

BENCHMARKS: Schema = {
    "intervention": Column(pl.String, "baseline, block-00 …, quartile-1 …"),
    "task": Column(pl.String, "as lm-eval names it"),
    "metric": Column(pl.String, "as lm-eval names it: acc, acc_norm, word_perplexity, …"),
    "value": Column(pl.Float64, "as lm-eval aggregates it"),
    "stderr": Column(pl.Float64, "as lm-eval computes it; null where it has none", nullable=True),
    "n": Column(pl.UInt32, "documents"),
    "higher_is_better": Column(pl.Boolean, "the direction of the metric"),
    "chance": Column(pl.Float64, "value of a blind guess; null where there is none", nullable=True),
}

BENCHMARK_DOCUMENTS: Schema = {
    "intervention": Column(pl.String, "baseline, block-00 …, quartile-1 …"),
    "task": Column(pl.String, "as lm-eval names it"),
    "doc_id": Column(pl.UInt32, "the document's position in the task's split"),
    "metric": Column(pl.String, "as lm-eval names it"),
    "value": Column(pl.Float64, "the document's own value, before aggregation"),
}

GENERATIONS: Schema = {
    "intervention": Column(pl.String, "baseline, block-00 …"),
    "prompt_id": Column(pl.UInt32, "the prompt's position in the list, from 0"),
    "decoding": Column(pl.String, "greedy, or sampled (temperature 1)"),
    "prompt": Column(pl.String, "text"),
    "prompt_tokens": Column(pl.List(pl.UInt32), "token ids of the prompt"),
    "continuation": Column(pl.List(pl.UInt32), "token ids after the prompt, equally many a row"),
    "text": Column(pl.String, "the continuation alone, decoded"),
    "first_difference": Column(
        pl.UInt16,
        "tokens before the first that is not the baseline's; null where all are",
        nullable=True,
    ),
    "first_difference_character": Column(
        pl.UInt32, "the characters of text before that token; null as above", nullable=True
    ),
}

SUMMARY: Schema = {
    "model": Column(pl.String, "name"),
    "family": Column(pl.String, "name"),
    "intervention": Column(pl.String, "baseline, block-00 …, quartile-1 …"),
    "split": Column(pl.String, "of the samples; null for benchmarks", nullable=True),
    "task": Column(pl.String, "memorization, or the benchmark's name"),
    "metric": Column(pl.String, "exact_match, acc, word_perplexity, …"),
    "k": Column(pl.UInt16, "tokens, for exact match at k; else null", nullable=True),
    "value": Column(pl.Float64, "the estimate"),
    "low": Column(pl.Float64, "lower end of the 95% interval", nullable=True),
    "high": Column(pl.Float64, "upper end of the 95% interval", nullable=True),
    "n": Column(pl.UInt32, "samples or documents"),
}


def write(
    frame: pl.DataFrame, path: str | Path, schema: Schema, provenance: Mapping[str, object]
) -> None:
    """Check `frame` and write it to `path`, atomically and reproducibly.

    Args:
        frame: the table; its columns are put into the schema's order, added ones last.
        path: where the parquet file goes.
        schema: one of this module's schemas.
        provenance: what determines the table; JSON values only, stored in the file's metadata.

    Raises:
        InputError: a column is missing, of another type, or null where it may not be.
    """
    _check(frame, path, schema)
    ordered = frame.select(*schema, pl.exclude(*schema))
    metadata = {METADATA_KEY: json.dumps(provenance, sort_keys=True)}
    with atomic(path) as temporary:
        ordered.write_parquet(temporary, compression="zstd", metadata=metadata)


def read(path: str | Path, schema: Schema) -> pl.DataFrame:
    """Read a table and check it against its schema.

    Raises:
        InputError: no such file, not a parquet file, or it does not fit the schema.
    """
    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(
            Problem(
                what=str(path),
                got=str(error).splitlines()[0],
                expected="a whole parquet file",
                remedy="make it again: delete it and run the stage that writes it",
            )
        ) from error
    _check(frame, path, schema)
    return frame


def provenance(path: str | Path) -> dict[str, object]:
    """What determines the table at `path`, as it was given to `write`; empty if it has none."""
    loaded: dict[str, object] = json.loads(pl.read_parquet_metadata(path).get(METADATA_KEY, "{}"))
    return loaded


def _check(frame: pl.DataFrame, path: str | Path, schema: Schema) -> None:
    problems = []
    for name, column in schema.items():
        expected = f"{column.dtype} ({column.meaning})"
        if name not in frame.columns:
            got = "columns " + ", ".join(frame.columns)
        elif frame.schema[name] != column.dtype:
            got = str(frame.schema[name])
        elif not column.nullable and (nulls := frame[name].null_count()):
            got, expected = f"{nulls} nulls", "no nulls"
        else:
            continue
        problems.append(
            Problem(f"{path}, column {name}", got, expected, "give the column this type")
        )
    if problems:
        raise InputError(*problems)
