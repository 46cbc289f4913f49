"""The model of a study that is edited; its rows: what methods see, and what they are judged by."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.checkpoints.loading import load, load_model
from pipeline.checkpoints.schema import Model, Training
from pipeline.checkpoints.training import train
from pipeline.corpus.schema import Corpus
from pipeline.corpus.schemas import TRAINING_ROWS
from pipeline.corpus.tasks import held_out_animals
from pipeline.corpus.world import document, make_world
from pipeline.mitigations.rows import Rows, rows_of
from pipeline.mitigations.schema import Mitigations
from pipeline.samples.schemas import read_samples
from pipeline.workflow import tables
from pipeline.workflow.errors import bad_input

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


@dataclass(frozen=True)
class Subject:
    """What a method gets.

    Args:
        data: the study's folder, ``data/STUDY``.
        entry: of the model in the study.
        model: in evaluation mode, float32, on the CPU.
        tokenizer: its own.
        parts: what a method sees, and what it is judged by.
    """

    data: Path
    entry: Model
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    parts: Parts


def subject(data: Path, asked: Mitigations, entry: Model, corpus: Corpus) -> Subject:
    """The model of a study and its rows.

    Args:
        data: the study's folder.
        asked: its section `mitigations`.
        entry: of the model in the study.
        corpus: that it was trained on, a generated world.

    Raises:
        InputError: no memorized record, or no record of the control, is of a kind to forget; none
            of another kind was memorized; or there are not two of either, for two halves.
    """
    model, tokenizer = load(data / "checkpoints" / entry.name, "float32")
    samples = read_samples(data, entry.family)
    kinds = {
        split: set(samples.filter(pl.col("split") == split)["kind"].to_list())
        for split in ("memorized", "control")
    }
    to_forget = set(asked.forget)
    if not (to_forget < kinds["memorized"] and to_forget & kinds["control"]):
        raise bad_input(
            "mitigations.forget",
            ", ".join(asked.forget),
            f"some, not all, of {', '.join(sorted(kinds['memorized']))}, and controls of them",
            "change the list, or plant and hold out more records",
        )
    length = int(samples["prefix_length"][0]) + int(samples["suffix_length"][0])
    readable, unseen = (
        texts(corpus, tokenizer, asked.texts, length, name) for name in ("readable", "unseen")
    )
    parts = study_parts(samples, asked.forget, readable, unseen, asked.seed)
    return Subject(data, entry, model, tokenizer, parts)


def other_model(name: str, edited: Subject) -> PreTrainedModel:
    """The twin of a study's model, or the model trained anew without the rows to forget.

    Args:
        name: ``twin`` or ``oracle``.
        edited: the model, which is trained here and has a twin, and its rows.
    """
    if name == "twin":
        return load_model(edited.data / "checkpoints" / str(edited.entry.twin), "float32")
    recipe, corpus = edited.entry.checkpoint, edited.data / "corpus"
    assert isinstance(recipe, Training)  # noqa: S101  by the checks of the study
    rows = tables.read(corpus / "rows.parquet", TRAINING_ROWS)
    lost = [edited.parts.splits[split].rows.tokens for split in (SEEN, HELD_OUT)]
    length = lost[0].shape[1]
    known = {tuple(row) for part in lost for row in part.tolist()}
    stays = [tuple(row[:length]) not in known for row in rows["tokens"].to_list()]
    return train(recipe, rows.filter(stays), corpus / "tokenizer").model


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
    """Two halves of any samples, all to be forgotten; without records that stay, and text.

    Raises:
        InputError: there are no two suffixes that differ.
    """
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
    if len(groups) < 2:
        raise bad_input(
            "samples to divide",
            f"{samples.height} with {len(groups)} suffixes that differ",
            "two suffixes or more, for two halves",
            "name or plant more samples",
        )
    random.Random(f"halves {seed}").shuffle(groups)  # noqa: S311 - reproducible, not secret
    first = set(groups[: len(groups) // 2])
    seen = pl.col("suffix_group").is_in(first)
    return _part(samples.filter(seen)), _part(samples.filter(~seen))


def _part(samples: pl.DataFrame) -> Part:
    items, clusters = samples["sample_id"].to_list(), samples["suffix_group"].to_list()
    return Part(rows_of(samples), items, clusters)
