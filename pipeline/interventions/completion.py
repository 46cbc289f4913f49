"""The engine for memorization: what a model does with suffixes, under all interventions at once.

Shapes: V interventions, N samples, P prefix and S suffix tokens, G branches, B samples in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions import decoding
from pipeline.interventions.evaluation import (
    Completions,
    Progress,
    forbidden_tokens,
    not_finite,
    require_completable,
    silent,
)
from pipeline.interventions.guard import proven
from pipeline.interventions.hooks import Means, require_editable
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal, in_batches
from pipeline.interventions.memory import token_budget as default_budget
from pipeline.interventions.near_ties import Alone, rounding_error
from pipeline.interventions.plan import Plan, plan
from pipeline.interventions.readout import read
from pipeline.interventions.wavefront import Kept, means_of, run
from pipeline.models.sites import Anatomy


@torch.inference_mode()
def complete(
    model: PreTrainedModel,
    tokens: Tensor,
    suffix_length: int,
    interventions: Sequence[Intervention],
    batch_size: int | None = None,
    progress: Progress = silent,
    *,
    decode: bool | Sequence[bool] = True,
    calibration_tokens: Tensor | None = None,
    token_budget: int | None = None,
    journal: Journal | None = None,
    first: int = 0,
) -> Completions:
    """What the model does with each sample's suffix, under each intervention.

    A continuation always has S tokens: the end-of-text tokens of `model.generation_config` are
    never generated. In everything teacher-forced they stay in the vocabulary.

    Args:
        model: a stock causal language model in evaluation mode, on any device.
        tokens: (N, P+S) int64; P and S at least 1.
        suffix_length: S.
        interventions: V of them.
        batch_size: samples at a time, at most; None: what the token budget allows.
        progress: told after each batch.
        decode: whether to generate beyond the first wrong token, for all samples or each of them.
            Without, all but the rest of these continuations is known just the same.
        calibration_tokens: (C, T) int64, over which the edits ``mean`` and ``mlp-mean`` take their
            means; None: `tokens`.
        token_budget: tokens at a time, counted once a branch; None: from the memory that is free.
        journal: is told of batches halved and of near ties.
        first: what the first of `tokens` is called in errors.

    Returns:
        On the CPU, in the order of `interventions` and `tokens`.

    Raises:
        InputError: an unsupported model, a block beyond the last, or NaN or infinity.
        ValueError: the model is in training mode, or P or S would be 0.
    """
    require_completable(model, tokens, suffix_length)
    known = proven(model)
    trie = plan(interventions, len(known.sites))
    require_editable(known, interventions)
    wanted = torch.tensor([decode] * len(tokens) if isinstance(decode, bool) else list(decode))
    journal = journal or Journal()
    means = means_of(
        known, interventions, tokens if calibration_tokens is None else calibration_tokens
    )
    tolerance = rounding_error(known, tokens[:1], trie, means, journal)
    batches = _Batches(
        known, tokens, suffix_length, interventions, trie, wanted.bool(), forbidden_tokens(model),
        means, tolerance, journal, first,
    )  # fmt: skip

    def work(numbers: range) -> Completions:
        made = batches.work(numbers)
        progress(numbers.stop, len(tokens))
        return made

    budget = token_budget or default_budget(known, trie, caching=bool(wanted.any()))
    cost = trie.branches * (tokens.shape[1] - 1)
    parts = in_batches([cost] * len(tokens), budget, batch_size, work, journal)
    ends = torch.tensor(trie.carrier[-1])
    names = [each.name for each in fields(Completions)]
    return Completions(
        **{name: torch.cat([getattr(part, name) for part in parts], 1)[ends] for name in names}
    )


class _Batches:
    """A model and its interventions at work on batches of samples."""

    def __init__(
        self,
        known: Anatomy,
        tokens: Tensor,
        suffix_length: int,
        interventions: Sequence[Intervention],
        trie: Plan,
        wanted: Tensor,
        forbidden: Tensor,
        means: Means,
        tolerance: float,
        journal: Journal,
        first: int,
    ) -> None:
        self.known, self.tokens, self.length = known, tokens, suffix_length
        self.interventions, self.trie, self.wanted = interventions, trie, wanted
        self.forbidden, self.means, self.first = forbidden, means, first
        self.tolerance, self.journal = tolerance, journal

    def work(self, numbers: range) -> Completions:
        """By branch: teacher-forced pass, readout, and decoding of the rows that went wrong."""
        device = self.known.model.device
        batch = self.tokens[numbers.start : numbers.stop].to(device)
        wanted = self.wanted[numbers.start : numbers.stop].to(device)
        length = self.length
        suffix = batch[:, -length:]
        shape = (self.trie.branches, len(batch), length)
        cache = Kept() if wanted.any() else None
        states = run(
            self.known, batch[:, :-1], self.trie, cache=cache, means=self.means, last=length
        )
        said = read(
            self.known,
            states[:, :, -length:].flatten(0, 2),
            suffix.expand(shape).flatten(),
            self.forbidden,
        )
        del states
        token, margin = said.allowed.token.view(shape), said.allowed.margin.view(shape)
        entropy = said.entropy.view(shape)
        self._require_finite(entropy, numbers, batch)

        # Up to and including its first wrong choice a row's greedy path is the teacher-forced one.
        mismatch = (token == suffix).long().cumprod(-1).sum(-1)  # S where there is none
        steps = torch.arange(length, device=device)
        beyond = steps > mismatch[..., None]
        token, margin = token.masked_fill(beyond, -1), margin.masked_fill(beyond, torch.inf)
        branch, sample = ((mismatch < length - 1) & wanted).nonzero().unbind(1)
        if len(branch) and cache is not None:
            first, order = mismatch[branch, sample].sort(stable=True)
            branch, sample = branch[order], sample[order]
            start = decoding.Start(branch, sample, first, token[branch, sample, first])
            later = decoding.decode(
                self.known, self.trie, cache, start, batch.shape[1] - length, length,
                self.forbidden, self.means,
            )  # fmt: skip
            fresh = beyond[branch, sample]
            token[branch, sample] = later.token.where(fresh, token[branch, sample])
            margin[branch, sample] = later.margin.where(fresh, margin[branch, sample])
            self._require_finite(margin, numbers, batch, token)
        forced = said.any.token.view(shape)
        self._settle(batch, wanted, token, margin, forced, said.any.margin.view(shape))
        return Completions(
            continuation=token.cpu(),
            teacher_forced=forced.cpu(),
            completion_entropy=entropy.sum(-1, dtype=torch.float64).cpu(),
            suffix_log_prob=said.log_prob.view(shape).sum(-1, dtype=torch.float64).cpu(),
            min_margin=margin.amin(-1).cpu(),
        )

    def _settle(
        self, batch: Tensor, wanted: Tensor, token: Tensor, margin: Tensor, forced: Tensor,
        forced_margin: Tensor,
    ) -> None:  # fmt: skip
        """Make near ties among the choices (G, B, S) again, in place; each row alone."""
        close, forced_close = margin <= self.tolerance, forced_margin <= self.tolerance
        self.journal.near_ties += int(close.sum())
        for branch, i in (close | forced_close).any(-1).nonzero().tolist():
            intervention = self.interventions[self.trie.ending_in(branch)]
            how = (self.length, intervention, self.forbidden, self.means)
            row = Alone(self.known, batch[i], *how)
            if forced_close[branch, i].any():
                forced[branch, i] = row.said().any.token
            if close[branch, i].any():
                before = token[branch, i].clone()
                token[branch, i] = row.continuation(before) if wanted[i] else row.path()
                self.journal.decided_again += int((token[branch, i] != before).any())

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
            row = torch.cat([row[: -self.length], written[branch, i].clamp_min(0)])
        raise not_finite(
            self.known,
            self.interventions[self.trie.ending_in(branch)],
            row[None, :-1],
            f"sample {self.first + numbers[i]}",
            self.means,
        )
