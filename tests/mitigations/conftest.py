"""A model of two blocks that has memorized six of its texts, made in a few seconds."""

from dataclasses import dataclass

import pytest
import torch
from transformers import PreTrainedModel

from pipeline.mitigations.methods import METHODS, edited
from pipeline.mitigations.rows import Rows
from tests.localization.conftest import small

P, T = 8, 16


@dataclass(frozen=True)
class World:
    """A model, and rows of three kinds: tokens 0-15, tokens 16-31, and plain runs of 32-47."""

    model: PreTrainedModel
    forget: Rows
    keep: Rows
    plain: Rows

    def edited(self, method: str, dose: float) -> PreTrainedModel:
        """A copy of the model with a dose of a method."""
        write = METHODS[method].prepare(self.model, self.forget, self.keep, 0)
        return edited(self.model, write, dose)


def two_blocks(seed: int = 0) -> PreTrainedModel:
    """A random Llama with MLPs of 64 neurons."""
    return small("llama", seed=seed, tie_word_embeddings=True, mlp_bias=False)


def nll(model: PreTrainedModel, rows: Rows) -> float:
    """Mean loss of the scored tokens, by transformers' own loss."""
    labels = rows.tokens.clone()
    labels[:, : rows.first] = -100
    with torch.no_grad():
        return float(model(input_ids=rows.tokens, labels=labels).loss)


@pytest.fixture(scope="session")
def world() -> World:
    """The trained model; tests copy what they change."""
    model, random = two_blocks(), torch.Generator().manual_seed(0)
    forget = Rows(torch.randint(0, 16, (12, T), generator=random), P)
    keep = Rows(torch.randint(16, 32, (12, T), generator=random), P)
    starts = torch.randint(0, 16, (24, 1), generator=random)
    plain = Rows(32 + (starts + torch.arange(T)) % 16, 1)
    everything = torch.cat([forget.tokens, keep.tokens, plain.tokens])
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3, weight_decay=0.0)
    for _ in range(150):
        logits = model(input_ids=everything).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), everything[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    return World(model, forget, keep, plain)
