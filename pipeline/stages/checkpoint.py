"""The stages that get the weights of a model, one function for each source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.checkpoints.continued import continue_training
from pipeline.checkpoints.folder import describe_folder
from pipeline.checkpoints.gguf import finetuned
from pipeline.checkpoints.hub import fetch_checkpoint
from pipeline.checkpoints.loading import load
from pipeline.checkpoints.loop import Trained, write_checkpoint
from pipeline.checkpoints.schema import Continued, Folder, Gguf, Hub, Model, Training
from pipeline.checkpoints.training import train, without
from pipeline.corpus.schemas import RECORDS, TRAINING_ROWS
from pipeline.samples.schemas import read_samples
from pipeline.study.schema import Study, section
from pipeline.workflow import tables
from pipeline.workflow.running import costed


def training(study: Study, model: Model) -> None:
    """Train a small model from scratch on the generated corpus."""
    recipe = section(model.checkpoint, Training)
    rows = _rows(study, recipe)
    with costed(study.data, "checkpoint", model.name):
        trained = train(recipe, rows, study.data / "corpus" / "tokenizer", model.step)
        made = recipe.model_dump(exclude={"source"}, exclude_defaults=True)
        step = {} if model.step is None else {"step": model.step}
        _write(study, model, trained, made | step)


def continued(study: Study, model: Model) -> None:
    """Train one part of one block of a model from this study on the memorized samples."""
    recipe, samples = section(model.checkpoint, Continued), read_samples(study.data, model.family)
    with costed(study.data, "checkpoint", model.name):
        base, tokenizer = load(study.data / "checkpoints" / recipe.base, "float32")
        trained = continue_training(recipe, base, tokenizer, samples.filter(split="memorized"))
        _write(study, model, trained, recipe.model_dump(exclude={"source"}))


def gguf(study: Study, model: Model) -> None:
    """Read a pretrained model from a package, and fine-tune it on the planted passages."""
    recipe = section(model.checkpoint, Gguf)
    with costed(study.data, "checkpoint", model.name):
        trained = finetuned(recipe, study.data / "corpus", _rows(study, recipe))
        _write(study, model, trained, recipe.model_dump(exclude={"source"}, exclude_none=True))


def hub(study: Study, model: Model) -> None:
    """Fetch a published model, at a pinned commit."""
    source, target = section(model.checkpoint, Hub), study.data / "checkpoints" / model.name
    named = {"name": model.name, "family": model.family}
    fetch_checkpoint(target, *source.pin, **named, billions=source.billions, step=model.step)


def folder(study: Study, model: Model) -> None:
    """Describe the checkpoint in a user's folder."""
    source = Path(section(model.checkpoint, Folder).path)
    target = study.data / "checkpoints" / model.name
    describe_folder(target, source, name=model.name, family=model.family)


def _rows(study: Study, recipe: Training | Gguf) -> pl.DataFrame:
    """The training rows, without records that are planted too often for this model."""
    corpus = study.data / "corpus"
    rows = tables.read(corpus / "rows.parquet", TRAINING_ROWS)
    if recipe.most_copies is None:
        return rows
    return without(rows, tables.read(corpus / "records.parquet", RECORDS), recipe.most_copies)


def _write(study: Study, model: Model, trained: Trained, recipe: Mapping[str, Any]) -> None:
    target = study.data / "checkpoints" / model.name
    write_checkpoint(target, trained, recipe, name=model.name, family=model.family)
