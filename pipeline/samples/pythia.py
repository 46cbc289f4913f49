"""The Pythia family's samples: sequences that every one of several Pythia models has memorized.

The dataset lists, for each model, the sequences of its training data whose tokens 32 to 63 the
model completes after tokens 0 to 31. The paper takes those "memorized by all model scales": the
intersection over the models, of which 15,000 are drawn here by a seeded hash of their index.

Source: huggingface.co/datasets/EleutherAI/pythia-memorized-evals; the paper, section 4.1. Which
15,000 the paper drew is not known.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.samples.draw import draw
from pipeline.samples.frame import first_of
from pipeline.samples.schema import PASSAGE_LENGTHS
from pipeline.workflow.errors import InputError, Problem, bad_input
from pipeline.workflow.hub import listing, snapshot

COLUMNS = {"index", "tokens"}

OTHER = "name the dataset and commit that the study was written for"
"""What helps where the content is another than expected."""


def fetch_splits(repo: str, commit: str, splits: Sequence[str]) -> dict[str, list[Path]]:
    """Split -> its files, fetched and verified.

    Names collide (``duped.12b`` begins ``duped.12b.23000``, and ``deduped.12b`` ends with it), so
    a split's files are matched by their whole name, and all files of its stated number must exist.

    Raises:
        InputError: as for `pipeline.workflow.hub.snapshot`, or a split that is not complete.
    """
    names = [file.path for file in listing(repo, commit, "dataset")]
    wanted = {split: _shards(names, split) for split in splits}
    problems = [
        Problem(
            f"{repo} at {commit}",
            f"for the split {split}: " + (", ".join(found) or "no file"),
            f"data/{split}-00000-of-N.parquet to the last of N",
            "name a split and a commit that the dataset has",
        )
        for split, found in wanted.items()
        if not _is_complete(found)
    ]
    if problems:
        raise InputError(*problems)
    got = snapshot(repo, commit, [name for found in wanted.values() for name in found], "dataset")
    return {split: [got.folder / name for name in found] for split, found in wanted.items()}


def memorized(files: Mapping[str, Sequence[Path]], n: int, seed: int) -> NDArray[np.uint32]:
    """(n, 64) some of the sequences that are in all splits, in the order of their index.

    Args:
        files: split -> its parquet files: index, and 64 tokens.
        n: how many.
        seed: of the draw.

    Raises:
        InputError: a split without rows or with other columns, too few common sequences, a
            sequence that is not 64 tokens long or differs between splits.
    """
    scans = {split: _scan(split, paths) for split, paths in files.items()}
    first, *others = (scan.select("index") for scan in scans.values())
    for other in others:
        first = first.join(other, on="index", how="semi")
    common = first.unique().collect(engine="streaming")["index"].sort().to_numpy()
    if len(common) < n:
        raise bad_input(
            "sequences memorized by " + ", ".join(files),
            f"{len(common)} that all have in common",
            f"{n} or more",
            "lower n_memorized, or name fewer splits",
        )
    drawn = draw(common, n, seed)
    wanted = pl.LazyFrame({"index": drawn})
    tokens = {
        split: scan.join(wanted, on="index", how="semi")
        .unique(subset="index", keep="first", maintain_order=False)
        .sort("index")
        .collect(engine="streaming")["tokens"]
        for split, scan in scans.items()
    }
    _check_tokens(tokens, drawn)
    return np.array(next(iter(tokens.values())).to_list(), dtype=np.uint32)


def _shards(names: Sequence[str], split: str) -> list[str]:
    whole = re.compile(rf"data/{re.escape(split)}-\d{{5}}-of-\d{{5}}(-[0-9a-f]+)?\.parquet")
    return sorted(name for name in names if whole.fullmatch(name))


def _is_complete(shards: Sequence[str]) -> bool:
    found = [re.findall(r"-\d{5}-of-\d{5}", name)[0] for name in shards]
    return bool(found) and found == [f"-{i:05}-of-{len(found):05}" for i in range(len(found))]


def _scan(split: str, paths: Sequence[Path]) -> pl.LazyFrame:
    """Index and tokens of a split, lazily: only the columns' types and the row count are read."""
    scan = pl.scan_parquet(list(paths))
    try:
        schema = scan.collect_schema()
        rows = scan.select(pl.len()).collect().item()
    except pl.exceptions.PolarsError as error:
        raise bad_input(
            f"split {split}", str(error).splitlines()[0], "parquet files", "look at them"
        ) from error
    tokens = schema.get("tokens")
    if (
        not set(schema) >= COLUMNS
        or not schema["index"].is_integer()
        or not isinstance(tokens, (pl.List, pl.Array))
        or not tokens.inner.is_integer()
    ):
        raise bad_input(
            f"split {split}",
            "columns " + ", ".join(f"{name} ({kind})" for name, kind in schema.items()),
            "index, an integer, and tokens, a list of integers",
            OTHER,
        )
    if not rows:
        raise bad_input(f"split {split}", "no rows", "some", "name another split")
    return scan.select(pl.col("index").cast(pl.Int64), pl.col("tokens").cast(pl.List(pl.Int64)))


def _check_tokens(tokens: Mapping[str, pl.Series], drawn: NDArray[np.int64]) -> None:
    length = sum(PASSAGE_LENGTHS["pythia"])
    reference_split, reference = next(iter(tokens.items()))
    problems = []
    for split, sequences in tokens.items():
        lengths = sequences.list.drop_nulls().list.len()
        wrong = ((lengths != length) | (sequences.list.min() < 0)).fill_null(True)
        if wrong.any():
            at = int(wrong.arg_max() or 0)
            what = first_of(f"split {split}, index {drawn[at]}", int(wrong.sum()))
            got = f"{lengths[at] or 0} tokens, the smallest {sequences.list.min()[at]}"
            problems.append(Problem(what, got, f"{length} token ids", OTHER))
        elif (differ := sequences != reference).any():
            what = first_of(f"index {drawn[int(differ.arg_max() or 0)]}", int(differ.sum()))
            got = f"other tokens in {split} than in {reference_split}"
            remedy = "do not use these splits together: their indices mean different texts"
            problems.append(Problem(what, got, "one sequence under one index", remedy))
    if problems:
        raise InputError(*problems)
