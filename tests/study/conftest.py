"""What the tests of audits share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import own


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    own.write_checkpoint(folder)
    return folder
