"""Rows of tokens that are to be forgotten or kept, and what a model makes of them.

Shapes: N rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from torch import Tensor
from transformers import PreTrainedModel

BATCH = 64
"""Rows of one forward pass."""

Write = Callable[[PreTrainedModel, float], None]
"""Writes a dose of an edit into a copy of the model that it was prepared on."""


@dataclass(frozen=True)
class Rows:
    """Texts of equal length, (N, T) int64, scored from token `first`, 1 or later, on."""

    tokens: Tensor
    first: int

    def __len__(self) -> int:
        """N."""
        return len(self.tokens)

    def __getitem__(self, chosen: Tensor | slice) -> Rows:
        """Some of the rows."""
        return Rows(self.tokens[chosen], self.first)

    @property
    def scored(self) -> int:
        """The number of scored tokens."""
        return len(self) * (self.tokens.shape[1] - self.first)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """The numbers of at most `count` rows at random, with repetition."""
        return torch.randint(len(self), (min(count, len(self)),), generator=generator)

    def batches(self) -> Iterator[Rows]:
        """The rows in parts of at most `BATCH`."""
        return (Rows(tokens, self.first) for tokens in torch.split(self.tokens, BATCH))


def rows_of(samples: pl.DataFrame) -> Rows:
    """Samples of one prefix length, schema `SAMPLES`."""
    tokens = torch.tensor(samples["tokens"].to_list(), dtype=torch.int64)
    return Rows(tokens, int(samples["prefix_length"][0]))


def logits(model: Callable[..., Any], rows: Rows) -> Tensor:
    """(N, T - first, V) float32 logits of the scored tokens; keeps gradients."""
    made: Tensor = model(input_ids=rows.tokens, use_cache=False).logits
    return made[:, rows.first - 1 : -1].float()


def log_probs(model: Callable[..., Any], rows: Rows) -> Tensor:
    """(N, T - first) log probability of each scored token, nats; keeps gradients."""
    return scores(logits(model, rows), rows)


def margins(model: PreTrainedModel, rows: Rows) -> Tensor:
    """(N, T - first) logit of each scored token minus the largest of the others."""
    return leads(logits(model, rows), rows)


def contrasted(of: Callable[[Rows], list[Tensor]], forget: Rows, keep: Rows) -> list[Tensor]:
    """Scores for the rows to forget minus those for the rows to keep."""
    return [a - b for a, b in zip(of(forget), of(keep), strict=True)]


@torch.no_grad()
def read(model: PreTrainedModel, rows: Rows, *of: Callable[[Tensor, Rows], Tensor]) -> list[Tensor]:
    """What each function makes of the logits (N, T - first, V) of rows, of one pass in batches."""
    found = []
    for part in rows.batches():
        made = logits(model, part)
        found.append([each(made, part) for each in of])
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def recited(model: PreTrainedModel, rows: Rows) -> Tensor:
    """(N,) bool: whether greedy decoding gives the scored tokens: each is the most likely one."""
    return read(model, rows, right)[0]


def all_log_probs(model: PreTrainedModel, rows: Rows) -> Tensor:
    """As `log_probs`, without gradients, in batches."""
    return read(model, rows, scores)[0]


def scores(made: Tensor, rows: Rows) -> Tensor:
    """(N, T - first) log probability of each scored token, of logits."""
    return made.log_softmax(-1).gather(-1, rows.tokens[:, rows.first :, None])[..., 0]


def leads(made: Tensor, rows: Rows) -> Tensor:
    """(N, T - first) logit of each scored token minus the largest of the others."""
    true = rows.tokens[:, rows.first :, None]
    return made.gather(-1, true)[..., 0] - made.scatter(-1, true, -torch.inf).amax(-1)


def right(made: Tensor, rows: Rows) -> Tensor:
    """(N,) bool: whether each scored token is the most likely one, of logits."""
    return (leads(made, rows) > 0).all(-1)
