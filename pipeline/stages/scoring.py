"""The stage that runs every scorer on the planted models of one base."""

from __future__ import annotations

import polars as pl
import torch

from pipeline.checkpoints.loading import load
from pipeline.checkpoints.schema import Model, Training
from pipeline.localization.planting import read
from pipeline.localization.schema import OWN_SCORERS
from pipeline.localization.schemas import LOCALIZATION, REMOVAL
from pipeline.localization.scorers import Subject
from pipeline.localization.scoring import own_scorers, removed, scored
from pipeline.mitigations.rows import Rows
from pipeline.models.places import grid
from pipeline.samples.schemas import read_samples
from pipeline.study.schema import Study, given, section
from pipeline.workflow import tables
from pipeline.workflow.own import own_code
from pipeline.workflow.progress import reporter
from pipeline.workflow.running import costed, determined_by


def scoring(study: Study, model: Model) -> None:
    """Score the places of every model planted in one base, and delete what each scorer names."""
    asked, data = given(study.localization), study.data
    own, base = own_scorers(asked.scorers), asked.models[model.name]
    samples = read_samples(data, model.family)
    memorized, control = (_rows(samples.filter(split=s)) for s in ("memorized", "control"))
    found: list[tuple[pl.DataFrame, pl.DataFrame]] = []
    torch.set_num_threads(1)  # the bases run side by side; more would sum in another order
    with costed(data, "scoring", model.name):
        twin, _ = load(data / "checkpoints" / model.name, "float32")
        report = reporter("scoring", "models")
        count = sum(truth.models for truth in asked.truths.values())
        for planted, made in read(data / "planted" / model.name, twin):
            of = Subject(made, memorized, control, grid(made, planted.grid), twin)
            scores = scored(of, planted, own)
            seed = section(model.checkpoint, Training).seed
            columns = {"model": planted.name, "base": base, "seed": seed, "truth": planted.truth}
            labels = [pl.lit(value).alias(name) for name, value in columns.items()]
            both = scores.with_columns(labels), removed(of, scores).with_columns(labels)
            found.append(both)
            report(len(found), count)
    provenance = determined_by(study.study, base=model.name, own_scorers=own_code(OWN_SCORERS))
    for folder, schema, frames in zip(
        ("scores", "removal"), (LOCALIZATION, REMOVAL), zip(*found, strict=True), strict=True
    ):
        table = tables.cast(pl.concat(frames), schema)
        tables.write(table, data / folder / f"{model.name}.parquet", schema, provenance)


def _rows(samples: pl.DataFrame) -> Rows:
    tokens = torch.tensor(samples["tokens"].to_list(), dtype=torch.int64)
    return Rows(tokens, int(samples["prefix_length"][0]))
