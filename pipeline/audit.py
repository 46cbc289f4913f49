"""Audit one checkpoint on one's own samples, without a study: the sweep, its table, a report.

It runs the same stages as a study does, one after the other in one process, and leaves out what
needs a study: benchmarks, prompts, other models.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from transformers import PreTrainedTokenizerBase

from pipeline import tables
from pipeline.checkpoints.hub import FILES, describe, fetch
from pipeline.checkpoints.manifest import Manifest, read_manifest, sha256, write_manifest
from pipeline.errors import InputError, Problem, shorten
from pipeline.files import atomic
from pipeline.hub import Snapshot
from pipeline.report.aggregate import aggregate
from pipeline.report.evidence import EVIDENCE, evidence
from pipeline.report.figures import write_figures
from pipeline.report.measured import ModelTables, with_second_half
from pipeline.report.page import write_page
from pipeline.samples.frame import first_of, samples_frame

FAMILY = "audit"
FLOOR = 0.9
"""Exact match of the baseline on memorized samples, below which a warning is printed."""

NAME_LENGTH = 63
MOST_THREADS = 4
"""Of each CPU: beyond that a typing mistake is likelier than a reason."""

MOST = 2**32 - 1
"""The largest token id, and the largest number of copies, that a samples table holds."""

TYPES: Mapping[str, pl.DataType | type[pl.DataType]] = {
    "tokens": pl.List(pl.Int64),
    "text": pl.String,
    "split": pl.String,
    "copies": pl.UInt32,
}
"""What the columns of a user's file are cast to: others write texts as categories, or as bytes."""

DERIVED = (
    *("summary.parquet", "evidence.parquet"),
    *("memorization", "interventions", "cost", "samples"),
)
PAGE = ("index.html", "provenance.json", "tables", "figures")
"""What an audit writes below data/ and reports/, the last first; but the manifest."""

BOOTSTRAP_SEED = 0


def require_name(name: str) -> None:
    """Refuse a name that would not do as that of a folder and of a file.

    Raises:
        InputError: it is too long, or holds more than letters, digits, dots, hyphens and
            underscores.
    """
    if len(name) > NAME_LENGTH:
        raise InputError(
            Problem("--name", f"{len(name)} characters", f"at most {NAME_LENGTH}", "shorten it")
        )
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII):
        raise InputError(
            Problem(
                "--name",
                shorten(name),
                "letters, digits, dots, hyphens, underscores; a letter or digit first",
                "name it otherwise",
            )
        )


def require_threads(threads: int) -> None:
    """Refuse more CPU threads than this machine can make any use of.

    Raises:
        InputError: more than four times its CPUs.
    """
    most = MOST_THREADS * (os.cpu_count() or 1)
    if threads > most:
        raise InputError(
            Problem(
                "--threads",
                str(threads),
                f"1 to {most}, {MOST_THREADS} for each CPU of this machine",
                "lower it; one for each core is fastest",
            )
        )


def require_own(model: str, folder: Path, data: Path, reports: Path) -> None:
    """Refuse a name under which another model was audited, before anything is fetched or read.

    What lies there may have taken hours, and nobody said that it may go. The same model's is
    replaced: its path or its commit tells, so weights that were mended in place are the same.

    Args:
        model: as for `checkpoint`.
        folder: of the checkpoint's manifest.
        data: where the audit of this name has its tables.
        reports: where it has its page.

    Raises:
        InputError: the manifest in `folder` is of another model or commit, or is none; or `model`
            is neither a folder nor a commit.
    """
    origin = _origin(model)
    if not folder.exists():
        return
    try:
        found = dict(read_manifest(folder).origin)
    except InputError:  # whose remedy is that of a study
        found = {"manifest": "unreadable"}
    if found != origin:
        raise InputError(
            Problem(
                f"--name: {data}",
                "the audit of another model: " + ", ".join(f"{k} {v}" for k, v in found.items()),
                "a name of its own for " + ", ".join(f"{k} {v}" for k, v in origin.items()),
                f"give another --name, or delete {data} and {reports}",
            )
        )


def clear(data: Path, reports: Path) -> None:
    """Remove what an earlier audit left, so that a failing one leaves nothing beside what is new.

    The page goes first and the samples last: a kill in between leaves nothing without its source.
    """
    for path in (*(reports / each for each in PAGE), *(data / each for each in DERIVED)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def checkpoint(model: str, name: str, folder: Path) -> Manifest:
    """Describe the model to be audited, and write its manifest.

    Args:
        model: a folder with config, safetensors and tokenizer, or REPO@COMMIT of the hub.
        name: how tables and figures call it.
        folder: gets the manifest.

    Raises:
        InputError: there is no such folder or repository, no tokenizer beside the weights, or what
            `checkpoints.hub.fetch` raises.
    """
    origin = _origin(model)
    if "folder" in origin:
        source = Path(model)
        files = sorted(
            path.name for path in source.iterdir() if any(fnmatchcase(path.name, f) for f in FILES)
        )
        found = Snapshot(source.resolve(), {each: sha256(source / each) for each in files})
        described, tokens = describe(found, str(source))
        _require_tokenizer(files, str(source))
        with atomic(folder, directory=True) as temporary:
            return write_manifest(
                temporary,
                described,
                name=name,
                family=FAMILY,
                tokens=tokens,
                seed=None,
                origin=origin,
                files=found.files,
            )
    with atomic(folder, directory=True) as temporary:
        manifest = fetch(temporary, **origin, name=name, family=FAMILY, billions=None)
        _require_tokenizer(manifest.files, model)
        return manifest


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
            the first P + S tokens are taken, of ``tokens`` if it has both; and, if it likes,
            ``split`` (memorized, exposed, control; memorized without), ``copies``, and, equal in
            all rows, ``prefix_length`` and ``suffix_length``.
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
    casts = {name: dtype for name, dtype in TYPES.items() if name in frame.columns}
    frame = frame.cast(casts)  # type: ignore[arg-type]
    lengths = {
        "prefix_length": _length(frame, "prefix_length", prefix_length, file),
        "suffix_length": _length(frame, "suffix_length", suffix_length, file),
    }
    if "tokens" not in frame.columns:
        ids = tokenizer(frame["text"].to_list(), add_special_tokens=False, verbose=False)
        frame = frame.with_columns(pl.Series("tokens", ids["input_ids"], pl.List(pl.Int64)))
    elif "text" in frame.columns:
        print("the samples have both `tokens` and `text`: `tokens` is used", flush=True)
    no_id = pl.element().is_null() | ~pl.element().is_between(0, MOST)
    if len(odd := frame.filter(pl.col("tokens").list.eval(no_id).list.any())):
        raise InputError(
            Problem(
                first_of(f"{file}: row {odd['row'][0]}", len(odd)),
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
                first_of(f"{file}: row {short['row'][0]}", len(short)),
                f"{short['tokens'].list.len()[0]} tokens",
                f"{total} or more: {lengths['prefix_length']} of prefix and "
                f"{lengths['suffix_length']} of suffix",
                "lower --prefix-length or --suffix-length, or leave such samples out: --skip-short",
            )
        )
    frame = frame.filter(pl.col("tokens").list.len() >= total)
    if frame.is_empty():
        raise InputError(Problem(str(file), "no sample", "one or more", "name another file"))
    told = {name: frame[name].to_list() for name in ("split", "copies") if name in frame.columns}
    made = samples_frame(
        np.array(frame["tokens"].list.head(total).to_list()),
        lengths["prefix_length"],
        told.get("split", ["memorized"] * len(frame)),
        told.get("copies", [None] * len(frame)),
    )
    return made.with_columns(frame["row"])


def warn(baseline: Mapping[str, float]) -> None:
    """Say that the baseline surely does not reach the floor, with what to do about it here.

    Args:
        baseline: as `measure.memorization.require_baseline` returns it.
    """
    if baseline and baseline["high"] < FLOOR:
        problem = Problem(
            f"the baseline on {baseline['n']} of the memorized samples",
            f"exact match {baseline['exact_match']:.3f}",
            f"{FLOOR:g} or more",
            "none is needed where not all are memorized (a column `split` says which are); else "
            "check that samples, tokenizer, revision and --dtype belong together",
        )
        print(f"warning: {problem}", flush=True)


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
    table = tables.read(data / "samples" / f"{FAMILY}.parquet", tables.SAMPLES)
    measured = ModelTables(
        manifest.name,
        FAMILY,
        manifest.n_blocks,
        tables.read(data / "interventions" / f"{manifest.name}.parquet", tables.INTERVENTIONS),
        table,
        with_second_half(
            tables.read(data / "memorization" / f"{manifest.name}.parquet", tables.MEMORIZATION),
            table,
        ),
        None,
        pl.DataFrame(),
        manifest.parameters,
    )
    path = data / "summary.parquet"
    tables.write(aggregate([measured], BOOTSTRAP_SEED), path, tables.SUMMARY, dict(provenance))
    tables.write(evidence([measured]), data / EVIDENCE, tables.EVIDENCE, dict(provenance))
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
    for name, dtype in TYPES.items():
        if name not in frame.columns or name == "copies":
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
        if cast.null_count():
            problems.append(
                Problem(f"{file}: {name}", f"{cast.null_count()} nulls", "none", "leave them out")
            )
        if name == "split" and (odd := set(cast.drop_nulls()) - set(tables.SPLITS)):
            problems.append(
                Problem(
                    f"{file}: split", shorten(sorted(odd)), ", ".join(tables.SPLITS), "use these"
                )
            )
    if "copies" in frame.columns and (got := _no_copies(frame)):
        expected = f"whole numbers, 0 to {MOST}; null where unknown"
        problems.append(Problem(f"{file}: copies", got, expected, "mend or drop the column"))
    if problems:
        raise InputError(*problems)


def _no_copies(frame: pl.DataFrame) -> str:
    """What of the column `copies` is no number of copies; nothing if all is.

    Whole floats are taken: pandas stores a column of numbers and nulls so.
    """
    dtype, copies = frame.schema["copies"], pl.col("copies")
    if dtype == pl.Null:
        return ""
    if not dtype.is_numeric():
        return str(dtype)
    odd = frame.filter(~(copies.is_between(0, MOST) & (copies.floor() == copies)))
    return first_of(f"{odd['copies'][0]} in row {odd['row'][0]}", len(odd)) if len(odd) else ""


def _origin(model: str) -> dict[str, str]:
    """Where a model comes from, as its manifest says: a folder, or repo and commit of the hub."""
    if Path(model).is_dir():
        return {"folder": str(Path(model).resolve())}
    pinned = re.fullmatch(r"(?P<repo>[\w.-]+/[\w.-]+)@(?P<commit>[0-9a-f]{40})", model)
    if pinned is None:
        raise InputError(
            Problem(
                "--model",
                shorten(model),
                "a folder that is there, or REPO@COMMIT with the commit's 40 hexadecimal digits",
                "look the commit up on the hub: a branch or a tag could move",
            )
        )
    return pinned.groupdict()


def _require_tokenizer(files: Collection[str], where: str) -> None:
    """Refuse a checkpoint for which transformers makes up a tokenizer of next to no tokens."""
    if "tokenizer.json" not in files and not {"vocab.json", "merges.txt"} <= set(files):
        raise InputError(
            Problem(
                where,
                "no tokenizer; " + ", ".join(sorted(files)),
                "tokenizer.json, or vocab.json and merges.txt, beside the weights",
                "save it there: AutoTokenizer.from_pretrained(…).save_pretrained(FOLDER)",
            )
        )


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
