"""Summaries of studies that were never run, one for each story."""

from pathlib import Path

import polars as pl
import pytest

from pipeline.analysis import aggregate, evidence
from pipeline.report import figures
from tests.analysis import synthetic


@pytest.fixture(scope="session")
def study() -> synthetic.Study:
    return synthetic.study()


@pytest.fixture(scope="session")
def summary(study: synthetic.Study) -> pl.DataFrame:
    """Of the study whose story is the paper's."""
    return aggregate.aggregate(study.models)


@pytest.fixture(scope="session")
def evidence_of_paper(study: synthetic.Study) -> pl.DataFrame:
    """Of the same study."""
    return evidence.evidence(study.models)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, str]]]:
    """A folder with the data, the summary and the figures of a smaller study, and its models."""
    root = tmp_path_factory.mktemp("study")
    small = synthetic.study(
        models={"tiny-neo-8": ("gpt-neo", 8)}, accuracies={"tiny_piqa": (0.5, 0.9)}
    )
    models = small.write(root / "data")
    aggregate.write_summary("tiny", models, root / "data")
    figures.write_figures(root / "data", root / "figures")
    return root, models
