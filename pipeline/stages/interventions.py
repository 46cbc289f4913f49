"""The stage that lists the interventions of a model."""

from __future__ import annotations

from pipeline.checkpoints.manifest import read_manifest
from pipeline.checkpoints.schema import Model
from pipeline.interventions.interventions import sweep
from pipeline.measure import schemas
from pipeline.measure.listed import as_table
from pipeline.measure.schema import FITTING
from pipeline.study.schema import Study
from pipeline.workflow import tables
from pipeline.workflow.errors import bad_input


def interventions(study: Study, model: Model) -> None:
    """List the interventions of one model, with the blocks and edit of each."""
    manifest = read_manifest(study.data / "checkpoints" / model.name)
    sizes = {"n_blocks": manifest.n_blocks, "n_heads": manifest.n_heads}
    try:
        made = sweep(manifest.n_blocks, study.interventions, manifest.n_heads)
    except ValueError as error:
        raise bad_input(f"interventions, of {model.name}", str(error), *FITTING) from None
    path = study.data / "interventions" / f"{model.name}.parquet"
    lines = study.model_dump(include={"interventions"}, exclude_none=True)["interventions"]
    provenance = {"study": study.study, "model": model.name, **sizes, "interventions": lines}
    tables.write(as_table(made), path, schemas.INTERVENTIONS, provenance)
