"""The stage that attributes the loss of a model to its blocks."""

from pipeline.checkpoints.loading import load_model
from pipeline.checkpoints.schema import Model
from pipeline.measure import schemas
from pipeline.measure.attribution import measure
from pipeline.samples.frame import of_each_split
from pipeline.stages.evaluated import Evaluated
from pipeline.study.schema import Study, given
from pipeline.workflow.progress import reporter


def attribution(study: Study, model: Model) -> None:
    """Multiply each block's outputs with the gradient of the loss by them."""
    evaluated, settings = Evaluated(study, model), given(study.attribution)
    samples = of_each_split(evaluated.samples, ("memorized", "control"), settings.samples)
    with evaluated.on_device("attribution", streamed=False) as device:
        made = measure(
            load_model(evaluated.folder, evaluated.dtype, device.name),
            samples,
            reporter(f"attribution of {model.name}", "samples"),
        )
    provenance = evaluated.determined_by(attribution=settings.model_dump())
    evaluated.write(made, schemas.ATTRIBUTION, f"attribution/{model.name}.parquet", provenance)
