"""The model of a study that is edited; its rows: what methods see, and what they are judged by."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.checkpoints.gguf import finetuned
from pipeline.checkpoints.loading import load, load_model
from pipeline.checkpoints.schema import Gguf, Model, Training
from pipeline.checkpoints.training import train
from pipeline.corpus.passages import stories
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
    """Rows of one split, their numbers in the tables, and those that related ones share."""

    rows: Rows
    items: Sequence[int]
    clusters: Sequence[int]


@dataclass(frozen=True)
class Parts:
    """The splits by name, and the text that a method may read besides, as long as the records.

    `TEXT` is unseen text, scored as a whole; of all others, records, the suffix is scored.
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
    """The model of a study, in evaluation mode, float32, on the CPU; its tokenizer and its rows."""

    data: Path
    entry: Model
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    parts: Parts


def subject(data: Path, asked: Mitigations, entry: Model, corpus: Corpus) -> Subject:
    """The model `entry` of a study and its rows, from the study's folder of data.

    Raises:
        InputError: no memorized record, or no record of the control, is of a kind to forget; none
            of another kind was memorized; or there are not two of either, for two halves.
    """
    model, tokenizer = load(data / "checkpoints" / entry.name, "float32")
    samples = read_samples(data, entry.family)
    memorized, control = (set(samples.filter(split=s)["kind"]) for s in ("memorized", "control"))
    to_forget = set(asked.forget)
    if not (to_forget < memorized and to_forget & control):
        raise bad_input(
            "mitigations.forget",
            ", ".join(asked.forget),
            f"some, not all, of {', '.join(sorted(memorized))}, and controls of them",
            "change the list, or plant and hold out more records",
        )
    shape = asked.texts, len(samples["tokens"][0])
    readable, unseen = (texts(corpus, tokenizer, *shape, n) for n in ("readable", "unseen"))
    parts = study_parts(samples, asked.forget, readable, unseen, asked.seed)
    return Subject(data, entry, model, tokenizer, parts)


def other_model(name: str, edited: Subject) -> PreTrainedModel:
    """The ``twin`` of a study's model, or ``oracle``: trained anew without the rows to forget."""
    if name == "twin":
        return load_model(edited.data / "checkpoints" / str(edited.entry.twin), "float32")
    recipe, corpus = edited.entry.checkpoint, edited.data / "corpus"
    rows = tables.read(corpus / "rows.parquet", TRAINING_ROWS)
    lost = torch.cat([edited.parts.splits[split].rows.tokens for split in (SEEN, HELD_OUT)])
    known, length = set(map(tuple, lost.tolist())), lost.shape[1]
    stays = [tuple(row[:length]) not in known for row in rows["tokens"].to_list()]
    if isinstance(recipe, Gguf):
        return finetuned(recipe, corpus, rows.filter(stays)).model
    assert isinstance(recipe, Training)  # noqa: S101  by the checks of the study
    return train(recipe, rows.filter(stays), corpus / "tokenizer").model


def study_parts(
    samples: pl.DataFrame, forget: Sequence[str], readable: Tensor, unseen: Tensor, seed: int
) -> Parts:
    """The splits of a study: of its samples, with their ``kind``, by kinds to forget; and of text.

    The texts, which methods may read and which they may not, are (N, P + S).
    """
    to_forget, numbers = pl.col("kind").is_in(forget), range(len(unseen))
    parts = [
        *_halves(samples.filter(to_forget, split="memorized"), seed),
        *_halves(samples.filter(~to_forget, split="memorized"), seed),
        _part(samples.filter(to_forget, split="control")),
        Part(Rows(unseen, 1), numbers, numbers),
    ]
    names = (SEEN, HELD_OUT, KEPT, KEPT_HELD_OUT, CONTROL, TEXT)
    return Parts(dict(zip(names, parts, strict=True)), readable)


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
    """(count, length) int64 text, documents after one another.

    The documents of a world are drawn anew: hardly any of them is in the training rows, and the
    facts are. A pretrained model reads stories like those of its task, which are not planted.
    Another name gives other texts.
    """
    rng = random.Random(f"{name} {corpus.seed}")  # noqa: S311 - reproducible, not secret
    drawn, ids = stories(rng), list[int]()
    if corpus.weights is None:
        side = make_world(corpus.seed, held_out_animals(corpus.task_items)).training
        drawn = (document(side, rng) for _ in itertools.count())
    while len(ids) < count * length:
        ids += [tokenizer.eos_token_id, *tokenizer(next(drawn))["input_ids"]]
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
    seen = pl.col("suffix_group").is_in(groups[: len(groups) // 2])
    return _part(samples.filter(seen)), _part(samples.filter(~seen))


def _part(samples: pl.DataFrame) -> Part:
    items, clusters = samples["sample_id"].to_list(), samples["suffix_group"].to_list()
    return Part(rows_of(samples), items, clusters)
