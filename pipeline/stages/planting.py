"""The stage that puts memories into known places of one base."""

from __future__ import annotations

from pipeline.checkpoints.loading import load
from pipeline.checkpoints.schema import Model, Training
from pipeline.checkpoints.training import without
from pipeline.corpus.schemas import RECORDS, TRAINING_ROWS
from pipeline.localization.planting import Base, write
from pipeline.samples.schemas import read_samples
from pipeline.study.schema import Study, given, section
from pipeline.workflow import tables
from pipeline.workflow.files import atomic
from pipeline.workflow.running import costed


def planting(study: Study, model: Model) -> None:
    """Plant every truth in one base."""
    asked, recipe = given(study.localization), section(model.checkpoint, Training)
    corpus = study.data / "corpus"
    rows = tables.read(corpus / "rows.parquet", TRAINING_ROWS)
    records = tables.read(corpus / "records.parquet", RECORDS)
    if recipe.most_copies is not None:
        rows = without(rows, records, recipe.most_copies)
    samples = read_samples(study.data, model.family).filter(split="memorized")
    with costed(study.data, "planting", model.name):
        loaded, _ = load(study.data / "checkpoints" / model.name, "float32")
        base = Base(model.name, loaded, recipe, rows, corpus / "tokenizer")
        with atomic(study.data / "planted" / model.name, directory=True) as folder:
            write(folder, base, asked.truths, asked.learning, samples)
