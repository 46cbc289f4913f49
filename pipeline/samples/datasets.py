"""Fetch the datasets of lm-eval's own tasks, so that no run can take another revision in silence.

Each lies whole in a folder named after its task, which lm-eval then reads in place of the hub. DVC
keeps the folder: an evaluation needs neither the network nor the Hugging Face cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import polars as pl
from huggingface_hub import metadata_load, metadata_save

from pipeline.errors import InputError, Problem
from pipeline.files import atomic, write_json
from pipeline.hub import Snapshot, snapshot

INDEX = "datasets.json"


def fetch(folder: Path, datasets: Mapping[str, Mapping[str, Any]]) -> None:
    """Fetch every dataset, check it, and write them to `folder`, atomically.

    Args:
        folder: becomes TASK/…, the files of each, and datasets.json: task -> repo, commit, files.
            Their READMEs name the fetched configurations alone.
        datasets: task -> repo, commit, files (patterns) and columns that each data file must have.

    Raises:
        InputError: what `pipeline.hub.snapshot` raises, or a data file without rows or without one
            of the columns; of all datasets at once.
    """
    problems: list[Problem] = []
    fetched: dict[str, Snapshot] = {}
    for task, pinned in datasets.items():
        try:
            fetched[task] = snapshot(pinned["repo"], pinned["commit"], pinned["files"], "dataset")
            problems += _check(fetched[task], pinned["repo"], pinned["columns"])
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    with atomic(folder, directory=True) as temporary:
        for task, got in fetched.items():
            for name in got.files:
                (temporary / task / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(got.folder / name, temporary / task / name)
            _keep_configurations(temporary / task, list(got.files))
        write_json(
            temporary / INDEX,
            {
                task: {"repo": pinned["repo"], "commit": pinned["commit"], "files": got.files}
                for (task, pinned), got in zip(datasets.items(), fetched.values(), strict=True)
            },
        )


def _keep_configurations(folder: Path, files: Sequence[str]) -> None:
    """Drop from the README the configurations whose data was not fetched.

    `datasets` looks at the first one that the README names, whichever is asked for.
    """
    card = folder / "README.md"
    metadata: dict[str, Any] = (metadata_load(card) if card.is_file() else None) or {}
    if "configs" not in metadata:
        return

    def is_here(configuration: Mapping[str, Any]) -> bool:
        patterns = _patterns(configuration.get("data_files", "*"))
        below = configuration.get("data_dir")
        patterns = [f"{below}/{pattern}" if below else pattern for pattern in patterns]
        return all(any(fnmatchcase(file, pattern) for file in files) for pattern in patterns)

    kept = [each for each in metadata["configs"] if is_here(each)]
    names = {each.get("config_name") for each in kept}
    described = metadata.get("dataset_info")
    if isinstance(described, list):
        metadata["dataset_info"] = [d for d in described if d.get("config_name") in names]
    metadata_save(card, {**metadata, "configs": kept})


def _patterns(data_files: Any) -> list[str]:
    """The patterns of a configuration's `data_files`, which is text, a list, or by split."""
    if isinstance(data_files, str):
        return [data_files]
    if isinstance(data_files, Mapping):
        return _patterns(data_files.get("path", list(data_files.values())))
    return [pattern for each in data_files for pattern in _patterns(each)]


def _check(got: Snapshot, repo: str, columns: Sequence[str]) -> list[Problem]:
    data = [name for name in got.files if name.endswith((".parquet", ".jsonl", ".json"))]
    problems = [_problem(got.folder / name, f"{repo}: {name}", columns) for name in data]
    if not data:
        problems.append(
            Problem(repo, ", ".join(got.files), "parquet or JSON lines", "name the data files")
        )
    return [problem for problem in problems if problem is not None]


def _problem(path: Path, where: str, columns: Sequence[str]) -> Problem | None:
    """What is wrong with a data file, if anything is."""
    scan = pl.scan_parquet if path.suffix == ".parquet" else pl.scan_ndjson
    remedy = "name the dataset and commit that the task was written for"
    try:
        table = scan(path)
        found = table.collect_schema().names()
        rows = table.select(pl.len()).collect().item()
    except (pl.exceptions.PolarsError, OSError) as error:
        got = str(error).strip().splitlines() or [type(error).__name__]
        return Problem(where, got[0], "a table that can be read", remedy)
    if missing := [column for column in columns if column not in found]:
        return Problem(where, "columns " + ", ".join(found), "also " + ", ".join(missing), remedy)
    return None if rows else Problem(where, "no rows", "some", remedy)
