"""lm-eval's benchmarks under every intervention: requests built once, metrics by lm-eval itself.

lm-eval's `evaluate` would render and tokenize every prompt anew for each intervention. Here its
requests are built once, tokenized by its own model class, and scored for all interventions by the
engine; each intervention's answers then go through the task's own `process_results` and
aggregation. None of lm-eval's caches is used: their keys know neither the intervention nor the
revision of a dataset.

Only this module and `pipeline.tasks.lm_eval_model` import lm_eval, and with it datasets.

Source: lm-eval 0.4.13, `evaluator.simple_evaluate` and `models.huggingface.HFLM`.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from math import fsum
from pathlib import Path
from statistics import fmean
from typing import Any

import datasets
import lm_eval.tasks
import lm_eval.utils
import polars as pl
import torch
from jinja2 import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import (
    bits_per_byte,
    stderr_for_metric,
    weighted_mean,
    weighted_perplexity,
)
from lm_eval.api.registry import metric_registry
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator_utils import get_sample_size
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.interventions.evaluation import Likelihoods, Progress, Request, silent
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal
from pipeline.interventions.scoring import score
from pipeline.tasks.task_files import require_plain, sandboxed
from pipeline.workflow.errors import InputError, Problem, shorten
from pipeline.workflow.shards import Arrays, Shards, seconds_a_token
from pipeline.workflow.tables import BENCHMARK_DOCUMENTS, BENCHMARKS

BOOTSTRAP_DRAWS = 1000
"""Resamples for the standard error of lm-eval's `perplexity`, which has no closed form.

lm-eval's own default, 100,000 in a pool of processes, takes most of a minute per intervention;
1,000 draws know the standard error to within about 2%.
"""

FEWSHOT_SEED = 1234
"""What `simple_evaluate` seeds the choice of few-shot examples with unless told otherwise."""

DATASETS_INDEX = "datasets.json"
"""Says of a folder that it holds the datasets of lm-eval's own tasks."""

REQUEST_TYPES = ("loglikelihood", "loglikelihood_rolling")

GUESSABLE = ("acc", "acc_norm", "acc_bytes")
"""Metrics of multiple choice whose value under a blind guess is 1/choices."""

WEIGHTED = (weighted_mean, weighted_perplexity, bits_per_byte)
"""Aggregations of (value, weight) pairs; all others take one number a document."""

logger = logging.getLogger(__name__)

# templates are a folder's, not the package's
lm_eval.utils.env = sandboxed(lm_eval.utils.env)

# lm-eval's types are loose: a document, a metric's value for it, and a task's answers are Any


def load_tasks(
    names: Sequence[str], folder: str | Path, num_fewshot: int | None = None
) -> dict[str, ConfigurableTask]:
    """Load tasks, their datasets included: a folder's own tasks, or lm-eval's on its datasets.

    Args:
        names: the tasks, as lm-eval names them.
        folder: holds YAML files, at any depth. Relative `data_files` in the `dataset_kwargs` of a
            task are looked for beside its YAML file, so that a folder can move as a whole. Or it
            holds datasets.json and the datasets that this names: then the tasks are lm-eval's own,
            unmodified but that each reads its dataset from here and not from the hub.
        num_fewshot: examples before each question. As in lm-eval it overrides what a task says,
            unless the task says 0; a task that says nothing has 0.

    Returns:
        name -> task, in the order of `names`.

    Raises:
        InputError: names that the folder, or lm-eval, does not have; a file of a folder that is
            more than data; a dataset that does not fit, or is not the one that the task names.
    """
    datasets_of = _datasets(Path(folder))
    if not datasets_of:
        require_plain(Path(folder), metric_registry)
    own = partial(TaskManager, include_path=str(folder), include_defaults=False)
    manager = _official(names) if datasets_of else own()
    known = manager.all_subtasks
    offered = list(datasets_of) or known
    unknown = [name for name in names if name not in offered or name not in known]
    if unknown:
        raise InputError(
            Problem(
                what=f"benchmark tasks in {folder}",
                got=", ".join(unknown),
                expected=", ".join(name for name in offered if name not in unknown)
                or "a folder with lm-eval's YAML files, or datasets",
                remedy="name tasks of that folder; lm-eval skips YAML files that it cannot read",
            )
        )
    # or datasets counts each loading of a local file at s3.amazonaws.com
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    # lm-eval merges overrides into a task's YAML only for a member of a group
    members = [
        {"task": name} | (datasets_of[name] if datasets_of else _beside_yaml(manager, name))
        for name in names
    ]
    if datasets_of:
        _require_same(manager, names, Path(folder))
    with _quiet(), _explained(folder), _cache_of(Path(folder)):
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
        InputError: it has none, or a file is more than data.
    """
    require_plain(Path(folder), metric_registry)
    names = TaskManager(include_path=str(folder), include_defaults=False).all_subtasks
    if not names:
        raise InputError(
            Problem(
                str(folder),
                "no task",
                "a folder with lm-eval's YAML files",
                "name another folder; lm-eval skips YAML files that it cannot read",
            )
        )
    return sorted(names)


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Mapping[str, ConfigurableTask],
    interventions: Sequence[Intervention],
    token_budget: int | None = None,
    limit: float | Mapping[str, int] | None = None,
    progress: Progress = silent,
    journal: Journal | None = None,
    shards: Shards | None = None,
    calibration: Sequence[Sequence[int]] | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Every metric of every task under every intervention.

    Standard errors are lm-eval's: in closed form for means; for `perplexity` by its bootstrap,
    `BOOTSTRAP_DRAWS` draws with its own seed; null where it has none (`word_perplexity`,
    `byte_perplexity`, `bits_per_byte`, and a single document).

    Args:
        model: in evaluation mode, on any device.
        tokenizer: the model's own.
        tasks: from `load_tasks`.
        interventions: V of them, distinct.
        token_budget: tokens at a time, counted once a branch of the wavefront; it changes no
            result; None: from the memory that is free.
        limit: documents a task, or below 1 the share of its documents, or task -> documents; all
            of a task unless given.
        progress: told after each batch how many requests are scored.
        journal: is told of batches halved and of near ties.
        shards: keep what is finished, so that a killed process can go on; None: nothing is kept.
        calibration: C samples of T token ids each, over which the edits ``mean`` and ``mlp-mean``
            take their means; None where there is no such edit.

    Returns:
        `tables.BENCHMARKS`, intervention by intervention, tasks and metrics in their order; and
        `tables.BENCHMARK_DOCUMENTS`, where `value` is what lm-eval aggregates (for perplexities
        the log-likelihood, nats), with one column more: `weight` f64, the document's words or
        bytes where lm-eval divides by their sum, else 1.

    Raises:
        InputError: a task that generates text, filters answers, or has a metric that is not one
            number a document; and what `score` refuses.
    """
    limits = limit if isinstance(limit, Mapping) else dict.fromkeys(tasks, limit)
    documents = {name: _documents(task, limits.get(name)) for name, task in tasks.items()}
    for name, task in tasks.items():
        _check_metrics(name, task, documents[name])
    chance = {name: _chance(task, documents[name]) for name, task in tasks.items()}
    items = _tokenize(model, tokenizer, [d for each in documents.values() for d in each])

    likelihoods = _scored(
        model, items, interventions, token_budget, progress, journal, shards, calibration
    )

    results, by_intervention = [], []
    # an intervention at a time: as Python's numbers, all of them would take gigabytes
    for v, intervention in enumerate(interventions):
        # as lists: to look numbers up one by one in a tensor would take as long as the model does
        answer = partial(
            items.answer, likelihoods.log_prob[v].tolist(), likelihoods.is_greedy[v].tolist()
        )
        values: list[tuple[object, ...]] = []
        for name, task in tasks.items():
            label = {"intervention": intervention.name, "task": name}
            made = _process(task, documents[name], answer)
            for metric, by_document in made.items():
                results.append(
                    label
                    | {"metric": metric}
                    | _aggregate(task, metric, list(by_document.values()))
                    | {"chance": chance[name] if metric in GUESSABLE else None}
                )
                values += [
                    (*label.values(), doc_id, metric, *_value_and_weight(value))
                    for doc_id, value in by_document.items()
                ]
        schema = _schema(BENCHMARK_DOCUMENTS) | {"weight": pl.Float64}
        by_intervention.append(pl.DataFrame(values, schema=schema, orient="row"))
    return pl.DataFrame(results, schema=_schema(BENCHMARKS)), pl.concat(by_intervention)


def describe(tasks: Mapping[str, ConfigurableTask], folder: str | Path) -> dict[str, Any]:
    """What determines a task's requests: version, few-shot examples, documents and their source.

    Args:
        tasks: from `load_tasks`.
        folder: as for `load_tasks`.

    Returns:
        task -> version, num_fewshot, documents (their number), documents_sha256 (of all, in order,
        as JSON), and repo and commit of a dataset that was fetched; JSON values only.
    """
    index = Path(folder) / DATASETS_INDEX
    pinned = json.loads(index.read_text("utf-8")) if index.is_file() else {}
    described = {}
    for name, task in tasks.items():
        content = hashlib.sha256()
        documents = list(task.eval_docs)
        for document in documents:
            content.update(json.dumps(document, sort_keys=True, ensure_ascii=False).encode())
        described[name] = {
            "version": task.VERSION,
            "num_fewshot": task.config.num_fewshot or 0,
            "documents": len(documents),
            "documents_sha256": content.hexdigest(),
            **{key: pinned[name][key] for key in ("repo", "commit") if name in pinned},
        }
    return described


# --------------------------------------------------------------------------- requests


@dataclass(frozen=True)
class _Document:
    """A document of a task: its place in the split, its content, lm-eval's requests about it."""

    doc_id: int
    content: Any
    requests: list[Instance]


@dataclass(frozen=True)
class _Items:
    """What the engine scores, and how it answers lm-eval's requests.

    Args:
        distinct: token ids of a context and a continuation, each pair once.
        of_request: request type and arguments -> positions in `distinct`; one, or one for each
            window of a rolling request.
        max_length: tokens that the model sees at once, as lm-eval has it.
    """

    distinct: list[Request]
    of_request: dict[tuple[str, tuple[str, ...]], list[int]]
    max_length: int

    def answer(self, log_prob: list[float], is_greedy: list[bool], request: Instance) -> Any:
        """What HFLM would answer, given the engine's answers to `distinct`."""
        positions = self.of_request[request.request_type, request.args]
        if request.request_type == "loglikelihood_rolling":
            return fsum(log_prob[i] for i in positions)
        [position] = positions
        return log_prob[position], is_greedy[position]


class _Tokenizing(HFLM):  # type: ignore[misc]
    """HFLM's own tokenization and windowing, with the model call cut out."""

    def items_of(self, request: Instance) -> list[Request]:
        """The pairs of token ids that HFLM would send to the model for this request."""
        self._items: list[Request] = []
        getattr(self, request.request_type)([request], disable_tqdm=True)
        return self._items

    def _loglikelihood_tokens(
        self, requests: Any, disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        self._items += [(tuple(context), tuple(target)) for _, context, target in requests]
        return [(0.0, False)] * len(requests)


def _documents(task: ConfigurableTask, limit: float | None) -> list[_Document]:
    """Build the task's requests, and group them by document, both in lm-eval's order."""
    task.set_fewshot_seed(FEWSHOT_SEED)  # here, so that building twice gives the same prompts
    try:
        with _quiet():
            task.build_all_requests(limit=get_sample_size(task, limit), cache_requests=False)
    except TemplateError as error:
        raise _bad_template(f"task {task.config.task}", error) from error
    documents: dict[int, _Document] = {}
    for request in task.instances:
        known = documents.setdefault(request.doc_id, _Document(request.doc_id, request.doc, []))
        known.requests.append(request)
    for document in documents.values():
        document.requests.sort(key=lambda request: request.idx)
    return list(documents.values())


def _tokenize(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, documents: Sequence[_Document]
) -> _Items:
    """Turn all requests into token ids, each distinct pair once."""
    positions: dict[Request, int] = {}
    of_request: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    with _quiet():
        lm = _Tokenizing(pretrained=model, tokenizer=tokenizer, batch_size=1)
        for document in documents:
            for request in document.requests:
                key = request.request_type, request.args
                if key not in of_request:
                    of_request[key] = [
                        positions.setdefault(item, len(positions)) for item in lm.items_of(request)
                    ]
    long = sum(len(context) + len(target) > lm.max_length + 1 for context, target in positions)
    if long:
        logger.warning(
            "%d of %d contexts lose tokens on the left: the model sees %d at once",
            long,
            len(positions),
            lm.max_length,
        )
    return _Items(list(positions), of_request, lm.max_length)


def _scored(
    model: PreTrainedModel,
    items: _Items,
    interventions: Sequence[Intervention],
    token_budget: int | None,
    progress: Progress,
    journal: Journal | None,
    shards: Shards | None,
    calibration: Sequence[Sequence[int]] | None,
) -> Likelihoods:
    """The answers to `items.distinct`, shard by shard; arguments are those of `measure`."""
    requests = items.distinct
    # requests that share a context are read in one row, so they stay together
    starts = [
        i for i, (context, _) in enumerate(requests) if not i or context != requests[i - 1][0]
    ]
    rows = [range(*ends) for ends in pairwise([*starts, len(requests)])]
    tokens = None if calibration is None else torch.tensor(calibration)

    def work(part: range) -> Arrays:
        first, stop = rows[part.start].start, rows[part.stop - 1].stop
        scored = score(
            model,
            requests[first:stop],
            interventions,
            progress=lambda done, all_: progress(
                first + done * (stop - first) // all_, len(requests)
            ),
            max_length=items.max_length,
            token_budget=token_budget,
            journal=journal,
            calibration_tokens=tokens,
            first=first,
        )
        return {each.name: getattr(scored, each.name).numpy() for each in fields(scored)}

    if shards is None:
        arrays = work(range(len(rows)))
    else:
        device, dtype = model.device.type, str(model.dtype).removeprefix("torch.")
        speed = model.num_parameters(), len(interventions), device, dtype, torch.get_num_threads()
        read = (len(requests[row.start][0]) + sum(len(requests[i][1]) for i in row) for row in rows)
        arrays = shards.results(
            work,
            [seconds_a_token(*speed) * tokens for tokens in read],
            [device, dtype, *interventions, items.max_length, *requests],
        )
    return Likelihoods(**{name: torch.from_numpy(array) for name, array in arrays.items()})


# --------------------------------------------------------------------------- metrics


def _process(
    task: ConfigurableTask,
    documents: Sequence[_Document],
    answer: Callable[[Instance], Any],
) -> dict[str, dict[int, Any]]:
    """By metric and document id: what lm-eval's `process_results` makes of the answers."""
    made: dict[str, dict[int, Any]] = {}
    for document in documents:
        answers = [answer(request) for request in document.requests]
        for metric, value in task.process_results(document.content, answers).items():
            made.setdefault(metric, {})[document.doc_id] = value
    return made


def _aggregate(task: ConfigurableTask, metric: str, values: list[Any]) -> dict[str, Any]:
    """The columns of `tables.BENCHMARKS` that come from the values of all documents."""
    aggregation = task.aggregation()[metric]
    stderr = stderr_for_metric(aggregation, bootstrap_iters=BOOTSTRAP_DRAWS)
    with _quiet():
        return {
            "value": float(aggregation(values)),
            "stderr": float(stderr(values)) if stderr and len(values) > 1 else None,
            "n": len(values),
            "higher_is_better": task.higher_is_better()[metric],
        }


def _value_and_weight(value: Any) -> tuple[float, float]:
    return (float(value[0]), float(value[1])) if isinstance(value, tuple) else (float(value), 1.0)


def _chance(task: ConfigurableTask, documents: Sequence[_Document]) -> float | None:
    """The accuracy of a blind guess: the mean of 1/choices; None for other than one of several."""
    if task.OUTPUT_TYPE != "multiple_choice" or task.multiple_target:
        return None
    return fmean(1 / len(task.doc_to_choice(document.content)) for document in documents)


def _check_metrics(name: str, task: ConfigurableTask, documents: Sequence[_Document]) -> None:
    """Refuse, before any scoring, what the tables cannot hold.

    Raises:
        InputError: the task generates text or filters answers, or a metric is unknown to its
            `metric_list` or is not one number, or one number and its weight, a document.
    """
    types = sorted({request.request_type for each in documents for request in each.requests})
    remedy = "leave the task out of the study, or write one that compares log-likelihoods"
    if not set(types) <= set(REQUEST_TYPES):
        expected = " or ".join(REQUEST_TYPES)
        raise InputError(Problem(f"task {name}, output_type", ", ".join(types), expected, remedy))
    if task.config.filter_list is not None:
        got = shorten(task.config.filter_list)
        raise InputError(Problem(f"task {name}, filter_list", got, "no filters", remedy))

    blank = {"loglikelihood": (-1.0, False), "loglikelihood_rolling": -1.0}
    made = _process(task, documents[:1], lambda request: blank[request.request_type])
    problems = []
    for metric, values in made.items():
        value = next(iter(values.values()))
        aggregation = task.aggregation().get(metric)
        if aggregation is None or metric not in task.higher_is_better():
            problem = "no aggregation or direction", "both in the task's metric_list", "add them"
        elif isinstance(value, tuple) and aggregation not in WEIGHTED:
            problem = shorten(value), "one number a document", "leave the metric out"
        else:
            continue
        problems.append(Problem(f"task {name}, metric {metric}", *problem))
    if problems:
        raise InputError(*problems)


# --------------------------------------------------------------------------- lm-eval's manners


def _datasets(folder: Path) -> dict[str, dict[str, Any]]:
    """Task -> what makes lm-eval read its dataset here; none where the folder has its own tasks."""
    index = folder / DATASETS_INDEX
    if not index.is_file():
        return {}
    return {
        name: {
            "dataset_path": "parquet",
            "dataset_name": None,
            "dataset_kwargs": {
                "data_files": {
                    path.stem: str(path) for path in (folder / name).resolve().glob("*.parquet")
                }
            },
        }
        for name in json.loads(index.read_text("utf-8"))
    }


def _require_same(manager: TaskManager, names: Sequence[str], folder: Path) -> None:
    """Refuse a dataset, configuration or split that is not the one which the task evaluates.

    Raises:
        InputError: it was pinned for another task, or for another version of lm-eval.
    """
    fetched = json.loads((folder / DATASETS_INDEX).read_text("utf-8"))
    problems = []
    for name in names:
        task = load_yaml(manager.task_index[name].yaml_path, resolve_func=False)
        wanted = {
            "repo": task.get("dataset_path"),
            "name": task.get("dataset_name"),
            "split": task.get("test_split") or task.get("validation_split"),
        }
        got = {key: fetched[name].get(key) for key in wanted}
        if got != wanted:
            problems.append(
                Problem(
                    f"the dataset of {name}",
                    ", ".join(f"{key} {value}" for key, value in got.items()),
                    ", ".join(f"{key} {value}" for key, value in wanted.items())
                    + ", as lm-eval's task says",
                    f"correct datasets.STUDY.{name} in the study",
                )
            )
    if problems:
        raise InputError(*problems)


def _official(names: Sequence[str]) -> TaskManager:
    """lm-eval's own tasks, or enough of them: to index all 13,000 takes a quarter of a minute."""
    root = Path(lm_eval.tasks.__file__).parent
    folders = sorted({str(path.parent) for name in names for path in root.rglob(f"{name}.yaml")})
    manager = TaskManager(include_path=folders, include_defaults=False)
    known = set(manager.all_subtasks)
    return manager if known >= set(names) else TaskManager()


@contextmanager
def _cache_of(folder: Path) -> Iterator[None]:
    """A cache of datasets for this folder's content alone.

    `datasets` knows a local dataset by the names of folder and files, whatever is in them: it would
    give back what a folder of the same name held, or this one before it changed.
    """
    content = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        content.update(f"{path.relative_to(folder).as_posix()} {digest}\n".encode())
    before = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = Path(before) / content.hexdigest()[:16]
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = before


@contextmanager
def _explained(folder: str | Path) -> Iterator[None]:
    """What datasets and lm-eval say of data that they cannot use, as an InputError."""
    try:
        yield
    except TemplateError as error:
        raise _bad_template(f"the tasks in {folder}", error) from error
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        raise InputError(
            Problem(
                f"the datasets in {folder}",
                shorten(f"{type(error).__name__}: {error}", 300),
                "the layout that lm-eval's task files name",
                "delete the folder and run the stage that fetches it, at the commits of the study",
            )
        ) from error


def _bad_template(what: str, error: TemplateError) -> InputError:
    expected = "templates of a document's fields, and of nothing else"
    return InputError(Problem(f"{what}, templates", str(error), expected, "mend the task's YAML"))


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
    """The same function, which renders each document's template once, not once an intervention."""
    known: dict[int, tuple[Any, Any]] = {}

    def rendered(document: Any, *others: Any) -> Any:
        if others:  # a template of its own, for few-shot examples
            return render(document, *others)
        if id(document) not in known:
            # keeping the document keeps its id from being given to another
            known[id(document)] = document, render(document)
        return known[id(document)][1]

    return rendered


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars and prints of lm-eval's, and no pool of processes for its bootstrap."""
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before


def _schema(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: column.dtype for name, column in columns.items()}
