"""The input and output of every engine, so that engines are interchangeable.

Shapes: V interventions, N samples, S suffix tokens, R requests.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from importlib import import_module
from inspect import signature
from numbers import Integral
from threading import Lock, RLock
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.interventions.edits import rules_of
from pipeline.models.context import stated_length
from pipeline.models.sites import require_stock
from pipeline.workflow.errors import InputError, Problem, bad_input, shorten

Request = tuple[Sequence[int], Sequence[int]]
"""Token ids of a context and of the continuation to score, one or more of each."""

Progress = Callable[[int, int], None]
"""Called after each batch with the numbers of finished items and of all items."""


DEVICES = ("cpu", "cuda")
"""Kinds of devices on which models are evaluated."""

_Options = ParamSpec("_Options")
_Result = TypeVar("_Result")
_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
_LOOKING_UP = Lock()


def lock_of(model: nn.Module) -> Any:
    """The lock that threads which hook the modules of `model` wait for.

    Raises:
        InputError: it is no model.
    """
    if not isinstance(model, nn.Module):
        require_stock(model)
    with _LOOKING_UP:
        return _LOCKS.setdefault(model, RLock())


def one_at_a_time(evaluate: Callable[_Options, _Result]) -> Callable[_Options, _Result]:
    """Let threads that evaluate one model wait for each other, since its modules are hooked.

    The model is the argument ``model``; those that patches of ``interventions`` read count, too.
    """
    options_of = signature(evaluate)

    @wraps(evaluate)
    def alone(*options: _Options.args, **named: _Options.kwargs) -> _Result:
        given = options_of.bind(*options, **named).arguments
        sources = [rule.source for rule in rules_of(given.get("interventions", ())) if rule.source]
        models = [given["model"], *(each.model for each in sources if each.model is not None)]
        with ExitStack() as held:
            for model in sorted(set(models), key=id):  # in one order, so that no two threads wait
                held.enter_context(lock_of(model))
            return evaluate(*options, **named)

    return alone


def silent(_done: int, _total: int) -> None:
    """No-op progress callback."""


_UNKNOWN = torch.empty(0, dtype=torch.bool)


@dataclass(frozen=True)
class Results:
    """Tensors of V interventions and their items: the samples, or the requests."""

    def tensors(self) -> dict[str, Tensor]:
        """Name -> tensor (V, items, …) of each result that an engine computes."""
        computed = (each.name for each in fields(self) if each.default is MISSING)
        return {name: getattr(self, name) for name in computed}

    def _rows(self, item: str, first: Sequence[str], names: Sequence[str]) -> Any:
        """A polars frame: a row for each intervention and item; tensors (V, items, S) as lists."""
        polars = import_module("polars")  # only for this: the engine runs without it
        tensors = {name: getattr(self, name) for name in first} | self.tensors()
        count = next(iter(tensors.values())).shape[1]
        rows: dict[str, Any] = {
            "intervention": [name for name in names for _ in range(count)],
            item: [*range(count)] * len(names),
        }
        rows |= {name: tensor.flatten(0, 1).numpy() for name, tensor in tensors.items()}
        return polars.DataFrame(rows).with_columns(
            polars.col(name).arr.to_list() for name, tensor in tensors.items() if tensor.ndim > 2
        )


@dataclass(frozen=True)
class Completions(Results):
    """The results of a model on the suffixes of N samples under V interventions.

    "Teacher-forced" means that the model reads the true suffix; "greedy" that it reads its own
    continuation of the prefix, always exactly S tokens (end-of-text cannot end it early: the
    paper's code sets the minimum and the maximum number of new tokens to S, and so do we).

    Args:
        continuation: (V, N, S) int64, greedy token ids.
        min_margin: (V, N) float32, logits, the smallest top-2 gap on the greedy path.
        teacher_forced: (V, N, S) int64, argmax at each suffix position under the true suffix.
        entropy: (V, N, S) float32, nats, of the distribution at each suffix position; this and all
            fields below are teacher-forced.
        log_prob: (V, N, S) float32, nats, of each token of the true suffix.
        log_prob_top_40: (V, N, S) float32, nats, the same under top-k sampling with k = 40; -inf
            where the rank is above 40.
        rank: (V, N, S) int32, of each token of the true suffix, from 1. Where logits nearly tie,
            rounding may decide the rank, but not `teacher_forced`.
        spread: (V, N, S) float32, nats, the standard deviation of log p of a token drawn from the
            distribution itself.
        exact_match: (V, N) bool, whether the continuation is the whole suffix; set by `complete`.
        interventions: V names; set by `complete`.
    """

    continuation: Tensor
    min_margin: Tensor
    teacher_forced: Tensor
    entropy: Tensor
    log_prob: Tensor
    log_prob_top_40: Tensor
    rank: Tensor
    spread: Tensor
    exact_match: Tensor = _UNKNOWN
    interventions: Sequence[str] = ()

    @property
    def completion_entropy(self) -> Tensor:
        """(V, N) float64, nats, the entropy summed over the suffix (Eq. 5)."""
        return self.entropy.sum(-1, dtype=torch.float64)

    @property
    def suffix_log_prob(self) -> Tensor:
        """(V, N) float64, nats, of the true suffix given the prefix."""
        return self.log_prob.sum(-1, dtype=torch.float64)

    @property
    def bad(self) -> Tensor:
        """(V, N) bool, where logits were not all finite."""
        return self.completion_entropy.isnan() | self.min_margin.isnan()

    def to_polars(self) -> Any:
        """A polars frame: a row for each intervention and sample, results of tokens as lists.

        Its columns are ``intervention``, ``sample`` (from 0), ``exact_match``,
        ``suffix_log_prob``, ``completion_entropy`` and the fields above.
        """
        first = "exact_match", "suffix_log_prob", "completion_entropy"
        return self._rows("sample", first, self.interventions)


@dataclass(frozen=True)
class Likelihoods(Results):
    """The log-likelihood of R continuations, each given its context, under V interventions.

    Args:
        log_prob: (V, R) float64, nats, summed over the continuation's tokens; NaN where logits
            were not all finite.
        is_greedy: (V, R) bool, whether every token of the continuation is the argmax.
        interventions: V names; set by `score`.
    """

    log_prob: Tensor
    is_greedy: Tensor
    interventions: Sequence[str] = ()

    @property
    def bad(self) -> Tensor:
        """(V, R) bool, where logits were not all finite."""
        return self.log_prob.isnan()

    def to_polars(self) -> Any:
        """A polars frame: ``intervention``, ``request`` (from 0), ``log_prob``, ``is_greedy``."""
        return self._rows("request", (), self.interventions)


def require_completable(model: PreTrainedModel, tokens: Tensor, suffix_length: int) -> None:
    """Raise unless the model can complete `tokens` (N, P+S); see `require_usable`, `require_rows`.

    Raises:
        InputError: an unsupported model, or other tokens.
        ValueError: the model is in training mode, or P or S would be 0.
    """
    require_usable(model)
    require_rows(model, tokens, "the tokens of samples")
    if not 0 < suffix_length < tokens.shape[1]:
        raise ValueError(
            f"a suffix of {suffix_length} in rows of {tokens.shape[1]}: prefix and suffix need a "
            "token each"
        )


def require_rows(model: PreTrainedModel, tokens: Tensor, what: str) -> None:
    """Raise unless `tokens`, named `what` in errors, are token ids that the model can read.

    They are (N, T), N and T at least 1. The context may be T - 1, since the last token of a sample
    is not read.
    """
    vocabulary = model.config.get_text_config().vocab_size
    kind = getattr(tokens, "dtype", type(tokens).__name__)
    shape = tuple(getattr(tokens, "shape", ()))
    got = f"{kind} of shape {shape}" if shape else str(kind)
    expected = (
        f"a torch.int64 tensor (samples, tokens) of ids from 0 to {vocabulary - 1}, of one sample "
        "and token or more"
    )
    remedy = "make them with the model's own tokenizer, return_tensors='pt'"
    if kind in (torch.int64, torch.int32) and len(shape) == 2 and all(shape):
        longest = stated_length(model.config)
        outside = ((tokens < 0) | (tokens >= vocabulary)).nonzero()
        if len(outside):
            sample, position = outside[0].tolist()
            got = f"token {int(tokens[sample, position])} in sample {sample} at position {position}"
        elif longest and shape[1] - 1 > longest:
            got = f"rows of {shape[1]} tokens"
            expected = f"at most {longest + 1}: the model's context is {longest}"
            remedy = "shorten the rows"
        else:
            return
    raise bad_input(what, got, expected, remedy)


def require_scorable(model: PreTrainedModel, requests: Sequence[Request], max_length: int) -> None:
    """Raise unless the model can score `requests`.

    Raises:
        InputError: a request with an empty side, a continuation longer than `max_length`, or what
            is no token id.
    """
    vocabulary = model.config.get_text_config().vocab_size
    problems = []
    for r, (context, continuation) in enumerate(requests):
        ids = [*context, *continuation]
        odd = [x for x in ids if not isinstance(x, Integral) or not 0 <= x < vocabulary]
        if not (len(context) and 1 <= len(continuation) <= max_length):
            got = f"{len(context)} tokens of context, {len(continuation)} of continuation"
        elif odd:
            got = f"{shorten(odd[0])} among its tokens"
        else:
            continue
        problems.append(
            Problem(
                what=f"request {r}",
                got=got,
                expected=f"lists of token ids from 0 to {vocabulary - 1}: at least 1 of context, "
                f"and 1 to {max_length} of continuation",
                remedy="leave out or shorten the document it comes from; of a tensor: tolist()",
            )
        )
    if problems:
        raise InputError(*problems)


def require_usable(model: PreTrainedModel) -> None:
    """Raise for a model in training mode, on another device, or as `require_stock` does."""
    require_stock(model)
    if model.device.type not in DEVICES:
        raise bad_input(
            f"the device of {type(model).__name__}",
            str(model.device),
            " or ".join(DEVICES),
            "move it: model.to('cpu')",
        )
    if model.training:
        raise ValueError("the model is in training mode, where dropout acts; call model.eval()")


def forbidden_tokens(model: Any) -> Tensor:
    """The ids (E,) that are never generated: the model's end-of-text tokens, on its device.

    Ids outside of the vocabulary are ignored, with a warning.
    """
    stop = model.generation_config.eos_token_id
    listed = [] if stop is None else [stop] if isinstance(stop, int) else list(stop)
    vocabulary = model.get_output_embeddings().weight.shape[0]
    valid = [token for token in listed if 0 <= token < vocabulary]
    if odd := sorted(set(listed) - set(valid)):
        warnings.warn(
            f"eos_token_id {odd} is outside of the vocabulary of {vocabulary}: it is ignored",
            stacklevel=3,
        )
    return torch.tensor(valid, dtype=torch.int64, device=model.device)
