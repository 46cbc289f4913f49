"""The stage that lets a model write after some prompts."""

from pipeline.checkpoints.loading import load
from pipeline.checkpoints.schema import Model
from pipeline.measure import schemas
from pipeline.measure.generations import measure
from pipeline.stages.evaluated import Evaluated
from pipeline.study.schema import Study, given


def generations(study: Study, model: Model) -> None:
    """Let the model write after some prompts, under some of the interventions."""
    evaluated, settings = Evaluated(study, model), given(study.generations)
    with evaluated.on_device("generations") as device:
        made = measure(
            *load(evaluated.folder, evaluated.dtype, *device),
            settings.prompts,
            settings.depths,
            settings.new_tokens,
            settings.seed,
        )
    provenance = evaluated.determined_by(generations=settings.model_dump())
    evaluated.write(made, schemas.GENERATIONS, f"generations/{model.name}.parquet", provenance)
