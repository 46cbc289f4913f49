"""The stage that lists the interventions of a model."""

from dataclasses import asdict

from pipeline.checkpoints.manifest import Manifest, read_manifest
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
    manifest = read_manifest(study.checkpoint(model.name))
    sizes = {"n_blocks": manifest.n_blocks, "n_heads": manifest.n_heads}
    groups = [line for line in study.interventions if _has_source(study, manifest, line.source)]
    try:
        made = sweep(manifest.n_blocks, groups, manifest.n_heads)
    except ValueError as error:
        raise bad_input(f"interventions, of {model.name}", str(error), *FITTING) from None
    path = study.data / "interventions" / f"{model.name}.parquet"
    lines = [
        {name: value for name, value in asdict(line).items() if value is not None}
        for line in study.interventions
    ]
    provenance = {"study": study.study, "model": model.name, **sizes, "interventions": lines}
    tables.write(as_table(made), path, schemas.INTERVENTIONS, provenance)


def _has_source(study: Study, manifest: Manifest, name: str | None) -> bool:
    """Whether a model can get the values of another: one of the same shape, and not itself."""
    if name is None:
        return True
    other = read_manifest(study.checkpoint(name))
    shapes = [(m.n_blocks, m.width, m.n_heads, m.vocabulary) for m in (manifest, other)]
    return name != manifest.name and shapes[0] == shapes[1]
