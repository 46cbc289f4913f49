"""The stage that measures some samples of a model token by token."""

from pipeline.checkpoints.loading import load_model
from pipeline.checkpoints.schema import Model
from pipeline.interventions.memory import Journal
from pipeline.measure import schemas
from pipeline.measure.listed import read_listed
from pipeline.measure.tokens import certified, measure
from pipeline.stages.evaluated import Evaluated
from pipeline.study.schema import Study


def tokens(study: Study, model: Model) -> None:
    """Measure some samples token by token, and how far each intervention moves the stream."""
    evaluated, journal = Evaluated(study, model), Journal()
    samples, listed = evaluated.samples, read_listed(study.data, model.name)
    with evaluated.on_device("tokens", journal=journal) as device:
        loaded = load_model(evaluated.folder, evaluated.dtype, *device)
        sourced = evaluated.with_sources(listed, device)
        made = measure(loaded, samples, sourced, study.run.token_budget, journal)
        certificates = certified(loaded)
    moved = f"displacement/{model.name}"
    for table, schema, file in (
        (certificates, schemas.CERTIFICATES, f"certificates/{model.name}.parquet"),
        (made.tokens, schemas.TOKENS, f"tokens/{model.name}.parquet"),
        (made.displacement, schemas.DISPLACEMENT, f"{moved}.parquet"),
        (made.attention_change, schemas.ATTENTION_CHANGE, f"{moved}.attention.parquet"),
    ):
        evaluated.write(table, schema, file, evaluated.determined_by(**evaluated.own(listed)))
