"""Fetches datasets of the hub at pinned commits, and checks them.

The library `datasets` maps files to splits, as it would for lm-eval. It reads a folder that has
every path of the commit: README and data are fetched and verified, all other files are empty. So it
finds the same files without a network, and every byte from the hub is checked.

The datasets of lm-eval's own tasks are written to a folder that DVC keeps: an evaluation needs
neither the network nor the Hugging Face cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets

from pipeline.workflow.errors import InputError, Problem, bad_input, shorten
from pipeline.workflow.files import atomic, write_json
from pipeline.workflow.hub import Snapshot, listing, require_inside, snapshot
from pipeline.workflow.network import NoNetworkError

INDEX = "datasets.json"

METADATA = ("README.md", ".huggingface.yaml", "dataset_infos.json")
"""Files of a repository that `datasets` reads before any data, if they exist."""

datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # else each loading contacts a server
datasets.disable_progress_bars()


def fetch_datasets(folder: Path, pinned: Mapping[str, Mapping[str, Any]]) -> None:
    """Fetch the datasets of tasks, check them, and write them to `folder`, atomically.

    Args:
        folder: gets TASK/SPLIT.parquet, and datasets.json: task -> its pin, its checks, and files:
            path in the repository -> sha256.
        pinned: task -> repo, commit, name (of the configuration, or None), split (that is
            evaluated), documents (its number) and columns (that it must have).

    Raises:
        InputError: as for `load`; or a split without the columns or with another number of
            documents. Lists the problems of all datasets.
    """
    problems: list[Problem] = []
    index = {}
    with atomic(folder, directory=True) as temporary:
        for task, pin in pinned.items():
            try:
                data, files = load(pin["repo"], pin["commit"], pin["name"])
                problems += _check(data, pin)
            except NoNetworkError:
                raise
            except InputError as error:
                problems += error.problems
                continue
            index[task] = {**pin, "files": files}
            (temporary / task).mkdir()
            for split, rows in data.items():
                rows.to_parquet(temporary / task / f"{split}.parquet")
        if problems:
            raise InputError(*problems)
        write_json(temporary / INDEX, index)


def load(
    repo: str, commit: str, name: str | None = None
) -> tuple[Mapping[str, datasets.Dataset], dict[str, str]]:
    """A configuration of a dataset, in memory, and the files that it was read from.

    Returns:
        Split -> its rows; and path in the repository -> sha256, README included.

    Raises:
        InputError: as for `pipeline.workflow.hub.snapshot`, or files that `datasets` cannot read.
    """
    with _laid_out(repo, commit, name, find_files(repo, commit, name)) as (below, got):
        data = datasets.load_dataset(
            str(below), name, cache_dir=str(below.parent / "cache"), keep_in_memory=True
        )
    return data, got.files


def find_files(repo: str, commit: str, name: str | None = None) -> list[str]:
    """The files of a configuration; fetches only the listing and metadata from the hub.

    Returns:
        Paths in the repository, without those of `METADATA`, sorted.

    Raises:
        InputError: as for `load`.
    """
    with _laid_out(repo, commit, name) as (below, _):
        builder = datasets.load_dataset_builder(
            str(below), name, cache_dir=str(below.parent / "cache")
        )
        splits = (builder.config.data_files or {}).values()
        return sorted({Path(each).relative_to(below).as_posix() for e in splits for each in e})


@contextmanager
def _laid_out(
    repo: str, commit: str, name: str | None, wanted: Sequence[str] = ()
) -> Iterator[tuple[Path, Snapshot]]:
    """A folder with every path of a commit: metadata and the wanted files, all others empty.

    Raises:
        InputError: the enclosed code failed to read the configuration of this name.
    """
    paths = [file.path for file in listing(repo, commit, "dataset")]
    require_inside(paths, f"{repo} at {commit}")
    fetched = [path for path in (*METADATA, *wanted) if path in paths]
    got = snapshot(repo, commit, fetched, "dataset") if fetched else Snapshot(Path(), {})
    with TemporaryDirectory(prefix="dataset-") as temporary:
        below = Path(temporary).resolve() / "repository"
        for path in paths:
            here = below / path
            here.parent.mkdir(parents=True, exist_ok=True)
            if path in got.files:
                here.symlink_to((got.folder / path).resolve())
            else:
                here.touch()
        try:
            yield below, got
        except Exception as error:  # each of the many parts of datasets raises its own
            cause = error.__cause__ or error  # it wraps what is wrong with a file
            raise bad_input(
                f"{repo} at {commit}" + (f", configuration {name}" if name else ""),
                shorten(f"{type(cause).__name__}: {cause}", 300),
                "a README.md and files that the library `datasets` can read",
                "name a commit and a configuration that it can load",
            ) from error


def _check(data: Mapping[str, datasets.Dataset], pin: Mapping[str, Any]) -> list[Problem]:
    """The problems of the split that is evaluated."""
    where = f"{pin['repo']} at {pin['commit']}: {pin['split']}"
    remedy = "name the dataset and commit that the task was written for"
    if pin["split"] not in data:
        return [Problem(where, "the splits " + ", ".join(data), pin["split"], remedy)]
    rows, problems = data[pin["split"]], []
    if missing := [column for column in pin["columns"] if column not in rows.column_names]:
        got = "columns " + ", ".join(rows.column_names)
        problems.append(Problem(where, got, "also " + ", ".join(missing), remedy))
    if len(rows) != pin["documents"]:
        got, expected = f"{len(rows)} documents", f"{pin['documents']}, as the study says"
        problems.append(Problem(where, got, expected, f"{remedy}, or correct `documents`"))
    return problems
