"""The stage that runs every scorer on the planted models of one base."""

import polars as pl
import torch

from pipeline.checkpoints.loading import load
from pipeline.checkpoints.schema import Model, Training
from pipeline.localization.planting import read
from pipeline.localization.schema import OWN_SCORERS
from pipeline.localization.schemas import TABLES
from pipeline.localization.scorers import Subject
from pipeline.localization.scoring import own_scorers, removed, score
from pipeline.mitigations.rows import rows_of
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
    memorized, control = (rows_of(samples.filter(split=s)) for s in ("memorized", "control"))
    scores, removal = list[dict[str, object]](), list[dict[str, object]]()
    torch.set_num_threads(1)  # the bases run side by side; more would sum in another order
    with costed(data, "scoring", model.name):
        twin, _ = load(study.checkpoint(model.name), "float32")
        report = reporter("scoring", "models")
        count = sum(truth.models for truth in asked.truths.values())
        seed = section(model.checkpoint, Training).seed
        for done, (planted, made) in enumerate(read(data / "planted" / model.name, twin), 1):
            labels = {"model": planted.name, "base": base, "seed": seed, "truth": planted.truth}
            of = Subject(made, memorized, control, grid(made, planted.grid), twin)
            found = score(of, planted, own)
            for scorer, values in found.items():
                for place, value in zip(of.places, values, strict=True):
                    where = {"place": place.name, "is_truth": place.name in planted.places}
                    scores.append({**labels, **where, "scorer": scorer, "score": value})
            removal += (labels | row for row in removed(of, found, len(planted.places)))
            report(done, count)
    provenance = determined_by(study.study, base=model.name, own_scorers=own_code(OWN_SCORERS))
    for rows, (folder, (_, schema)) in zip((scores, removal), TABLES.items(), strict=True):
        table = pl.DataFrame(rows, schema=tables.dtypes(schema))
        tables.write(table, data / folder / f"{model.name}.parquet", schema, provenance)
