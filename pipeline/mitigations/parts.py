"""The rows of a study of mitigations: what a method sees, and what it is judged by."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from pipeline.corpus.schema import Corpus
from pipeline.corpus.tasks import held_out_animals
from pipeline.corpus.world import document, make_world
from pipeline.mitigations.rows import Rows

SEEN, HELD_OUT = "forget_seen", "forget_held_out"
KEPT, KEPT_HELD_OUT = "keep_seen", "keep_held_out"
CONTROL, TEXT = "control", "text"


@dataclass(frozen=True)
class Part:
    """Rows of one split.

    Args:
        rows: N of them.
        items: (N,) their numbers in the tables.
        clusters: (N,) rows that belong together share a number.
    """

    rows: Rows
    items: Sequence[int]
    clusters: Sequence[int]


@dataclass(frozen=True)
class Parts:
    """The splits, and the text that a method may read besides.

    Args:
        splits: name -> its rows. `TEXT` is unseen text, scored as a whole; of all others, records,
            the suffix is scored.
        readable: rows of text for the methods, as long as the records.
    """

    splits: dict[str, Part]
    readable: Tensor

    @property
    def forget(self) -> Rows:
        """What a method sees of the rows to forget."""
        return self.splits[SEEN].rows

    @property
    def keep(self) -> Rows:
        """What a method sees of the rows to keep: text, and half of the records that stay."""
        return Rows(torch.cat([self.readable, self.splits[KEPT].rows.tokens]), 1)


def study_parts(
    samples: pl.DataFrame, forget: Sequence[str], readable: Tensor, unseen: Tensor, seed: int
) -> Parts:
    """The splits of a study.

    Args:
        samples: schema `SAMPLES`, and the column ``kind``.
        forget: kinds of records to forget.
        readable: (N, P + S) text for the methods.
        unseen: (N, P + S) other text.
        seed: of the halves.
    """
    memorized, to_forget = pl.col("split") == "memorized", pl.col("kind").is_in(forget)
    lost = _halves(samples.filter(memorized & to_forget), seed)
    kept = _halves(samples.filter(memorized & ~to_forget), seed)
    control = _part(samples.filter((pl.col("split") == "control") & to_forget))
    numbers = range(len(unseen))
    splits = {SEEN: lost[0], HELD_OUT: lost[1], KEPT: kept[0], KEPT_HELD_OUT: kept[1]}
    splits |= {CONTROL: control, TEXT: Part(Rows(unseen, 1), numbers, numbers)}
    return Parts(splits, readable)


def halved(samples: pl.DataFrame, seed: int) -> Parts:
    """Two halves of any samples, all to be forgotten; without records that stay, and text."""
    seen, held_out = _halves(samples, seed)
    return Parts({SEEN: seen, HELD_OUT: held_out}, torch.zeros(0, 0, dtype=torch.int64))


def texts(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, count: int, length: int, name: str
) -> Tensor:
    """(count, length) int64 text of the generated world, documents after one another.

    The documents are drawn anew, from the world that the model was trained on: hardly any of them
    is in its training rows, and the facts are.

    Args:
        corpus: of the study.
        tokenizer: the model's own.
        count: rows.
        length: tokens of a row.
        name: of the draw; another name gives other texts.
    """
    rng = random.Random(f"{name} {corpus.seed}")  # noqa: S311 - reproducible, not secret
    side = make_world(corpus.seed, held_out_animals(corpus.task_items)).training
    ids: list[int] = []
    while len(ids) < count * length:
        ids += [tokenizer.eos_token_id, *tokenizer(document(side, rng))["input_ids"]]
    return torch.tensor(ids[: count * length]).view(count, length)


def _halves(samples: pl.DataFrame, seed: int) -> tuple[Part, Part]:
    """Two halves at random; samples with nearly equal suffixes go into the same one."""
    groups = samples["suffix_group"].unique(maintain_order=True).to_list()
    random.Random(f"halves {seed}").shuffle(groups)  # noqa: S311 - reproducible, not secret
    first = set(groups[: len(groups) // 2])
    seen = pl.col("suffix_group").is_in(first)
    return _part(samples.filter(seen)), _part(samples.filter(~seen))


def _part(samples: pl.DataFrame) -> Part:
    length = int(samples["prefix_length"][0])
    tokens = torch.tensor(samples["tokens"].to_list(), dtype=torch.int64)
    items, clusters = samples["sample_id"].to_list(), samples["suffix_group"].to_list()
    return Part(Rows(tokens, length), items, clusters)
