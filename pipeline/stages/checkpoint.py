"""The stages that get the weights of a model, one function for each source."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.checkpoints.continued import learn
from pipeline.checkpoints.folder import describe_folder
from pipeline.checkpoints.gguf import finetuned
from pipeline.checkpoints.hub import fetch_checkpoint
from pipeline.checkpoints.loading import load
from pipeline.checkpoints.loop import Trained, write_checkpoint
from pipeline.checkpoints.schema import Continued, Folder, Gguf, Hub, Model, Training
from pipeline.checkpoints.training import read_rows, train
from pipeline.models.places import Place, masks
from pipeline.samples.schemas import read_samples
from pipeline.study.schema import Study, section
from pipeline.workflow.running import costed


def training(study: Study, model: Model) -> None:
    """Train a small model from scratch on the generated corpus."""
    corpus, recipe = study.data / "corpus", section(model.checkpoint, Training)
    with costed(study.data, "checkpoint", model.name):
        trained = train(recipe, read_rows(corpus, recipe), corpus / "tokenizer", model.step)
        made = recipe.model_dump(exclude={"source"}, exclude_defaults=True)
        step = {} if model.step is None else {"step": model.step}
        _write(study, model, trained, made | step)


def continued(study: Study, model: Model) -> None:
    """Train one part of one block of a model from this study on the memorized samples."""
    recipe, samples = section(model.checkpoint, Continued), read_samples(study.data, model.family)
    with costed(study.data, "checkpoint", model.name):
        base, tokenizer = load(study.checkpoint(recipe.base), "float32")
        own = masks(base, [Place(recipe.block, recipe.part)])
        log = learn(recipe, base, samples.filter(split="memorized"), own)
        trained = Trained(base, log, tokenizer)
        _write(study, model, trained, recipe.model_dump(exclude={"source"}))


def gguf(study: Study, model: Model) -> None:
    """Read a pretrained model from a package, and fine-tune it on the planted passages."""
    recipe = section(model.checkpoint, Gguf)
    with costed(study.data, "checkpoint", model.name):
        trained = finetuned(recipe, study.data / "corpus", read_rows(study.data / "corpus", recipe))
        _write(study, model, trained, recipe.model_dump(exclude={"source"}, exclude_none=True))


def hub(study: Study, model: Model) -> None:
    """Fetch a published model, at a pinned commit."""
    source = section(model.checkpoint, Hub)
    fetch_checkpoint(study.checkpoint(model.name), model, source)


def folder(study: Study, model: Model) -> None:
    """Describe the checkpoint in a user's folder."""
    source = Path(section(model.checkpoint, Folder).path)
    describe_folder(study.checkpoint(model.name), model, source)


def _write(study: Study, model: Model, trained: Trained, recipe: Mapping[str, Any]) -> None:
    target = study.checkpoint(model.name)
    write_checkpoint(target, trained, recipe, name=model.name, family=model.family)
