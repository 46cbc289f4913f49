"""Settles choices between two logits that differ by no more than rounding.

The last digits of a row's logits depend on its batch, so where two logits nearly tie, the choice
could depend on the batch. The threshold is measured: a sample is read twice, once with a relative
error of one unit of rounding added to the stream before every block. Choices within that error are
recomputed independently of the batch: each row alone.

Source of the measurement: Monte Carlo arithmetic, Parker, Pierce and Eggert, 2000.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.interventions.decoding import Start, decode
from pipeline.interventions.hooks import Means
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal
from pipeline.interventions.readout import Readout, pieces, read
from pipeline.interventions.trie import Trie, build_trie
from pipeline.interventions.wavefront import Kept, run
from pipeline.models.sites import Anatomy, states_in

_SAFETY = 8.0
_TOKENS = 16


def rounding_error(
    known: Anatomy, tokens: Tensor, trie: Trie, means: Means, journal: Journal
) -> float:
    """The margin (logits) up to which a choice could depend on the batch.

    Args:
        known: of the model.
        tokens: (N, T) int64; the last 16 tokens of the first row are read.
        trie: of the interventions.
        means: for edits that need them.
        journal: records the result.

    Returns:
        0 where there are no tokens.
    """
    if not len(tokens):
        return 0.0
    twice = tokens[0, -_TOKENS:].expand(2, -1).to(known.model.device)
    generator = torch.Generator().manual_seed(0)

    def disturb(_module: nn.Module, args: Any, kwargs: Any) -> None:
        hidden = states_in(args, kwargs)
        unit = torch.finfo(hidden.dtype).eps
        error = torch.rand(hidden[1::2].shape, generator=generator).to(hidden) * 2 - 1
        hidden[1::2] += hidden[1::2] * error * unit

    with ExitStack() as stack:
        for site in known.sites:  # registered first, so that appended rows are disturbed as well
            hook = site.block.register_forward_pre_hook(disturb, with_kwargs=True)
            stack.callback(hook.remove)
        states = run(known, twice, trie, means=means)[:, :, -1]
    differences = [
        (logits[::2] - logits[1::2]).abs().nan_to_num(0, 0).amax()  # 0 where they overflow
        for states_of in torch.split(states, 64)
        for _, logits in pieces(known, states_of.flatten(0, 1))
    ]
    tolerance = _SAFETY * float(torch.stack(differences).amax())
    journal.tolerance = max(journal.tolerance, tolerance)
    return tolerance


class Alone:
    """A row of tokens under one intervention, in a batch of its own.

    Args:
        known: of the model.
        row: (P + S,) int64, on the model's device.
        length: S.
        intervention: the only one.
        forbidden: (E,) int64, ids that are never generated.
        means: for edits that need them.
    """

    def __init__(
        self, known: Anatomy, row: Tensor, length: int, intervention: Intervention,
        forbidden: Tensor, means: Means,
    ) -> None:  # fmt: skip
        self.known, self.row, self.length = known, row, length
        self.forbidden, self.means = forbidden, means
        self.trie = build_trie([intervention], len(known.sites))

    def said(self, suffix: Tensor | None = None, cache: Kept | None = None) -> Readout:
        """The readout at the positions of the suffix (S,), the row's own or another."""
        row = self.row if suffix is None else torch.cat([self.row[: -self.length], suffix])
        states = run(
            self.known, row[None, :-1], self.trie, cache=cache, means=self.means, last=self.length
        )
        return read(self.known, states[0, 0, -self.length :], row[-self.length :], self.forbidden)

    def path(self) -> Tensor:
        """The greedy path (S,) up to its first wrong token, then -1."""
        token, suffix = self.said().allowed.token, self.row[-self.length :]
        wrong = (token != suffix).long().cumsum(-1)
        return token.masked_fill(wrong.cumsum(-1) > 1, -1)

    def continuation(self, draft: Tensor) -> Tensor:
        """The greedy continuation (S,); a nearly correct draft saves generating it."""
        own = draft.clone()
        while True:  # terminates, since each round settles one more token
            cache = Kept()
            token = self.said(own, cache).allowed.token
            other = (token != own).nonzero()[:, 0]
            if not len(other):
                return own
            at = other[:1]
            own[at] = token[at]
            if int(at) < self.length - 1:
                zero = torch.zeros_like(at)
                start = Start(zero, zero, at, token[at])
                prefix = len(self.row) - self.length
                later = decode(
                    self.known, self.trie, cache, start, prefix, self.length, self.forbidden,
                    self.means,
                )  # fmt: skip
                own[int(at) + 1 :] = later.token[0, int(at) + 1 :]
