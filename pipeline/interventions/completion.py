"""The engine for memorization: what a model does with suffixes, under all interventions at once.

It gives what `reference.complete` gives. Shapes: V interventions, N samples, P prefix and S suffix
tokens, G branches, B samples in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions import precision
from pipeline.interventions.decoding import Start, decode
from pipeline.interventions.evaluation import Completions, Progress, require_completable, silent
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal, default_budget, in_batches
from pipeline.interventions.plan import plan
from pipeline.interventions.readout import read
from pipeline.interventions.wavefront import Sheet, run
from pipeline.models.decoder import Decoder
from pipeline.models.families import adapt

_CALIBRATION_SAMPLES = 2


@torch.inference_mode()
def complete(
    model: PreTrainedModel,
    tokens: Tensor,
    suffix_length: int,
    interventions: Sequence[Intervention],
    batch_size: int | None = None,
    progress: Progress = silent,
    *,
    token_budget: int | None = None,
    journal: Journal | None = None,
    calibration: precision.Calibration | None = None,
    first: int = 0,
) -> Completions:
    """What the model does with each sample's suffix, under each intervention.

    As in `reference.complete`, the end-of-text tokens of `model.generation_config` are never
    generated; in everything teacher-forced they stay in the vocabulary.

    Args:
        model: in evaluation mode, of a family in `pipeline.models.families`.
        tokens: (N, P+S) int64; P and S at least 1.
        suffix_length: S.
        interventions: V of them.
        batch_size: samples at a time, at most; None: what the token budget allows.
        progress: told after each batch.
        token_budget: tokens at a time, counted once a branch; None: from the memory that is free.
        journal: is told of batches halved and of choices made again.
        calibration: what `calibrate` gave for all samples, where these are some of them.
        first: what the first of `tokens` is called in errors.

    Returns:
        On the CPU, in the order of `interventions` and `tokens`. No token in it depends on the
        batch: choices within the tolerance of `precision` are made again in a better precision.

    Raises:
        InputError: an unsupported model, a block beyond the last, or NaN or infinity.
        ValueError: the model is in training mode, or P or S would be 0.
    """
    require_completable(model, tokens, suffix_length)
    stop = model.generation_config.eos_token_id
    forbidden = [] if stop is None else [stop] if isinstance(stop, int) else list(stop)
    decoder = adapt(model)
    task = _Task(
        suffix_length=suffix_length,
        forbidden=torch.tensor(forbidden, dtype=torch.int64, device=decoder.device),
        batch_size=batch_size,
        token_budget=token_budget,
        journal=journal or Journal(),
        calibration=calibration or calibrate(model, tokens, suffix_length, interventions),
    )
    samples = range(first, first + len(tokens))
    return _complete(decoder, tokens, samples, interventions, task, progress)


def calibrate(
    model: PreTrainedModel,
    tokens: Tensor,
    suffix_length: int,
    interventions: Sequence[Intervention],
) -> precision.Calibration:
    """What the calls of `complete` for parts of the samples share, so that it is measured once.

    Args:
        model: as for `complete`, and so are the others.
        tokens: of all samples.
        suffix_length: likewise.
        interventions: likewise.
    """
    decoder = adapt(model)
    few = tokens[:_CALIBRATION_SAMPLES, :-1].to(decoder.device)
    trie = plan(interventions, len(decoder.blocks))
    return precision.Calibration(Sheet.plain(few, suffix_length), trie)


@dataclass(frozen=True)
class _Task:
    """What stays the same when some rows are computed again; as in `complete`."""

    suffix_length: int
    forbidden: Tensor
    batch_size: int | None
    token_budget: int | None
    journal: Journal
    calibration: precision.Calibration


def _complete(
    decoder: Decoder,
    tokens: Tensor,
    samples: Sequence[int],
    interventions: Sequence[Intervention],
    task: _Task,
    progress: Progress,
) -> Completions:
    """`complete` for a decoder; row i of `tokens` is called sample ``samples[i]`` in errors."""
    batches = _Batches(decoder, tokens, samples, interventions, task)
    trie = batches.plan

    def work(numbers: range) -> _Rows:
        rows = batches.work(numbers)
        progress(numbers.stop, len(tokens))
        return rows

    budget = task.token_budget or default_budget(decoder, trie, decoding=True)
    cost = trie.branches * (tokens.shape[1] - 1)
    parts = in_batches([cost] * len(tokens), budget, task.batch_size, work, task.journal)
    ends = torch.tensor(trie.carrier[-1])
    joined = _Rows(*(torch.cat(each, 1)[ends] for each in zip(*map(_values, parts), strict=True)))
    return _settled(decoder, tokens, samples, interventions, task, joined)


@dataclass(frozen=True)
class _Rows:
    """The fields of `Completions`, by branch rather than intervention, and `narrowest`.

    Args:
        narrowest: (G, B) float32, the smallest margin of any choice, teacher-forced or greedy.
    """

    continuation: Tensor
    teacher_forced: Tensor
    completion_entropy: Tensor
    suffix_log_prob: Tensor
    min_margin: Tensor
    narrowest: Tensor


def _values(rows: _Rows) -> tuple[Tensor, ...]:
    return tuple(getattr(rows, each.name) for each in fields(rows))


class _Batches:
    """A model and its interventions at work on batches of samples."""

    def __init__(
        self,
        decoder: Decoder,
        tokens: Tensor,
        samples: Sequence[int],
        interventions: Sequence[Intervention],
        task: _Task,
    ) -> None:
        self.decoder, self.tokens, self.samples = decoder, tokens, samples
        self.interventions, self.task = interventions, task
        self.plan = plan(interventions, len(decoder.blocks))

    def work(self, numbers: range) -> _Rows:
        """Teacher-forced pass, readout, and decoding of the rows that went wrong."""
        batch = self.tokens[numbers.start : numbers.stop].to(self.decoder.device)
        length = self.task.suffix_length
        suffix = batch[:, -length:]
        shape = (self.plan.branches, len(batch), length)
        front = run(self.decoder, Sheet.plain(batch[:, :-1], length), self.plan, keep_cache=True)
        said = read(
            self.decoder,
            front.states.flatten(0, 2),
            suffix.expand(shape).flatten(),
            self.task.forbidden,
        )
        token, margin = said.allowed.token.view(shape), said.allowed.margin.view(shape)
        entropy, forced_margin = said.entropy.view(shape), said.any.margin.view(shape)
        self._require_finite(entropy + forced_margin, numbers, batch)

        # Up to and including its first wrong choice a row's greedy path is the teacher-forced one.
        mismatch = (token == suffix).long().cumprod(-1).sum(-1)  # S where there is none
        steps = torch.arange(length, device=token.device)
        margin = margin.where(steps <= mismatch[..., None], torch.inf)
        branch, sample = (mismatch < length - 1).nonzero().unbind(1)
        if len(branch):
            first, order = mismatch[branch, sample].sort(stable=True)
            branch, sample = branch[order], sample[order]
            start = Start(branch, sample, first, token[branch, sample, first])
            prefix_length = batch.shape[1] - length
            later = decode(
                self.decoder, self.plan, front.cache, start, prefix_length, length,
                self.task.forbidden,
            )  # fmt: skip
            fresh = steps > first[:, None]
            token[branch, sample] = later.token.where(fresh, token[branch, sample])
            margin[branch, sample] = later.margin.where(fresh, margin[branch, sample])
            self._require_finite(margin, numbers, batch, token)
        rows = _Rows(
            continuation=token,
            teacher_forced=said.any.token.view(shape),
            completion_entropy=entropy.sum(-1, dtype=torch.float64),
            suffix_log_prob=said.log_prob.view(shape).sum(-1, dtype=torch.float64),
            min_margin=margin.amin(-1),
            narrowest=torch.minimum(margin, forced_margin).amin(-1),
        )
        return _Rows(*(each.cpu() for each in _values(rows)))

    def _require_finite(
        self, numbers_said: Tensor, numbers: range, batch: Tensor, written: Tensor | None = None
    ) -> None:
        """Raise for the first NaN in (G, B, S); `written` (G, B, S) is what rows read by then."""
        bad = numbers_said.isnan().any(-1).nonzero()
        if not len(bad):
            return
        branch, i = bad[0].tolist()
        row = batch[i]
        if written is not None:
            row = torch.cat([row[: -self.task.suffix_length], written[branch, i]])
        raise precision.not_finite(
            self.decoder,
            self.interventions[self.plan.carrier[-1].index(branch)],
            Sheet.plain(row[None, :-1], self.task.suffix_length),
            f"sample {self.samples[numbers[i]]}",
        )


def _settled(
    decoder: Decoder,
    tokens: Tensor,
    samples: Sequence[int],
    interventions: Sequence[Intervention],
    task: _Task,
    rows: _Rows,
) -> Completions:
    """The rows (by intervention), those with too close a choice computed again."""
    judge = precision.better(decoder)
    if judge is not None and len(tokens):
        tolerance = task.calibration.tolerance(decoder, judge)
        task.journal.tolerance = max(task.journal.tolerance, tolerance)
        for v, intervention in enumerate(interventions):
            unsure = (rows.narrowest[v] <= tolerance).nonzero()[:, 0]
            if not len(unsure):
                continue
            task.journal.recomputed += len(unsure)
            names = [samples[i] for i in unsure.tolist()]
            again = _complete(judge, tokens[unsure], names, [intervention], task, silent)
            # what is continuous keeps the working precision, the same for all rows
            rows.continuation[v, unsure] = again.continuation[0]
            rows.teacher_forced[v, unsure] = again.teacher_forced[0]
            rows.min_margin[v, unsure] = again.min_margin[0]
    return Completions(*_values(rows)[:-1])
