"""What the tests of audits share."""

from pathlib import Path

import pytest

from pipeline.study import audit
from tests import own


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a checkpoint that has learned nothing; no test changes it."""
    folder = tmp_path_factory.mktemp("mine")
    own.write_checkpoint(folder)
    return folder


@pytest.fixture
def asked(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> audit.Asked:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(own.text())
    lengths = {"prefix_length": 8, "suffix_length": 8}
    return own.asked(name="mine", model=str(model), samples=Path("text.txt"), **lengths)
