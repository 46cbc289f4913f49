"""Loads lm-eval's tasks: a folder's own YAML files, or lm-eval's own tasks on pinned datasets.

lm-eval reads from the hub, and its caches' keys do not include a revision. Here each task reads its
dataset from a folder, with a cache only for that folder's content.

Source: lm-eval 0.4.13, `tasks.TaskManager` and `evaluator.simple_evaluate`.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
import lm_eval.utils
from jinja2 import TemplateError
from lm_eval.api.registry import metric_registry
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from pipeline.tasks.datasets import INDEX, load
from pipeline.tasks.task_files import require_plain, sandboxed
from pipeline.workflow.errors import InputError, Problem, bad_input, shorten
from pipeline.workflow.files import checksums
from pipeline.workflow.hub import commit_of

EVALUATED = ("multiple_choice", "loglikelihood", "loglikelihood_rolling")
"""Types of lm-eval's tasks that need no generated text."""

os.environ["DISABLE_MULTIPROC"] = "1"  # lm-eval's bootstrap would start a pool of processes

# templates are a folder's, not the package's
lm_eval.utils.env = sandboxed(lm_eval.utils.env)

# lm-eval's types are loose: a document and a task's answers are Any


def load_tasks(
    names: Sequence[str], folder: str | Path, num_fewshot: int | None = None
) -> dict[str, ConfigurableTask]:
    """Load tasks, their datasets included: a folder's own tasks, or lm-eval's on its datasets.

    Args:
        names: the tasks, as lm-eval names them.
        folder: holds YAML files, at any depth. Relative `data_files` in the `dataset_kwargs` of a
            task are looked for beside its YAML file, so that a folder can move as a whole. Or it
            holds datasets.json and the datasets that it names: then the tasks are lm-eval's own,
            unmodified except that each reads its dataset from here instead of the hub.
        num_fewshot: examples before each question. As in lm-eval it overrides a task's own number,
            unless that is 0; the default of a task is 0.

    Returns:
        name -> task, in the order of `names`.

    Raises:
        InputError: unknown names; a task file that contains more than data; a dataset that does
            not fit, or is not the one that the task names.
    """
    pinned = _pinned(folder)
    manager = _official(names) if pinned else _own(folder)
    known = manager.all_subtasks
    offered = list(pinned) or known
    if unknown := [name for name in names if name not in offered or name not in known]:
        raise bad_input(
            f"benchmark tasks in {folder}",
            ", ".join(unknown),
            ", ".join(name for name in offered if name not in unknown)
            or "a folder with lm-eval's YAML files, or datasets",
            "name tasks of that folder; lm-eval skips YAML files that it cannot read",
        )
    _require_same(manager, {name: pinned[name] for name in names if pinned})
    # lm-eval merges overrides into a task's YAML only for a member of a group
    members = [
        {"task": name} | (_fetched(folder, name) if pinned else _beside_yaml(manager, name))
        for name in names
    ]
    with quiet(), _explained(folder), _cache_of(Path(folder)):
        loaded = manager.load([{"group": "study", "task": members}])["tasks"]
    tasks = {name: loaded[name] for name in names}
    for task in tasks.values():
        own = task.config.num_fewshot
        if own != 0:
            task.set_config("num_fewshot", num_fewshot if num_fewshot is not None else own or 0)
        for render in ("doc_to_text", "doc_to_target", "doc_to_choice"):
            setattr(task, render, _once_per_document(getattr(task, render)))
    return tasks


def tasks_in(folder: str | Path) -> list[str]:
    """The names of a folder's own tasks.

    Raises:
        InputError: it has none, or a file contains more than data.
    """
    names = _own(folder).all_subtasks
    if not names:
        raise bad_input(
            str(folder),
            "no task",
            "a folder with lm-eval's YAML files",
            "name another folder; lm-eval skips YAML files that it cannot read",
        )
    return sorted(names)


def pinned(name: str, others: Iterable[str]) -> dict[str, Any]:
    """The dataset of one of lm-eval's own tasks, at the commit that its branch ``main`` has now.

    Args:
        name: the task, as lm-eval names it.
        others: tasks that need no look-up, for the error.

    Returns:
        As an entry of a study's `datasets`: repo, commit, name, split, documents, columns.

    Raises:
        InputError: lm-eval has no such task, or none that reads a dataset of the hub as it is; the
            hub lacks the dataset; or `datasets` cannot read it.
    """
    manager = _official([name])
    known = name in manager.all_subtasks and manager.task_index[name].yaml_path
    task = load_yaml(known, resolve_func=False) if known else {}
    dataset = _dataset_of(task)
    repo, split = str(dataset["repo"]), dataset["split"]
    plain = task.get("output_type") in EVALUATED and not {"custom_dataset", "filter_list"} & {*task}
    if not plain or repo.count("/") != 1 or not split:
        raise bad_input(
            "--tasks",
            shorten(name),
            f"a folder of lm-eval's YAML files; some of {', '.join(others)}; or a task of its own "
            f"that is {', '.join(EVALUATED)}, on a dataset OWNER/NAME of the hub",
            "name another (lm_eval ls tasks lists all), or copy the task's YAML and its data into "
            "a folder",
        )
    commit = commit_of(repo, "main", "dataset")
    data, _ = load(repo, commit, dataset["name"])
    if split not in data:
        where, remedy = f"{repo} at {commit}", "leave the task out"
        raise bad_input(f"{where}, for {name}", "the splits " + ", ".join(data), split, remedy)
    pin = {"repo": repo, "commit": commit, **dataset}
    return {**pin, "documents": len(data[split]), "columns": data[split].column_names}


def describe(tasks: Mapping[str, ConfigurableTask], folder: str | Path) -> dict[str, Any]:
    """The provenance of a task's requests: version, few-shot examples, documents, their source.

    Returns:
        task -> version, num_fewshot, documents (their number), documents_sha256 (of all, in order,
        as JSON), and repo and commit of a dataset that was fetched; JSON values only.
    """
    pinned, described = _pinned(folder), {}
    for name, task in tasks.items():
        content = hashlib.sha256()
        documents = list(task.eval_docs)
        for document in documents:
            told = json.dumps(document, sort_keys=True, ensure_ascii=False, default=str)  # dates, …
            content.update(told.encode())
        described[name] = {
            "version": task.VERSION,
            "num_fewshot": task.config.num_fewshot or 0,
            "documents": len(documents),
            "documents_sha256": content.hexdigest(),
            **{key: pinned[name][key] for key in ("repo", "commit") if name in pinned},
        }
    return described


def _pinned(folder: str | Path) -> dict[str, dict[str, Any]]:
    """Task -> the pin of its dataset; empty if the folder has its own tasks."""
    index = Path(folder) / INDEX
    pinned: dict[str, dict[str, Any]] = json.loads(index.read_text()) if index.is_file() else {}
    return pinned


def _fetched(folder: str | Path, name: str) -> dict[str, Any]:
    """Overrides of a task that reads its dataset from the folder."""
    files = {path.stem: str(path) for path in Path(folder, name).resolve().glob("*.parquet")}
    where = {"dataset_path": "parquet", "dataset_name": None}
    return {**where, "dataset_kwargs": {"data_files": files}}


def _dataset_of(task: Mapping[str, Any]) -> dict[str, Any]:
    """The dataset that a task's file names: repo, name of its configuration, evaluated split."""
    split = task.get("test_split") or task.get("validation_split")
    return {"repo": task.get("dataset_path"), "name": task.get("dataset_name"), "split": split}


def _require_same(manager: TaskManager, pinned: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise if a dataset, configuration or split is not the one that the task evaluates.

    Raises:
        InputError: it was pinned for another task, or for another version of lm-eval.
    """
    problems = []
    for name, pin in pinned.items():
        wanted = _dataset_of(load_yaml(manager.task_index[name].yaml_path, resolve_func=False))
        got, expected = (
            ", ".join(f"{key} {values.get(key)}" for key in wanted) for values in (pin, wanted)
        )
        if got != expected:
            expected += ", as lm-eval's task says"
            remedy = f"correct datasets.STUDY.{name} in the study"
            problems.append(Problem(f"the dataset of {name}", got, expected, remedy))
    if problems:
        raise InputError(*problems)


def _own(folder: str | Path) -> TaskManager:
    """A folder's own tasks, whose files hold nothing but data."""
    require_plain(Path(folder), metric_registry)
    return TaskManager(include_path=str(folder), include_defaults=False)


def _official(names: Sequence[str]) -> TaskManager:
    """lm-eval's own tasks, only the folders needed: indexing all 13,000 tasks takes 15 seconds."""
    root = Path(lm_eval.tasks.__file__).parent
    folders = sorted({str(path.parent) for name in names for path in root.rglob(f"{name}.yaml")})
    manager = TaskManager(include_path=folders, include_defaults=False)
    return manager if set(manager.all_subtasks) >= set(names) else TaskManager()


@contextmanager
def _cache_of(folder: Path) -> Iterator[None]:
    """A cache of datasets only for this folder's content.

    `datasets` identifies a local dataset by the names of folder and files, not by their content: it
    would return the data of another folder of the same name, or of this one before a change.
    """
    content = hashlib.sha256(json.dumps(checksums(folder)).encode()).hexdigest()
    before = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = Path(before) / content[:16]
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = before


@contextmanager
def _explained(folder: str | Path) -> Iterator[None]:
    """Turn errors of datasets and lm-eval about unusable data into an InputError."""
    try:
        yield
    except TemplateError as error:
        raise bad_template(f"the tasks in {folder}", error) from error
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        raise bad_input(
            f"the datasets in {folder}",
            shorten(f"{type(error).__name__}: {error}", 300),
            "the layout that lm-eval's task files name",
            "delete the folder and run the stage that fetches it, at the commits of the study",
        ) from error


def bad_template(what: str, error: TemplateError) -> InputError:
    """The error for a task's template that cannot be rendered."""
    expected = "templates of a document's fields, and of nothing else"
    return bad_input(f"{what}, templates", str(error), expected, "mend the task's YAML")


def _beside_yaml(manager: TaskManager, name: str) -> dict[str, Any]:
    """The task's `dataset_kwargs` with relative data files made absolute, if it has any."""
    entry = manager.task_index[name]
    given = entry.cfg.get("dataset_kwargs", {})
    if "data_files" not in given:
        return {}

    def absolute(files: Any) -> Any:
        if isinstance(files, str):
            return files if "://" in files else str((entry.yaml_path.parent / files).resolve())
        if isinstance(files, Mapping):
            return {split: absolute(each) for split, each in files.items()}
        return [absolute(each) for each in files]

    return {"dataset_kwargs": {**given, "data_files": absolute(given["data_files"])}}


def _once_per_document(render: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which renders each document's template once for all interventions."""
    known: dict[int, tuple[Any, Any]] = {}

    def rendered(document: Any, *others: Any) -> Any:
        if others:  # another template, for few-shot examples
            return render(document, *others)
        if id(document) not in known:
            # a reference to the document keeps Python from reusing its id
            known[id(document)] = document, render(document)
        return known[id(document)][1]

    return rendered


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress lm-eval's bars and prints."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield
