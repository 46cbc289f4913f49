"""Audit one checkpoint on one's own samples, without a study: the sweep, its table, a report.

It runs the same stages as a study does, one after the other in one process, and leaves out what
needs a study: benchmarks, prompts, other models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from transformers import PreTrainedTokenizerBase

from pipeline import tables
from pipeline.checkpoints.hub import FILES, describe, fetch
from pipeline.checkpoints.manifest import Manifest, sha256, write_manifest
from pipeline.errors import InputError, Problem, shorten
from pipeline.files import atomic
from pipeline.hub import Snapshot
from pipeline.report.aggregate import aggregate
from pipeline.report.figures import write_figures
from pipeline.report.measured import ModelTables
from pipeline.report.page import write_page
from pipeline.samples.frame import samples_frame

FAMILY = "audit"
FLOOR = 0.9
"""Exact match of the baseline on memorized samples, below which a warning is printed."""

BOOTSTRAP_SEED = 0


def require_name(name: str) -> None:
    """Refuse a name that would not do as that of a folder and of a file.

    Raises:
        InputError: it holds more than letters, digits, dots, hyphens and underscores.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,62}", name, re.ASCII):
        raise InputError(
            Problem(
                "--name",
                shorten(name),
                "letters, digits, dots, hyphens, underscores; a letter or digit first",
                "name it otherwise",
            )
        )


def checkpoint(model: str, name: str, folder: Path) -> Manifest:
    """Describe the model to be audited, and write its manifest.

    Args:
        model: a folder with config, safetensors and tokenizer, or REPO@COMMIT of the hub.
        name: how tables and figures call it.
        folder: gets the manifest.

    Raises:
        InputError: there is no such folder or repository, or what `checkpoints.hub.fetch` raises.
    """
    source = Path(model)
    if source.is_dir():
        files = sorted(
            path.name for path in source.iterdir() if any(fnmatchcase(path.name, f) for f in FILES)
        )
        found = Snapshot(source.resolve(), {each: sha256(source / each) for each in files})
        described, tokens = describe(found, str(source))
        with atomic(folder, directory=True) as temporary:
            return write_manifest(
                temporary,
                described,
                name=name,
                family=FAMILY,
                tokens=tokens,
                seed=None,
                origin={"folder": str(found.folder)},
                files=found.files,
            )
    pinned = re.fullmatch(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})", model)
    if pinned is None:
        raise InputError(
            Problem(
                "--model",
                shorten(model),
                "a folder that is there, or REPO@COMMIT with the commit's 40 hexadecimal digits",
                "look the commit up on the hub: a branch or a tag could move",
            )
        )
    return fetch(folder, pinned[1], pinned[2], name=name, family=FAMILY, billions=None)


def samples(
    file: Path,
    tokenizer: PreTrainedTokenizerBase,
    prefix_length: int | None,
    suffix_length: int | None,
    *,
    skip_short: bool,
) -> pl.DataFrame:
    """The samples table from a user's file.

    Args:
        file: parquet, a row a sample, with a column ``tokens`` (lists of ids) or ``text``, of which
            the first P + S tokens are taken; and, if it likes, ``split`` (memorized, exposed,
            control; memorized without), ``copies``, and, equal in all rows, ``prefix_length`` and
            ``suffix_length``.
        tokenizer: the model's own; cuts the text. No special tokens are added.
        prefix_length: P, tokens; None: as the file says.
        suffix_length: S, tokens; None: as the file says.
        skip_short: leave out samples of fewer than P + S tokens, instead of refusing them.

    Returns:
        As `tables.SAMPLES`; ``sample_id`` counts the samples that were taken, and the column
        ``row`` (u32) has their rows in the file.

    Raises:
        InputError: the file cannot be read, a column is missing or of another type, a length is
            not given, a sample is too short, or none is left.
    """
    frame = tables.read(file, {}, remedy="name another file").drop("row", strict=False)
    frame = frame.with_row_index("row")
    _require_columns(frame, file)
    lengths = {
        "prefix_length": _length(frame, "prefix_length", prefix_length, file),
        "suffix_length": _length(frame, "suffix_length", suffix_length, file),
    }
    if "tokens" not in frame.columns:
        ids = tokenizer(frame["text"].to_list(), add_special_tokens=False, verbose=False)
        frame = frame.with_columns(pl.Series("tokens", ids["input_ids"], pl.List(pl.Int64)))
    frame = frame.with_columns(pl.col("tokens").cast(pl.List(pl.Int64)))
    no_id = pl.element().is_null() | ~pl.element().is_between(0, 2**32 - 1)
    if len(odd := frame.filter(pl.col("tokens").list.eval(no_id).list.any())):
        raise InputError(
            Problem(
                f"{file}: row {odd['row'][0]} and {len(odd) - 1} more",
                shorten(odd["tokens"][0].to_list()),
                "token ids, 0 or more",
                "make them with the model's own tokenizer",
            )
        )
    total = sum(lengths.values())
    short = frame.filter(pl.col("tokens").list.len() < total)
    if len(short) and not skip_short:
        raise InputError(
            Problem(
                f"{file}: row {short['row'][0]} and {len(short) - 1} more",
                f"{short['tokens'].list.len()[0]} tokens",
                f"{total} or more: {lengths['prefix_length']} of prefix and "
                f"{lengths['suffix_length']} of suffix",
                "lower --prefix-length or --suffix-length, or leave such samples out: --skip-short",
            )
        )
    frame = frame.filter(pl.col("tokens").list.len() >= total)
    if frame.is_empty():
        raise InputError(Problem(str(file), "no sample", "one or more", "name another file"))
    nothing = [None] * len(frame)
    made = samples_frame(
        np.array(frame["tokens"].list.head(total).to_list()),
        lengths["prefix_length"],
        frame["split"].to_list() if "split" in frame.columns else ["memorized"] * len(frame),
        frame["copies"].to_list() if "copies" in frame.columns else nothing,
    )
    return made.with_columns(frame["row"])


def report(
    name: str,
    manifest: Manifest,
    data: Path,
    reports: Path,
    provenance: Mapping[str, Any],
) -> None:
    """Summarize the audit's tables, draw its figures, write its page.

    Args:
        name: of the audit.
        manifest: of the model.
        data: holds samples/, checkpoints/ and memorization/, as a study's folder does.
        reports: gets index.html, figures/ and tables/.
        provenance: what determines the result, for the page.
    """
    measured = ModelTables(
        manifest.name,
        FAMILY,
        manifest.n_blocks,
        tables.read(data / "samples" / f"{FAMILY}.parquet", tables.SAMPLES),
        tables.read(data / "memorization" / f"{manifest.name}.parquet", tables.MEMORIZATION),
        None,
        pl.DataFrame(),
        manifest.parameters,
    )
    path = data / "summary.parquet"
    tables.write(aggregate([measured], BOOTSTRAP_SEED), path, tables.SUMMARY, dict(provenance))
    write_figures(path, reports / "figures")
    write_page(
        name,
        [(manifest.name, FAMILY)],
        data,
        data / "tasks",
        reports / "figures",
        reports / "index.html",
        reports / "tables",
        provenance,
    )


def _require_columns(frame: pl.DataFrame, file: Path) -> None:
    """Refuse a table without tokens or text, or with columns of other types, all at once."""
    castable: dict[str, pl.DataType | type[pl.DataType]] = {
        "tokens": pl.List(pl.Int64),
        "text": pl.String,
        "split": pl.String,
        "copies": pl.UInt32,
    }
    problems = []
    if not {"tokens", "text"} & set(frame.columns):
        problems.append(
            Problem(
                str(file),
                "columns " + ", ".join(frame.columns),
                "a column `tokens` (lists of token ids) or `text`",
                "name the column so",
            )
        )
    for name, dtype in castable.items():
        if name not in frame.columns:
            continue
        try:
            cast = frame[name].cast(dtype)
        except pl.exceptions.PolarsError:
            got = str(frame.schema[name])
            problems.append(Problem(f"{file}: {name}", got, str(dtype), "convert the column"))
            continue
        if name == "tokens" and not frame.schema[name].inner.is_integer():  # type: ignore[attr-defined]
            got = str(frame.schema[name])
            problems.append(Problem(f"{file}: {name}", got, "lists of integers", "convert it"))
        if name != "copies" and cast.null_count():
            problems.append(
                Problem(f"{file}: {name}", f"{cast.null_count()} nulls", "none", "leave them out")
            )
        if name == "split" and (odd := set(cast.drop_nulls()) - set(tables.SPLITS)):
            problems.append(
                Problem(
                    f"{file}: split", shorten(sorted(odd)), ", ".join(tables.SPLITS), "use these"
                )
            )
    if problems:
        raise InputError(*problems)


def _length(frame: pl.DataFrame, column: str, given: int | None, file: Path) -> int:
    if given is not None:
        return given
    found = frame[column].unique().to_list() if column in frame.columns else []
    if len(found) == 1 and isinstance(found[0], int) and found[0] > 0:
        return found[0]
    raise InputError(
        Problem(
            f"{column} of {file}",
            f"the values {shorten(found)}" if found else "no such column",
            "one length in tokens",
            f"give --{column.replace('_', '-')}",
        )
    )
