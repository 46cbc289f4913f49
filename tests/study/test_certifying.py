"""The command `certify`: what is wrong with the edit is found before the model is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.study.certifying import certify
from pipeline.workflow.errors import InputError
from tests.families import tiny
from tests.project import python

SCRIPT = """
import sys
from pipeline.study.certifying import certify
from pipeline.workflow.errors import InputError
try:
    certify("no model", sys.argv[1])
except InputError as error:
    print(error, "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("edit", "got"),
    [
        ("edits/nothere.py:halve", "edits/nothere.py: [Errno 2] No such file or directory"),
        ("edits/own.py:double", "edits/own.py without double"),
        ("halve", "edit 'halve'"),
    ],
)
def test_an_edit_that_is_missing_is_refused_before_torch_is_imported(
    edit: str, got: str, tmp_path: Path
) -> None:
    (tmp_path / "edits").mkdir()
    (tmp_path / "edits" / "own.py").write_text("def halve(here): ...\n")
    done = python("-c", SCRIPT, edit, cwd=tmp_path)
    assert f"got:      {got}" in done.stdout
    assert done.stdout.strip().endswith("False")


def test_the_certificate_of_an_edit_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny("llama").save_pretrained(tmp_path / "model")
    (tmp_path / "edits").mkdir()
    (tmp_path / "edits" / "own.py").write_text(
        "from pipeline.interventions import edit\n\n"
        "@edit(site='attention')\ndef halve(here):\n    return 0.5 * here.now\n"
    )
    monkeypatch.chdir(tmp_path)
    assert "edits/own.py:halve on model: certified" in certify("model", "edits/own.py:halve")
    with pytest.raises(InputError, match="an existing folder"):
        certify("nowhere", "edits/own.py:halve")
