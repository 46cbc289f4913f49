"""The command `certify`: what is wrong with the edit is found before the model is read."""

from pathlib import Path

import pytest

from pipeline.study.certifying import certify
from pipeline.workflow.errors import InputError
from tests.families import tiny
from tests.project import python
from tests.study.test_project import EDIT

SCRIPT = """
import sys
from pipeline.study.certifying import certify
from pipeline.workflow.errors import InputError
for edit in sys.argv[1:]:
    try:
        certify("no model", edit)
    except InputError as error:
        print(error)
    assert "torch" not in sys.modules, edit
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the file of an edit of one's own."""
    monkeypatch.chdir(tmp_path)
    Path("edits").mkdir()
    Path("edits/own.py").write_text(EDIT)


def test_an_edit_that_is_missing_is_refused_before_torch_is_imported():
    missing = {
        "edits/nothere.py:halve": "edits/nothere.py: [Errno 2] No such file or directory",
        "edits/own.py:double": "edits/own.py without double",
        "halve": "edit 'halve'",
    }
    said = python("-c", SCRIPT, *missing, cwd=Path()).stdout
    assert all(f"got:      {got}" in said for got in missing.values()), said


def test_the_certificate_of_an_edit_of_ones_own():
    tiny("llama").save_pretrained("model")
    assert "edits/own.py:halve on model: certified" in certify("model", "edits/own.py:halve")
    with pytest.raises(InputError, match="an existing folder"):
        certify("nowhere", "edits/own.py:halve")
