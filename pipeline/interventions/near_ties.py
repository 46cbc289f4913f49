"""Settles choices between two logits that differ by no more than rounding.

The last digits of a row's logits depend on its batch, so where two logits nearly tie, the choice
could depend on the batch. The threshold is measured: a sample is read twice, once with a relative
error of one unit of rounding added to the stream before every block. Choices within that error are
recomputed independently of the batch: each row alone. In half precision they are too many for that;
there `completion` first recomputes these rows in float32, together.

Source of the measurement: Monte Carlo arithmetic, Parker, Pierce and Eggert, 2000.
"""

from typing import Any

import torch
from torch import Tensor, nn

from pipeline.interventions.caches import Kept
from pipeline.interventions.decoding import Start, decode
from pipeline.interventions.readout import Readout, pieces
from pipeline.interventions.wavefront import Engine, run, teacher_forced
from pipeline.models.modules import attached, states_in

_SAFETY = 8.0
_TOKENS = 16


def rounding_error(engine: Engine, tokens: Tensor) -> float:
    """The margin (logits) up to which a choice could depend on the batch; noted in the journal.

    The last 16 tokens of the first row of `tokens` (N, T) are read; 0 if there is none.
    """
    if not len(tokens):
        return 0.0
    known = engine.known
    twice = tokens[0, -_TOKENS:].expand(2, -1).to(engine.device)
    generator = torch.Generator().manual_seed(0)

    def disturb(_module: nn.Module, args: Any, kwargs: Any) -> None:
        hidden = states_in(args, kwargs)
        unit = torch.finfo(hidden.dtype).eps
        error = torch.rand(hidden[1::2].shape, generator=generator).to(hidden) * 2 - 1
        hidden[1::2] += hidden[1::2] * error * unit

    hooks = (
        site.block.register_forward_pre_hook(disturb, with_kwargs=True) for site in known.sites
    )
    with attached(hooks):  # registered first, so that appended rows are disturbed as well
        states = run(engine, twice, start=twice.shape[1] // 2)[:, :, -1]
    differences = [
        (logits[::2] - logits[1::2]).abs().nan_to_num(0, 0).amax()  # 0 where they overflow
        for states_of in torch.split(states, 64)
        for _, logits in pieces(known, states_of.flatten(0, 1))
    ]
    tolerance = _SAFETY * float(torch.stack(differences).amax())
    engine.journal.tolerance = max(engine.journal.tolerance, tolerance)
    return tolerance


class Alone:
    """A row of tokens (P + S,) in a branch of the engine, in a batch of its own.

    It lies on the model's device; `length` is S.
    """

    def __init__(self, engine: Engine, branch: int, row: Tensor, length: int) -> None:
        self.engine = engine.only([engine.trie.ending_in(branch)])
        self.row, self.length = row, length

    def readout(self, suffix: Tensor | None = None, cache: Kept | None = None) -> Readout:
        """The readout (1, 1, S) of the suffix (S,), the row's own or another."""
        row = self.row if suffix is None else torch.cat([self.row[: -self.length], suffix])
        return teacher_forced(self.engine, row[None], self.length, cache=cache)

    def argmax(self) -> Tensor:
        """The likeliest tokens (S,) given the true suffix."""
        return self.readout().token[0, 0]

    def path(self) -> Tensor:
        """The greedy path (S,) up to its first wrong token, then -1."""
        token = self.readout().allowed_token[0, 0]
        wrong = (token != self.row[-self.length :]).long().cumsum(-1)
        return token.masked_fill(wrong.cumsum(-1) > 1, -1)

    def continuation(self, draft: Tensor) -> Tensor:
        """The greedy continuation (S,); a nearly correct draft saves generating it."""
        settled = draft.clone()
        while True:  # terminates, since each round settles one more token
            cache = Kept()
            token = self.readout(settled, cache).allowed_token[0, 0]
            other = (token != settled).nonzero()[:, 0]
            if not len(other):
                return settled
            at = other[:1]
            settled[at] = token[at]
            start = Start(torch.zeros_like(at), torch.zeros_like(at), at, settled[None])
            prefix_length = len(self.row) - self.length
            settled = decode(self.engine, cache, start, prefix_length).token[0]
