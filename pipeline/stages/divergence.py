"""The stage that measures the theorems' bounds on a model."""

from pipeline.checkpoints.loading import load_model
from pipeline.checkpoints.schema import Model
from pipeline.interventions.memory import Journal
from pipeline.samples.frame import of_each_split
from pipeline.stages.evaluated import Evaluated
from pipeline.study.schema import Study, given
from pipeline.theory import columns
from pipeline.theory.divergence import measure
from pipeline.workflow.progress import reporter


def divergence(study: Study, model: Model) -> None:
    """Measure how far each bypass moves the last token, against the theorems' bounds."""
    evaluated, settings = Evaluated(study, model), given(study.divergence)
    samples = of_each_split(evaluated.samples, ("memorized", "control"), settings.samples)
    journal = Journal()
    with evaluated.on_device("divergence", journal=journal, streamed=False) as device:
        made = measure(
            load_model(evaluated.folder, evaluated.dtype, device.name),
            samples,
            study.run.token_budget,
            reporter(f"divergence of {model.name}", "samples"),
            journal,
        )
    provenance = evaluated.determined_by(divergence=settings.model_dump())
    for table, (end, schema) in zip(made, columns.DIVERGENCE.items(), strict=True):
        evaluated.write(table, schema, f"divergence/{model.name}{end}.parquet", provenance)
