"""The model of a study that is edited, with its rows; and the two that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.checkpoints.loading import load, load_model
from pipeline.checkpoints.schema import Model, Training
from pipeline.checkpoints.training import train
from pipeline.corpus.schema import Corpus
from pipeline.corpus.schemas import TRAINING_ROWS
from pipeline.mitigations.parts import HELD_OUT, SEEN, Parts, study_parts, texts
from pipeline.mitigations.schema import Mitigations
from pipeline.samples.schemas import read_samples
from pipeline.workflow import tables
from pipeline.workflow.errors import bad_input


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
        InputError: no memorized record, or no record of the control, is of a kind to forget; or
            none of another kind was memorized.
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
        edited: the model and its rows.

    Raises:
        InputError: the model was not trained here, or has no twin.
    """
    recipe, twin = edited.entry.checkpoint, edited.entry.twin
    if not isinstance(recipe, Training) or twin is None:
        raise bad_input(
            f"mitigations.model: {edited.entry.name}",
            f"source {recipe.source}, twin {twin}",
            "a model that is trained here and has a twin",
            "name another model, or give it a twin",
        )
    if name == "twin":
        return load_model(edited.data / "checkpoints" / twin, "float32")
    corpus = edited.data / "corpus"
    rows = tables.read(corpus / "rows.parquet", TRAINING_ROWS)
    lost = [edited.parts.splits[split].rows.tokens for split in (SEEN, HELD_OUT)]
    length = lost[0].shape[1]
    known = {tuple(row) for part in lost for row in part.tolist()}
    stays = [tuple(row[:length]) not in known for row in rows["tokens"].to_list()]
    return train(recipe, rows.filter(stays), corpus / "tokenizer").model
