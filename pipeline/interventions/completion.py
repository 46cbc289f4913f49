"""The engine for memorization: completes suffixes under all interventions at once.

Shapes: V interventions, N samples, P prefix and S suffix tokens, G branches, B samples in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions import decoding
from pipeline.interventions.evaluation import (
    Completions,
    Progress,
    forbidden_tokens,
    require_completable,
    silent,
)
from pipeline.interventions.guard import proven
from pipeline.interventions.hooks import Means, require_editable
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal, in_batches
from pipeline.interventions.memory import token_budget as default_budget
from pipeline.interventions.near_ties import Alone, rounding_error
from pipeline.interventions.overflow import again_in_single, not_finite
from pipeline.interventions.readout import read
from pipeline.interventions.trie import Trie, build_trie
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
    """Read and continue each sample under each intervention.

    A continuation always has S tokens: the end-of-text tokens of `model.generation_config` are
    never generated. In all teacher-forced results they stay in the vocabulary.

    Args:
        model: a stock causal language model in evaluation mode, on any device.
        tokens: (N, P+S) int64; P and S at least 1.
        suffix_length: S.
        interventions: V of them.
        batch_size: largest number of samples at a time; None: set by the token budget.
        progress: called after each batch.
        decode: whether to generate beyond the first wrong token, for all samples or each of them.
            It affects only the rest of the continuation after that token.
        calibration_tokens: (C, T) int64, over which the edits ``mean`` and ``mlp-mean`` take their
            means; None: `tokens`.
        token_budget: tokens at a time, counted once per branch; None: computed from the free
            memory.
        journal: records halved batches, near ties and rows that overflowed.
        first: the number of the first of `tokens` in errors.

    Returns:
        On the CPU, in the order of `interventions` and `tokens`.

    Raises:
        InputError: an unsupported model, a block beyond the last, or NaN or infinity in float32.
        ValueError: the model is in training mode, or P or S would be 0.
    """
    require_completable(model, tokens, suffix_length)
    known = proven(model)
    trie = build_trie(interventions, len(known.sites))
    require_editable(known, interventions)
    wanted = torch.tensor([decode] * len(tokens) if isinstance(decode, bool) else list(decode))
    journal = journal or Journal()
    calibration = tokens if calibration_tokens is None else calibration_tokens
    means = means_of(known, interventions, calibration)
    batches = _Batches(
        known, tokens, suffix_length, interventions, trie, wanted.bool(), forbidden_tokens(model),
        means, journal, batch_size, token_budget,
    )  # fmt: skip
    found = batches.complete(progress)
    again_in_single(model, found, lambda v, n: batches.some(v, n).complete(), journal)
    if found.bad.any():
        v, n = found.bad.nonzero()[0].tolist()
        row = tokens[n]
        if not found.completion_entropy[v, n].isnan():  # the overflow comes from its continuation
            row = torch.cat([row[:-suffix_length], found.continuation[v, n]])
        raise not_finite(known, interventions[v], row[:-1], f"sample {first + n}", means)
    return found


@dataclass(frozen=True)
class _Batches:
    """Completes batches of samples with a model and its interventions, for `complete`."""

    known: Anatomy
    tokens: Tensor
    length: int
    interventions: Sequence[Intervention]
    trie: Trie
    wanted: Tensor
    forbidden: Tensor
    means: Means
    journal: Journal
    batch_size: int | None
    token_budget: int | None
    in_single: bool = False

    def complete(self, progress: Progress = silent) -> Completions:
        """All samples, in as many batches as memory requires."""

        def work(numbers: range) -> Completions:
            made = self.work(numbers, tolerance)
            progress(numbers.stop, len(self.tokens))
            return made

        tolerance = rounding_error(self.known, self.tokens[:1], self.trie, self.means, self.journal)
        budget = self.token_budget or default_budget(
            self.known, self.trie, self.tokens.shape[1], caching=bool(self.wanted.any()),
            in_single=self.in_single,
        )  # fmt: skip
        cost = self.trie.branches * (self.tokens.shape[1] - 1)
        costs = [cost] * len(self.tokens)
        parts = in_batches(costs, budget, self.batch_size, work, self.journal)
        ends = torch.tensor(self.trie.carrier[-1])
        names = [each.name for each in fields(Completions)]
        return Completions(
            **{name: torch.cat([getattr(part, name) for part in parts], 1)[ends] for name in names}
        )

    def some(self, listed: list[int], numbers: list[int]) -> _Batches:
        """Some interventions on some samples, for a model that computes in float32."""
        interventions = [self.interventions[v] for v in listed]
        return replace(
            self,
            interventions=interventions,
            trie=build_trie(interventions, len(self.known.sites)),
            tokens=self.tokens[numbers],
            wanted=self.wanted[numbers],
            token_budget=self.token_budget and max(1, self.token_budget // 2),
            in_single=True,
        )

    def work(self, numbers: range, tolerance: float) -> Completions:
        """By branch: teacher-forced pass, readout, and decoding of rows with a wrong choice."""
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
            detailed=True,
        )
        del states
        assert said.detail is not None  # noqa: S101  asked for above
        token, margin = said.allowed.token.view(shape), said.allowed.margin.view(shape)

        # Up to and including its first wrong choice a row's greedy path is the teacher-forced one.
        mismatch = (token == suffix).long().cumprod(-1).sum(-1)  # S without a mismatch
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
        forced = said.any.token.view(shape)
        close = margin <= tolerance, said.any.margin.view(shape) <= tolerance
        self._settle(batch, wanted, token, forced, *close)
        tokenwise = {
            "teacher_forced": forced,
            "entropy": said.entropy,
            "log_prob": said.log_prob,
            "log_prob_top_40": said.detail.log_prob_top,
            "rank": said.detail.rank,
            "spread": said.detail.spread,
        }
        return Completions(
            continuation=token.cpu(),
            min_margin=margin.amin(-1).cpu(),
            **{name: each.view(shape).cpu() for name, each in tokenwise.items()},
        )

    def _settle(
        self, batch: Tensor, wanted: Tensor, token: Tensor, forced: Tensor, close: Tensor,
        forced_close: Tensor,
    ) -> None:  # fmt: skip
        """Recompute near ties among the choices (G, B, S), in place, each row alone."""
        decided_again = 0
        for branch, i in (close | forced_close).any(-1).nonzero().tolist():
            intervention = self.interventions[self.trie.ending_in(branch)]
            how = (self.length, intervention, self.forbidden, self.means)
            row = Alone(self.known, batch[i], *how)
            if forced_close[branch, i].any():
                forced[branch, i] = row.said().any.token
            if close[branch, i].any():
                before = token[branch, i].clone()
                token[branch, i] = row.continuation(before) if wanted[i] else row.path()
                decided_again += int((token[branch, i] != before).any())
        # last, since a batch is repeated where memory runs out
        self.journal.near_ties += int(close.sum())
        self.journal.decided_again += decided_again
