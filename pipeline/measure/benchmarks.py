"""lm-eval's benchmarks under every intervention: requests built once, metrics by lm-eval itself.

lm-eval's `evaluate` would render and tokenize every prompt anew for each intervention. Here its
requests are built once, tokenized by its own model class, and scored for all interventions by the
engine; each intervention's answers then go through the task's own `process_results` and
aggregation. lm-eval's caches are not used, since their keys contain neither the intervention nor
the revision of a dataset. `pipeline.tasks.loading` loads the tasks.

Source: lm-eval 0.4.13, `evaluator.simple_evaluate` and `models.huggingface.HFLM`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import fsum
from statistics import fmean
from typing import Any

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
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator_utils import get_sample_size
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.interventions.evaluation import Request
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.scoring import score
from pipeline.measure.schemas import BENCHMARK_DOCUMENTS, BENCHMARKS
from pipeline.measure.sharded import DEFAULT, Running, sharded
from pipeline.tasks.loading import bad_template, quiet
from pipeline.workflow.errors import InputError, Problem, bad_input, shorten
from pipeline.workflow.shards import Arrays
from pipeline.workflow.tables import dtypes

BOOTSTRAP_DRAWS = 1000
"""Resamples for the standard error of lm-eval's `perplexity`, which has no closed form.

lm-eval's own default, 100,000 in a pool of processes, takes most of a minute per intervention;
1,000 draws give the standard error to within about 2%.
"""

FEWSHOT_SEED = 1234
"""The seed by which `simple_evaluate` chooses few-shot examples by default."""

REQUEST_TYPES = ("loglikelihood", "loglikelihood_rolling")

GUESSABLE = ("acc", "acc_norm", "acc_bytes")
"""Accuracies, which have a level that is reached without reading."""

WEIGHTED = (weighted_mean, weighted_perplexity, bits_per_byte)
"""Aggregations of (value, weight) pairs; all others take one number per document."""

logger = logging.getLogger(__name__)

# lm-eval's types are loose: a document, a metric's value for it, and a task's answers are Any


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Mapping[str, ConfigurableTask],
    interventions: Sequence[Intervention],
    running: Running = DEFAULT,
    limit: float | Mapping[str, int] | None = None,
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
        running: its progress counts the requests that are scored.
        limit: documents per task, or below 1 the share of its documents, or task -> documents; all
            documents by default.
        calibration: C samples of T token ids each, over which the edits ``mean`` and ``mlp-mean``
            take their means; None where there is no such edit.

    Returns:
        `schemas.BENCHMARKS`, intervention by intervention, tasks and metrics in their order; and
        `schemas.BENCHMARK_DOCUMENTS`, where `value` is the number that lm-eval aggregates (for
        perplexities the log-likelihood, nats), with an additional column `weight` (f64): the
        document's words or bytes where lm-eval divides by their sum, else 1.

    Raises:
        InputError: a task that generates text, filters answers, or has a metric that is not one
            number per document; or requests that `score` rejects.
    """
    limits = limit if isinstance(limit, Mapping) else dict.fromkeys(tasks, limit)
    documents = {name: _documents(task, limits.get(name)) for name, task in tasks.items()}
    for name, task in tasks.items():
        _check_metrics(name, task, documents[name])
    chance = {name: _chance(task, documents[name]) for name, task in tasks.items()}
    items = _tokenize(model, tokenizer, [d for of_task in documents.values() for d in of_task])
    scored = _scored(model, items, interventions, running, calibration)
    results, by_intervention = [], []
    # one intervention at a time, since all of them would take gigabytes as Python numbers
    for v, intervention in enumerate(interventions):
        # as lists: single look-ups in an array would take as long as the model does
        answer = partial(
            items.answer, scored["log_prob"][v].tolist(), scored["is_greedy"][v].tolist()
        )
        values: list[tuple[object, ...]] = []
        for name, task in tasks.items():
            for metric, by_document in _process(task, documents[name], answer).items():
                label = {"intervention": intervention.name, "task": name, "metric": metric}
                summed = _aggregate(task, metric, [value for _, value in by_document])
                guessed = chance[name] if metric in GUESSABLE else None
                results.append(label | summed | {"chance": guessed})
                values += [
                    (intervention.name, name, each.doc_id, each.category, metric, *_weighed(value))
                    for each, value in by_document
                ]
        schema = dtypes(BENCHMARK_DOCUMENTS) | {"weight": pl.Float64}
        by_intervention.append(pl.DataFrame(values, schema=schema, orient="row"))
    return pl.DataFrame(results, schema=dtypes(BENCHMARKS)), pl.concat(by_intervention)


# --------------------------------------------------------------------------- requests


@dataclass(frozen=True)
class _Document:
    """A document of a task: place in the split, content, category, lm-eval's requests about it."""

    doc_id: int
    content: Any
    category: Any
    requests: list[Instance]


@dataclass(frozen=True)
class _Items:
    """The pairs that the engine scores, and the mapping back to lm-eval's requests.

    Args:
        distinct: token ids of a context and a continuation, each pair once.
        of_request: request type and arguments -> positions in `distinct`; one, or one for each
            window of a rolling request.
        max_length: tokens that the model sees at once, as lm-eval defines it.
    """

    distinct: list[Request]
    of_request: dict[tuple[str, tuple[str, ...]], list[int]]
    max_length: int

    def answer(self, log_prob: list[float], is_greedy: list[bool], request: Instance) -> Any:
        """The answer that HFLM would give, from the engine's answers to `distinct`."""
        positions = self.of_request[request.request_type, request.args]
        if request.request_type == "loglikelihood_rolling":
            return fsum(log_prob[i] for i in positions)
        [position] = positions
        return log_prob[position], is_greedy[position]


class _Tokenizing(HFLM):  # type: ignore[misc]
    """HFLM's own tokenization and windowing, without the call of the model."""

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
        with quiet():
            task.build_all_requests(limit=get_sample_size(task, limit), cache_requests=False)
    except TemplateError as error:
        raise bad_template(f"task {task.config.task}", error) from error
    documents: dict[int, _Document] = {}
    field = (task.config.metadata or {}).get("category")
    for request in task.instances:
        new = _Document(request.doc_id, request.doc, request.doc.get(field), [])
        documents.setdefault(request.doc_id, new).requests.append(request)
    for document in documents.values():
        document.requests.sort(key=lambda request: request.idx)
    return list(documents.values())


def require_start(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise for a tokenizer that has no token to put before a text.

    Raises:
        InputError: it is one.
    """
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise bad_input(
            "the tokenizer, for benchmarks",
            "neither a bos nor an eos token",
            "one of them, which lm-eval puts before a text",
            "name one in tokenizer_config.json, or leave out the benchmarks",
        )


def _tokenize(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, documents: Sequence[_Document]
) -> _Items:
    """Turn all requests into token ids, each distinct pair once; raises as `require_start`."""
    require_start(tokenizer)
    positions: dict[Request, int] = {}
    of_request: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    with quiet():
        lm = _Tokenizing(pretrained=model, tokenizer=tokenizer, batch_size=1)
        for document in documents:
            for request in document.requests:
                key = request.request_type, request.args
                if key not in of_request:
                    items = lm.items_of(request)
                    of_request[key] = [positions.setdefault(each, len(positions)) for each in items]
    long = sum(len(context) + len(target) > lm.max_length + 1 for context, target in positions)
    if long:
        message = "%d of %d contexts lose tokens on the left: the model sees %d at once"
        logger.warning(message, long, len(positions), lm.max_length)
    return _Items(list(positions), of_request, lm.max_length)


def _scored(
    model: PreTrainedModel,
    items: _Items,
    interventions: Sequence[Intervention],
    running: Running,
    calibration: Sequence[Sequence[int]] | None,
) -> Arrays:
    """The answers to `items.distinct` (V, R), shard by shard; arguments are those of `measure`."""
    requests = items.distinct
    # requests that share a context are read in one row, so they stay in one shard
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
            progress=lambda done, all_: running.progress(
                first + done * (stop - first) // all_, len(requests)
            ),
            max_length=items.max_length,
            token_budget=running.token_budget,
            journal=running.journal,
            calibration_tokens=tokens,
            first=first,
        )
        return {name: results.numpy() for name, results in scored.tensors().items()}

    lengths = [len(requests[row.start][0]) + sum(len(requests[i][1]) for i in row) for row in rows]
    determined_by = [items.max_length, calibration, *requests]
    return sharded(running.shards, model, interventions, lengths, determined_by, work)


# --------------------------------------------------------------------------- metrics


def _process(
    task: ConfigurableTask, documents: Sequence[_Document], answer: Callable[[Instance], Any]
) -> dict[str, list[tuple[_Document, Any]]]:
    """Metric -> each document and the result of lm-eval's `process_results`."""
    made: dict[str, list[tuple[_Document, Any]]] = {}
    for document in documents:
        answers = [answer(request) for request in document.requests]
        for metric, value in task.process_results(document.content, answers).items():
            made.setdefault(metric, []).append((document, value))
    return made


def _aggregate(task: ConfigurableTask, metric: str, values: list[Any]) -> dict[str, Any]:
    """The columns of `schemas.BENCHMARKS` that come from the values of all documents."""
    aggregation = task.aggregation()[metric]
    stderr = stderr_for_metric(aggregation, bootstrap_iters=BOOTSTRAP_DRAWS)
    with quiet():
        return {
            "value": float(aggregation(values)),
            "stderr": float(stderr(values)) if stderr and len(values) > 1 else None,
            "n": len(values),
            "higher_is_better": task.higher_is_better()[metric],
        }


def _weighed(value: Any) -> tuple[float, float]:
    """A value and its weight."""
    return (float(value[0]), float(value[1])) if isinstance(value, tuple) else (float(value), 1.0)


def _chance(task: ConfigurableTask, documents: Sequence[_Document]) -> float | None:
    """The accuracy without reading: as stated, else the mean of 1/choices of multiple choice."""
    if (stated := (task.config.metadata or {}).get("chance")) is not None:
        return float(stated)
    if task.OUTPUT_TYPE != "multiple_choice" or task.multiple_target:
        return None
    return fmean(1 / len(task.doc_to_choice(document.content)) for document in documents)


def _check_metrics(name: str, task: ConfigurableTask, documents: Sequence[_Document]) -> None:
    """Reject, before any scoring, tasks whose results do not fit the tables.

    Raises:
        InputError: the task generates text or filters answers, or a metric is missing in its
            `metric_list`, or does not give one number (optionally with a weight) per document.
    """
    types = sorted({r.request_type for document in documents for r in document.requests})
    remedy = "leave the task out of the study, or write one that compares log-likelihoods"
    if not set(types) <= set(REQUEST_TYPES):
        expected = " or ".join(REQUEST_TYPES)
        raise bad_input(f"task {name}, output_type", ", ".join(types), expected, remedy)
    if task.config.filter_list is not None:
        got = shorten(task.config.filter_list)
        raise bad_input(f"task {name}, filter_list", got, "no filters", remedy)

    blank = {"loglikelihood": (-1.0, False), "loglikelihood_rolling": -1.0}
    made = _process(task, documents[:1], lambda request: blank[request.request_type])
    problems = []
    for metric, [(_, value)] in made.items():
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
