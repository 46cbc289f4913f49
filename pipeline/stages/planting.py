"""The stage that puts memories into known places of one base."""

from functools import partial

from pipeline.checkpoints.loading import load
from pipeline.checkpoints.schema import Model, Training
from pipeline.checkpoints.training import read_rows, train
from pipeline.localization.planting import Base, write
from pipeline.samples.schemas import read_samples
from pipeline.study.schema import Study, given, section
from pipeline.workflow.files import atomic
from pipeline.workflow.running import costed


def planting(study: Study, model: Model) -> None:
    """Plant every truth in one base."""
    asked, recipe = given(study.localization), section(model.checkpoint, Training)
    corpus = study.data / "corpus"
    samples = read_samples(study.data, model.family).filter(split="memorized")
    with costed(study.data, "planting", model.name):
        again = partial(train, recipe, read_rows(corpus, recipe), corpus / "tokenizer", None)
        loaded, _ = load(study.checkpoint(model.name), "float32")
        with atomic(study.data / "planted" / model.name, directory=True) as folder:
            write(folder, Base(model.name, loaded, again), asked, samples)
