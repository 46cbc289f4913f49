"""The stage that scores every block of models whose memorizing block is known."""

from __future__ import annotations

from pipeline.analysis.localization import LOCALIZATION, scores
from pipeline.study.schema import Study
from pipeline.workflow import tables


def localization(study: Study) -> None:
    """Score every block of the models whose memorizing block is known."""
    made = scores(
        study.listed,
        study.data,
        divergence=study.divergence is not None,
        attribution=study.attribution is not None,
    )
    path = study.data / "localization.parquet"
    tables.write(made, path, LOCALIZATION, {"study": study.study})
